package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

// overdueKeys is what a sweep would delete.
type overdueKeys struct {
	Overdue int64           `json:"overdue"`
	Sources []overdueSource `json:"sources"`
}

type overdueSource struct {
	Source    *string `json:"source"` // nil: all that have no retention of their own
	Retention float64 `json:"retention_seconds"`
	Overdue   int64   `json:"overdue"`
}

// count prints what a sweep would delete.
func (s *sweep) count(ctx context.Context, pool *sql.DB, out io.Writer) error {
	counted, err := s.overdue(ctx, pool, 0)
	if err != nil {
		return err
	}
	if s.json {
		return printJSON(out, counted)
	}
	return counted.print(out)
}

func (o overdueKeys) print(out io.Writer) error {
	table := newTable("source", "retention", "overdue")
	for _, source := range o.Sources {
		name := "all others"
		switch {
		case source.Source != nil:
			name = *source.Source
		case len(o.Sources) == 1:
			name = "all"
		}
		table.row(name, formatPeriod(time.Duration(source.Retention*float64(time.Second))), count(source.Overdue, "key", "keys"))
	}
	if err := table.print(out); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "\nA sweep would delete %s. Nothing was deleted.\n", count(o.Overdue, "key", "keys"))
	return err
}

// overdue counts by the database's clock what a sweep would delete, after making sure that the table is one of keys. It
// reads all that is overdue, unless that takes longer than the limit, which is an error; 0: no limit.
func (s *sweep) overdue(ctx context.Context, pool *sql.DB, limit time.Duration) (counted overdueKeys, err error) {
	table, err := pgsql.ParseTable(s.table)
	if err != nil {
		return counted, err
	}
	err = read(ctx, pool, func(tx *sql.Tx) error {
		if err := pgsql.CheckSchema(ctx, tx, table); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, pgsql.CountSettings(limit)); err != nil {
			return fmt.Errorf("count the overdue keys: %w", err)
		}
		for _, part := range s.parts() {
			source := overdueSource{Source: part.source, Retention: part.retention.Seconds()}
			row := tx.QueryRowContext(ctx, pgsql.CountExpired(table.Quoted(), part.class), part.args()...)
			if err := row.Scan(&source.Overdue); err != nil {
				return fmt.Errorf("count the overdue keys: %w", err)
			}
			counted.Overdue += source.Overdue
			counted.Sources = append(counted.Sources, source)
		}
		return nil
	})
	return counted, err
}

// part is keys that share a retention.
type part struct {
	class     pgsql.Class
	source    *string  // nil: all but those below
	names     []string // of sources
	retention time.Duration
}

// parts are those of the sources that have a retention of their own, and of all others.
func (s *sweep) parts() []part {
	names := slices.Sorted(maps.Keys(s.sources))
	var parts []part
	for _, name := range names {
		parts = append(parts, part{class: pgsql.TheseSources, source: &name, names: []string{name}, retention: s.sources[name].Retention})
	}
	others := part{class: pgsql.OtherSources, names: names, retention: time.Duration(s.common)}
	if len(names) == 0 {
		others.class = pgsql.AllSources
	}
	return append(parts, others)
}

func (p part) args() []any {
	if p.class == pgsql.AllSources {
		return []any{p.retention.Seconds()}
	}
	names, err := json.Marshal(p.names)
	if err != nil {
		panic(err) // strings always marshal
	}
	return []any{p.retention.Seconds(), string(names)}
}
