// Package pgsql holds everything the library says to PostgreSQL: each statement once, the table's name rendered into it,
// and what the server's SQLSTATEs mean.
package pgsql

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"strings"
)

// DefaultTable is the table's name where none is configured.
const DefaultTable = "idempotency_keys"

// Querier is what a statement runs on: a *sql.DB, *sql.Conn or *sql.Tx, and so every gorm.ConnPool.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Table is the name of a table of keys. It is compared byte for byte, as a quoted identifier: "Keys" and "keys" differ.
type Table struct {
	Schema string // "" for the search path's choice
	Name   string
}

// identifierBytes is PostgreSQL's limit: it truncates longer names silently, and so two tables could become one.
const identifierBytes = 63

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// ParseTable reads "table" or "schema.table".
func ParseTable(name string) (Table, error) {
	schema, table, qualified := strings.Cut(name, ".")
	if !qualified {
		schema, table = "", name
	}
	for _, part := range []string{schema, table} {
		switch {
		case part == "" && (qualified || name == "") || strings.Contains(part, "."):
			return Table{}, fmt.Errorf("%q is not a table name: want \"table\" or \"schema.table\"", name)
		case part == "":
			continue
		case len(part) > identifierBytes:
			return Table{}, fmt.Errorf("%q is longer than PostgreSQL's %d bytes for an identifier", part, identifierBytes)
		case !identifier.MatchString(part):
			return Table{}, fmt.Errorf("%q is not a table name: want letters, digits and underscores, and no digit first", part)
		}
	}
	return Table{Schema: schema, Name: table}, nil
}

// String is the name as it was given to ParseTable.
func (t Table) String() string {
	if t.Schema == "" {
		return t.Name
	}
	return t.Schema + "." + t.Name
}

// Quoted is the name as it stands in a statement.
func (t Table) Quoted() string {
	if t.Schema == "" {
		return `"` + t.Name + `"`
	}
	return `"` + t.Schema + `"."` + t.Name + `"`
}
