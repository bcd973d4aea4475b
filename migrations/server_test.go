package migrations_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/gorm-idempotency/idempotency/internal/pglocal"
)

// server tells how to reach the test's server as a superuser. It is started once a process, unless there is one already.
var server = sync.OnceValues(func() (*pgx.ConnConfig, error) {
	if dsn := os.Getenv("IDEMPOTENCY_TEST_DSN"); dsn != "" {
		return pgx.ParseConfig(dsn)
	}
	s, err := pglocal.Start(context.Background(), pglocal.Options{})
	if err != nil {
		return nil, err
	}
	return pgx.ParseConfig(s.DSN("postgres"))
})

var counter atomic.Int64

// unique is a name that no other test has, whatever process it runs in: roles and databases are the whole server's.
func unique(prefix string) string {
	return fmt.Sprintf("%s_%d_%d_%d", prefix, os.Getpid(), time.Now().UnixNano()%1e9, counter.Add(1))
}

// emptyDatabase creates a database without any table of ours and drops it at the end.
func emptyDatabase(t *testing.T) *pgx.ConnConfig {
	t.Helper()
	admin, err := server()
	ok(t, err)
	name := unique("migrations")
	pool := open(t, admin)
	exec(t, pool, "CREATE DATABASE "+name+" TEMPLATE template0 ENCODING 'UTF8'")
	t.Cleanup(func() {
		exec(t, pool, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '"+name+"'", "DROP DATABASE "+name)
	})
	return database(admin, name)
}

func database(config *pgx.ConnConfig, name string) *pgx.ConnConfig {
	changed := config.Copy()
	changed.Database = name
	return changed
}

// withSetting is a connection whose sessions begin with a setting of their own.
func withSetting(config *pgx.ConnConfig, name, value string) *pgx.ConnConfig {
	changed := config.Copy()
	changed.RuntimeParams[name] = value
	return changed
}

// asRole connects as a new role without any rights but PUBLIC's, and with settings of its own.
func asRole(t *testing.T, config *pgx.ConnConfig, settings ...string) (*pgx.ConnConfig, string) {
	t.Helper()
	role := unique("role")
	pool := open(t, config)
	exec(t, pool, "CREATE ROLE "+role+" LOGIN PASSWORD 'x'")
	t.Cleanup(func() {
		exec(t, pool, "DROP OWNED BY "+role+" CASCADE", "DROP ROLE "+role)
	})
	for _, setting := range settings {
		exec(t, pool, "ALTER ROLE "+role+" SET "+setting)
	}
	changed := config.Copy()
	changed.User, changed.Password = role, "x"
	return changed, role
}

// open opens a pool that is closed before the database is dropped.
func open(t *testing.T, config *pgx.ConnConfig) *sql.DB {
	t.Helper()
	pool := stdlib.OpenDB(*config)
	t.Cleanup(func() {
		ok(t, pool.Close())
	})
	return pool
}

func exec(t *testing.T, pool *sql.DB, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		if _, err := pool.ExecContext(context.Background(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

// query gives a result as text, rows by line and columns by "|".
func query(t *testing.T, pool *sql.DB, statement string, args ...any) string {
	t.Helper()
	rows, err := pool.QueryContext(context.Background(), statement, args...)
	if err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for rows.Next() {
		values := make([]any, len(columns))
		for i := range values {
			values[i] = new(any)
		}
		if err := rows.Scan(values...); err != nil {
			t.Fatal(err)
		}
		fields := make([]string, len(columns))
		for i, value := range values {
			fields[i] = fmt.Sprint(*value.(*any))
		}
		lines = append(lines, strings.Join(fields, "|"))
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

func equal(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\n got %s\nwant %s", what, got, want)
	}
}

// contains fails unless the error's text has every part.
func contains(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error: want one with %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q: want it to contain %q", err, part)
		}
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
