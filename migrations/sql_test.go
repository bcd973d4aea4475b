package migrations_test

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/gorm-idempotency/idempotency/migrations"
)

// schemaDump is everything that a migration makes, as the catalogue describes it.
const schemaDump = `
SELECT c.relname, c.relkind::text, c.reloptions::text, pg_get_expr(c.relpartbound, c.oid), pg_get_partkeydef(c.oid),
       (SELECT string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || ' ' || a.attnotnull || ' ' || a.attcollation, ', ' ORDER BY a.attnum)
        FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0),
       CASE WHEN c.relkind IN ('i', 'I') THEN pg_get_indexdef(c.oid) END
FROM pg_class c WHERE c.relnamespace = 'app'::regnamespace ORDER BY c.relname`

// What SQL prints does what Up does, also twice, before it and after it; and a role that may create nothing then finds
// nothing to do.
func TestSQLDoesWhatUpDoes(t *testing.T) {
	t.Parallel()
	for _, opts := range [][]migrations.Option{
		{migrations.WithTable("app.keys")},
		{migrations.WithTable("app.Keys"), migrations.WithVersionTable("app.Versions")},
		{migrations.WithTable("app.keys"), migrations.WithPartitions(4)},
	} {
		ctx := context.Background()
		dsn := emptyDatabase(t)
		printed, applied := open(t, dsn), open(t, emptyDatabase(t))
		exec(t, printed, "CREATE SCHEMA app")
		exec(t, applied, "CREATE SCHEMA app")
		ok(t, migrations.Up(ctx, applied, opts...))
		script, err := migrations.SQL(opts...)
		ok(t, err)
		for range 2 {
			exec(t, printed, script)
			equal(t, "schema", query(t, printed, schemaDump), query(t, applied, schemaDump))
			ok(t, migrations.Validate(ctx, printed, opts...))
			ok(t, migrations.Up(ctx, open(t, withSetting(dsn, "default_transaction_read_only", "on")), opts...))
		}
		exec(t, applied, script)
		list, err := migrations.Status(ctx, printed, opts...)
		ok(t, err)
		for _, status := range list {
			if !status.Applied() {
				t.Errorf("%s is not recorded", status.Name)
			}
		}
	}
}

// The script is one transaction: where it fails, nothing is left of it.
func TestSQLIsOneTransaction(t *testing.T) {
	t.Parallel()
	pool := open(t, emptyDatabase(t))
	exec(t, pool, "CREATE TABLE idempotency_keys_p3 (id int)")
	script, err := migrations.SQL(migrations.WithPartitions(4))
	ok(t, err)
	conn, err := pool.Conn(context.Background())
	ok(t, err)
	_, err = conn.ExecContext(context.Background(), script)
	contains(t, err, "not with 4 partitions, or one of their names is taken")
	_, err = conn.ExecContext(context.Background(), "COMMIT") // psql goes on after an error
	ok(t, errors.Join(err, conn.Close()))
	equal(t, "relations", query(t, pool, relations), "public.idempotency_keys_p3")
}

// An unqualified table stays so, for the search path of whoever runs the script.
func TestSQLNamesNoSchemaThatNobodyNamed(t *testing.T) {
	t.Parallel()
	script, err := migrations.SQL(migrations.WithPartitions(2))
	ok(t, err)
	if strings.Contains(script, "public") || strings.Contains(script, "+goose") || strings.Contains(script, "$1") ||
		!strings.HasPrefix(script, "BEGIN;\n") || !strings.HasSuffix(script, "COMMIT;\n") {
		t.Errorf("%s", script)
	}
	files, err := fs.Glob(migrations.FS, "*.sql")
	ok(t, err)
	if recorded := strings.Count(script, `INSERT INTO "idempotency_goose_version"`); recorded != len(files)+1 {
		t.Errorf("%d versions are recorded, want 0 and %d files", recorded, len(files))
	}
	for _, table := range []string{"a b", "a.b.c", strings.Repeat("a", 49), "keys; DROP TABLE x"} {
		_, err := migrations.SQL(migrations.WithTable(table))
		contains(t, err, "idempotency: migration SQL: table: ")
	}
}
