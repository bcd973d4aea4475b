package migrations

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

// DefaultVersionTable is where the versions of the default table, idempotency_keys, are recorded.
const DefaultVersionTable = "idempotency_goose_version"

// versionTableSuffix makes the version table's name of any other table's. It must not be the ending of
// [DefaultVersionTable], or a table called "idempotency" would share its versions with the default one.
const versionTableSuffix = "_goose_versions"

// maxIdentifier is PostgreSQL's limit in bytes. It truncates a longer name silently, and IF NOT EXISTS would then take the
// index of another table for ours.
const maxIdentifier = 63

// An Option changes what the package's functions work on. The last one of a kind wins.
type Option func(*options)

type options struct {
	table        string
	versionTable string
	partitions   int
	observe      func(Change)
}

// WithTable names the table of keys, "table" or "schema.table", as the plugin's Config.Table does. The default, also for
// an empty name, is idempotency_keys.
//
// Names are letters, digits and underscores, and keep their case. A name without a schema means the first schema of the
// connection's search path. The schema must exist. A name is at most 48 bytes long, schema and dot included, since the
// names of the indexes are made of it.
func WithTable(name string) Option {
	return func(o *options) {
		o.table = name
	}
}

// WithVersionTable names the table in which applied migrations are recorded, "table" or "schema.table"; without a schema
// it is beside the table of keys. It is created when it is missing.
//
// The default, also for an empty name, is [DefaultVersionTable] for a table called idempotency_keys and the table's name
// followed by "_goose_versions" for any other, so that two tables of keys in one database never share their versions:
// what is recorded for the first would be skipped for the second.
func WithVersionTable(name string) Option {
	return func(o *options) {
		o.versionTable = name
	}
}

// A Change is a migration that [Up] has applied, or [Down] has rolled back.
type Change struct {
	Version int64
	Name    string // the file's name in FS
	Took    time.Duration
}

// WithObserve has fn called for each migration that [Up] applies or [Down] rolls back, once it is committed, in order and
// in the calling goroutine. If a later one fails, fn is called for those before it all the same. A nil fn is never called.
func WithObserve(fn func(Change)) Option {
	return func(o *options) {
		o.observe = fn
	}
}

// gather applies the options.
func gather(opts []Option) options {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	if o.observe == nil {
		o.observe = func(Change) {}
	}
	return o
}

// names are the relations that a migration touches, as far as they are known without asking the database.
type names struct {
	table      pgsql.Table
	versions   pgsql.Table // Schema "" for the table's own
	indexes    []string    // those that the migrations create, beside the primary key's
	partitions []string    // empty for an ordinary table
}

func newNames(o options) (names, error) {
	if o.table == "" {
		o.table = pgsql.DefaultTable
	}
	table, err := pgsql.ParseTable(o.table)
	if err != nil {
		return names{}, fmt.Errorf("table: %w", err)
	}
	partitions, err := partitionNames(table, o.partitions)
	if err != nil {
		return names{}, fmt.Errorf("partitions: %w", err)
	}
	n := names{
		table:      table,
		indexes:    []string{indexName(table, "claimed_at"), indexName(table, "incomplete")},
		partitions: partitions,
	}
	for _, name := range n.created() {
		if len(name) > maxIdentifier {
			return names{}, fmt.Errorf("table: %q is too long: the name %s would exceed PostgreSQL's %d bytes",
				o.table, name, maxIdentifier)
		}
	}
	if n.versions, err = versionTable(o.versionTable, table); err != nil {
		return names{}, fmt.Errorf("version table: %w", err)
	}
	return n, nil
}

// created are the names that the migrations make of the table's.
func (n names) created() []string {
	return slices.Concat(n.indexes, n.partitions)
}

func versionTable(name string, table pgsql.Table) (pgsql.Table, error) {
	switch {
	case name == "" && table.Name == pgsql.DefaultTable:
		return pgsql.Table{Schema: table.Schema, Name: DefaultVersionTable}, nil
	case name == "":
		return pgsql.ParseTable(table.String() + versionTableSuffix)
	}
	versions, err := pgsql.ParseTable(name)
	if err != nil {
		return pgsql.Table{}, err
	}
	if versions.Schema == "" {
		versions.Schema = table.Schema
	}
	if versions == table {
		return pgsql.Table{}, errors.New("it must not be the table of keys itself")
	}
	return versions, nil
}

// indexName is the name that GORM's default naming strategy gives to an index, so that goose and AutoMigrate agree: the
// table's name is the configured one, and its dot becomes an underscore.
func indexName(table pgsql.Table, suffix string) string {
	return "idx_" + strings.ReplaceAll(table.String(), ".", "_") + "_" + suffix
}
