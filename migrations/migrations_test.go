package migrations_test

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"strings"
	"testing"
	"time"

	"github.com/pressly/goose/v3"

	"github.com/gorm-idempotency/idempotency/internal/pgsql"
	"github.com/gorm-idempotency/idempotency/migrations"
)

const (
	versionsOf = "SELECT version_id, is_applied FROM "
	relations  = `SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname NOT LIKE 'pg\_%' AND n.nspname <> 'information_schema' AND c.relkind IN ('r', 'p') ORDER BY 1`
)

// C39: equality by bytes, whatever the database's collation, which an upgrade of the collation library cannot corrupt.
func TestUpCreatesTheDocumentedTable(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ table, schema, name, prefix string }{
		{"", "public", "idempotency_keys", "idx_idempotency_keys"},
		{"app.keys", "app", "keys", "idx_app_keys"},
		{"Keys", "public", "Keys", "idx_Keys"},
		{"App.idempotency_keys", "App", "idempotency_keys", "idx_App_idempotency_keys"},
	} {
		t.Run(test.table, func(t *testing.T) {
			t.Parallel()
			pool := open(t, emptyDatabase(t))
			exec(t, pool, `CREATE SCHEMA app`, `CREATE SCHEMA "App"`)
			ok(t, migrations.Up(context.Background(), pool, migrations.WithTable(test.table)))

			table := `"` + test.schema + `"."` + test.name + `"`
			equal(t, "columns", query(t, pool, `
SELECT attname, format_type(atttypid, atttypmod), attnotnull, coalesce(l.collname, '-'), pg_get_expr(d.adbin, d.adrelid)
FROM pg_attribute a LEFT JOIN pg_collation l ON l.oid = a.attcollation
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = '`+table+`'::regclass AND attnum > 0 ORDER BY attnum`), `source|text|true|C|<nil>
event_id|text|true|C|<nil>
payload_digest|bytea|true|-|<nil>
response_status|smallint|false|-|<nil>
response_header|jsonb|false|-|<nil>
response_body|jsonb|false|-|<nil>
response_raw|bytea|false|-|<nil>
claimed_at|timestamp with time zone|true|-|now()
completed_at|timestamp with time zone|false|-|<nil>`)
			equal(t, "storage", query(t, pool, `SELECT reloptions::text FROM pg_class WHERE oid = '`+table+`'::regclass`),
				"{fillfactor=65}")
			equal(t, "indexes", query(t, pool, `
SELECT c.relname, (SELECT nspname FROM pg_namespace WHERE oid = c.relnamespace), i.indisprimary, am.amname, coalesce(c.reloptions::text, ''),
       pg_get_expr(i.indpred, i.indrelid), (SELECT string_agg(attname, ',' ORDER BY attnum) FROM pg_attribute WHERE attrelid = c.oid)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am am ON am.oid = c.relam
WHERE i.indrelid = '`+table+`'::regclass ORDER BY i.indisprimary, c.relname COLLATE "C" DESC`), strings.Join([]string{
				test.prefix + "_incomplete|" + test.schema + "|false|btree||(completed_at IS NULL)|claimed_at",
				test.prefix + "_claimed_at|" + test.schema + "|false|brin|{autosummarize=on}|<nil>|claimed_at",
				test.name + "_pkey|" + test.schema + "|true|btree||<nil>|source,event_id",
			}, "\n"))
		})
	}
}

func TestUpValidateDownValidate(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"", "app.keys", "app.Keys"} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			pool := open(t, emptyDatabase(t))
			exec(t, pool, "CREATE SCHEMA app")
			with := migrations.WithTable(table)
			for round := range 2 {
				err := migrations.Validate(ctx, pool, with)
				if !errors.Is(err, pgsql.ErrSchema) {
					t.Fatalf("round %d: Validate before Up: %v", round, err)
				}
				contains(t, err, "idempotency: validate: the table ", "does not exist", "migrations.Up")
				ok(t, migrations.Up(ctx, pool, with))
				ok(t, migrations.Validate(ctx, pool, with))
				ok(t, migrations.Up(ctx, pool, with))
				ok(t, migrations.Down(ctx, pool, with))
			}
			if err := migrations.Validate(ctx, pool, with); !errors.Is(err, pgsql.ErrSchema) {
				t.Fatalf("Validate after Down: %v", err)
			}
			ok(t, migrations.Down(ctx, pool, with)) // nothing is left to roll back
		})
	}
}

func TestStatusOnlyReads(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	dsn := emptyDatabase(t)
	readOnly := open(t, withSetting(dsn, "default_transaction_read_only", "on"))
	before, err := migrations.Status(ctx, readOnly)
	ok(t, err)
	if len(before) != 1 || before[0].Version != 1 || before[0].Applied() || before[0].Name != "00001_create_idempotency_keys.sql" {
		t.Errorf("before Up: %+v", before)
	}
	ok(t, migrations.Down(ctx, readOnly)) // nothing to roll back, and nothing created to find that out
	equal(t, "relations", query(t, readOnly, relations), "")

	// The session's time zone must not shift AppliedAt, as goose's own timestamp without one would be.
	ok(t, migrations.Up(ctx, open(t, withSetting(dsn, "timezone", "Asia/Tokyo"))))
	after, err := migrations.Status(ctx, readOnly)
	ok(t, err)
	if len(after) != 1 || !after[0].Applied() || time.Since(after[0].AppliedAt).Abs() > time.Hour {
		t.Errorf("after Up: %+v", after)
	}
	ok(t, migrations.Up(ctx, readOnly)) // nothing pending: it only reads
}

func TestTablesDoNotShareVersions(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := open(t, emptyDatabase(t))
	exec(t, pool, "CREATE SCHEMA app")
	tables := []string{"", "keys", "Keys", "idempotency", "app.keys", "app.idempotency_keys"}
	for _, table := range tables {
		ok(t, migrations.Up(ctx, pool, migrations.WithTable(table)))
	}
	equal(t, "relations", query(t, pool, relations), `app.idempotency_goose_version
app.idempotency_keys
app.keys
app.keys_goose_versions
public.Keys
public.Keys_goose_versions
public.idempotency
public.idempotency_goose_version
public.idempotency_goose_versions
public.idempotency_keys
public.keys
public.keys_goose_versions`)
	// The default table by its whole name is the same table, with the same versions.
	ok(t, migrations.Down(ctx, pool, migrations.WithTable("public.idempotency_keys")))
	if err := migrations.Validate(ctx, pool); !errors.Is(err, pgsql.ErrSchema) {
		t.Error(err)
	}
}

// A version table that two tables share would have the second one skipped in silence.
func TestUpTellsOfASharedVersionTable(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := open(t, emptyDatabase(t))
	shared := migrations.WithVersionTable("versions")
	ok(t, migrations.Up(ctx, pool, shared))
	err := migrations.Up(ctx, pool, shared, migrations.WithTable("other"))
	contains(t, err, "idempotency: migrate up: ", `recorded as applied in "public"."versions"`, "the table other", "does not exist")
	if !errors.Is(err, pgsql.ErrSchema) {
		t.Error(err)
	}
}

func TestVersionTableMayLieInAnotherSchema(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := open(t, emptyDatabase(t))
	exec(t, pool, "CREATE SCHEMA app", "CREATE SCHEMA ops")
	opts := []migrations.Option{migrations.WithTable("app.keys"), migrations.WithVersionTable("ops.Versions")}
	ok(t, migrations.Up(ctx, pool, opts...))
	equal(t, "relations", query(t, pool, relations), "app.keys\nops.Versions")
	contains(t, migrations.Up(ctx, pool, migrations.WithVersionTable("missing.v")), `the schema "missing" does not exist`)
}

// unreachable fails the test when anything connects.
type unreachable struct{ t *testing.T }

func (u unreachable) Connect(context.Context) (driver.Conn, error) {
	u.t.Error("SQL was about to run")
	return nil, errors.New("unreachable")
}

func (u unreachable) Driver() driver.Driver { return nil }

func TestBadInputIsRefusedBeforeAnySQL(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := sql.OpenDB(unreachable{t})
	defer pool.Close()
	calls := map[string]func(*sql.DB, ...migrations.Option) error{
		"up":       func(db *sql.DB, o ...migrations.Option) error { return migrations.Up(ctx, db, o...) },
		"down":     func(db *sql.DB, o ...migrations.Option) error { return migrations.Down(ctx, db, o...) },
		"status":   func(db *sql.DB, o ...migrations.Option) error { _, err := migrations.Status(ctx, db, o...); return err },
		"validate": func(db *sql.DB, o ...migrations.Option) error { return migrations.Validate(ctx, db, o...) },
	}
	for name, call := range calls {
		contains(t, call(nil), "idempotency: ", "*sql.DB is nil")
		for _, table := range []string{
			"a.b.c", ".", "a.", ".a", "a b", `a"b`, "a;DROP TABLE x", "1a", "a-b", "ä", "a\nb", "a%sb", "$TABLE", "${TABLE}",
			strings.Repeat("a", 64), "app." + strings.Repeat("a", 45), strings.Repeat("a", 49),
		} {
			contains(t, call(pool, migrations.WithTable(table)), "idempotency: ", "table: ")
		}
		for _, table := range []string{"a.b.c", "a b", strings.Repeat("a", 64), "idempotency_keys"} {
			contains(t, call(pool, migrations.WithVersionTable(table)), "idempotency: ", "version table: ")
		}
		if t.Failed() {
			t.Fatalf("in %s", name)
		}
	}
}

func TestTheLongestNameWorks(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := open(t, emptyDatabase(t))
	exec(t, pool, "CREATE SCHEMA app")
	for _, table := range []string{strings.Repeat("k", 48), "app." + strings.Repeat("k", 44)} {
		ok(t, migrations.Up(ctx, pool, migrations.WithTable(table)))
		ok(t, migrations.Up(ctx, pool, migrations.WithTable(table)))
	}
}

func TestTheEnvironmentCannotRedirect(t *testing.T) {
	for _, name := range []string{
		"TABLE", "table", "idempotency_keys", "IDEMPOTENCY_KEYS", "IDEMPOTENCY_TABLE", "GOOSE_TABLE", "GOOSE_DBSTRING",
		"GOOSE_DRIVER", "GOOSE_MIGRATION_DIR", "SCHEMA",
	} {
		t.Setenv(name, "elsewhere")
	}
	ctx := context.Background()
	pool := open(t, emptyDatabase(t))
	ok(t, migrations.Up(ctx, pool))
	equal(t, "relations", query(t, pool, relations), "public.idempotency_goose_version\npublic.idempotency_keys")

	files, err := fs.Glob(migrations.FS, "*")
	ok(t, err)
	for _, name := range files {
		text, err := fs.ReadFile(migrations.FS, name)
		ok(t, err)
		if bytes.Contains(bytes.ToUpper(text), []byte("ENVSUB")) || bytes.ContainsRune(text, '$') {
			t.Errorf("%s reads the environment", name)
		}
	}
}

func TestOneConnectionIsEnoughAndStaysOpen(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	pool := open(t, emptyDatabase(t))
	pool.SetMaxOpenConns(1)
	ok(t, migrations.Up(ctx, pool))
	ok(t, migrations.Validate(ctx, pool))
	_, err := migrations.Status(ctx, pool)
	ok(t, err)
	ok(t, migrations.Down(ctx, pool))
	ok(t, pool.PingContext(ctx))
	if inUse := pool.Stats().InUse; inUse != 0 {
		t.Errorf("%d connections are still in use", inUse)
	}
	// Nothing is left on the connection, such as a session's lock.
	equal(t, "locks", query(t, pool, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"), "0")
}

func TestCancelled(t *testing.T) {
	t.Parallel()
	pool := open(t, emptyDatabase(t))
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	_, status := migrations.Status(cancelled, pool)
	for _, err := range []error{
		migrations.Up(cancelled, pool), migrations.Down(cancelled, pool), status, migrations.Validate(cancelled, pool),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	}
	equal(t, "relations", query(t, pool, relations), "")
}

// holdTheTurn begins a transaction that holds the lock which migrations take in turns.
func holdTheTurn(t *testing.T, pool *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := pool.BeginTx(context.Background(), nil)
	ok(t, err)
	if _, err := tx.Exec("SELECT pg_advisory_xact_lock(" + migrations.LockID + ")"); err != nil {
		t.Fatal(err)
	}
	return tx
}

func TestWaitingForAnotherEndsWithTheContext(t *testing.T) {
	t.Parallel()
	dsn := emptyDatabase(t)
	holder := holdTheTurn(t, open(t, dsn))
	defer holder.Rollback()
	pool := open(t, dsn)
	for _, versioned := range []bool{false, true} {
		if versioned { // the wait is then within the migration
			ok(t, holder.Rollback())
			ok(t, migrations.Up(context.Background(), pool))
			ok(t, migrations.Down(context.Background(), pool))
			holder = holdTheTurn(t, open(t, dsn))
		}
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		start := time.Now()
		err := migrations.Up(ctx, pool)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("took %v", took)
		}
	}
	ok(t, holder.Rollback())
	ok(t, migrations.Up(context.Background(), pool))
}

func TestARoleWithoutRightsIsToldWhatToGrant(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	dsn := emptyDatabase(t)
	owner := open(t, dsn)
	exec(t, owner, "CREATE SCHEMA app")
	as, role := asRole(t, dsn)
	exec(t, owner, "REVOKE CREATE ON SCHEMA public FROM PUBLIC", "GRANT USAGE ON SCHEMA app TO "+role)
	pool := open(t, as)

	start := time.Now()
	err := migrations.Up(ctx, pool, migrations.WithTable("app.keys"))
	contains(t, err, "idempotency: migrate up: no migration was applied", `in the schema "app"`, `GRANT CREATE ON SCHEMA "app"`)
	if took := time.Since(start); took > time.Second {
		t.Errorf("it took %v to find out: goose's retries?", took)
	}
	contains(t, migrations.Up(ctx, pool), `GRANT CREATE ON SCHEMA "public"`)
	equal(t, "relations", query(t, owner, relations), "")

	// Once the owner has migrated, the same role's Up has nothing to do.
	ok(t, migrations.Up(ctx, owner, migrations.WithTable("app.keys")))
	exec(t, owner, "GRANT SELECT ON app.keys_goose_versions TO "+role)
	ok(t, migrations.Up(ctx, pool, migrations.WithTable("app.keys")))
	ok(t, migrations.Validate(ctx, pool, migrations.WithTable("app.keys")))
	contains(t, migrations.Down(ctx, pool, migrations.WithTable("app.keys")), "00001_create_idempotency_keys.sql failed", "must be owner")
	ok(t, migrations.Validate(ctx, pool, migrations.WithTable("app.keys")))

	readOnly := open(t, withSetting(dsn, "default_transaction_read_only", "on"))
	contains(t, migrations.Up(ctx, readOnly), "read-only transaction")
}

// C59
func TestARoleWithItsOwnSchemaAndSearchPath(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	dsn := emptyDatabase(t)
	owner := open(t, dsn)
	as, role := asRole(t, dsn, "search_path = app")
	exec(t, owner, "REVOKE ALL ON SCHEMA public FROM PUBLIC", "CREATE SCHEMA app AUTHORIZATION "+role)
	pool := open(t, as)
	for range 2 {
		ok(t, migrations.Up(ctx, pool, migrations.WithVersionTable("our_versions")))
	}
	ok(t, migrations.Validate(ctx, pool))
	equal(t, "relations", query(t, owner, relations), "app.idempotency_keys\napp.our_versions")
	equal(t, "versions", query(t, owner, versionsOf+"app.our_versions ORDER BY id"), "0|true\n1|true")
	// C14: nothing of ours is resolved by anybody's search path once the name has a schema.
	ok(t, migrations.Up(ctx, owner, migrations.WithTable("app.idempotency_keys"), migrations.WithVersionTable("our_versions")))
	equal(t, "relations", query(t, owner, relations), "app.idempotency_keys\napp.our_versions")
}

func TestASchemaThatNeedsQuoting(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	dsn := emptyDatabase(t)
	exec(t, open(t, dsn), `CREATE SCHEMA "Tenant-1; ""x"" idempotency_keys; it's $$ 100%"`)
	pool := open(t, withSetting(dsn, "search_path", `"Tenant-1; ""x"" idempotency_keys; it's $$ 100%"`))
	for _, n := range []int{0, 2} {
		with := migrations.WithPartitions(n)
		ok(t, migrations.Up(ctx, pool, with))
		ok(t, migrations.Up(ctx, pool, with))
		const prefix = `Tenant-1; "x" idempotency_keys; it's $$ 100%.idempotency_`
		want := prefix + "goose_version\n" + prefix + "keys"
		for i := range n {
			want += fmt.Sprintf("\n%skeys_p%d", prefix, i)
		}
		equal(t, "relations", query(t, pool, relations), want)
		ok(t, migrations.Down(ctx, pool))
	}
}

func TestUpSaysWhereItCannotCreate(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	dsn := emptyDatabase(t)
	pool := open(t, dsn)
	contains(t, migrations.Up(ctx, pool, migrations.WithTable("app.keys")), `the schema "app" does not exist`, `CREATE SCHEMA "app"`)
	contains(t, migrations.Up(ctx, open(t, withSetting(dsn, "search_path", "nowhere"))), "search path", "WithTable")

	// Two configured names may make one index name: app.keys's and app_keys's are both idx_app_keys_….
	exec(t, pool, "CREATE SCHEMA app")
	ok(t, migrations.Up(ctx, pool, migrations.WithTable("app.keys")))
	contains(t, migrations.Up(ctx, open(t, withSetting(dsn, "search_path", "app")), migrations.WithTable("app_keys")),
		"idx_app_keys_claimed_at", "idx_app_keys_incomplete")
	equal(t, "relations", query(t, pool, relations), "app.keys\napp.keys_goose_versions")
}

// A schema that comes first in the search path would hide the keys that claims have been written to.
func TestUpDoesNotHideATableInUse(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	dsn := emptyDatabase(t)
	pool := open(t, dsn)
	ok(t, migrations.Up(ctx, pool))
	exec(t, pool, "CREATE SCHEMA app")
	both := open(t, withSetting(dsn, "search_path", "app, public"))
	contains(t, migrations.Up(ctx, both), "public.idempotency_keys", `"app" would hide it`)
	ok(t, migrations.Up(ctx, both, migrations.WithTable("app.idempotency_keys"))) // said so: meant so
}

func TestAFailedMigrationIsRolledBack(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := open(t, emptyDatabase(t))
	exec(t, pool, "CREATE TABLE idempotency_keys (id int)")
	contains(t, migrations.Up(ctx, pool), "00001_create_idempotency_keys.sql failed (0 before it", "claimed_at")
	equal(t, "versions", query(t, pool, versionsOf+"idempotency_goose_version"), "0|true")
	exec(t, pool, "DROP TABLE idempotency_keys")
	ok(t, migrations.Up(ctx, pool))

	// A table with the columns and the wrong key lets the statements through, and is refused all the same.
	exec(t, pool, "CREATE SCHEMA app", "CREATE TABLE app.keys (LIKE idempotency_keys INCLUDING DEFAULTS)",
		"ALTER TABLE app.keys ADD PRIMARY KEY (source, event_id, claimed_at)")
	err := migrations.Up(ctx, pool, migrations.WithTable("app.keys"))
	if !errors.Is(err, pgsql.ErrSchema) {
		t.Errorf("got %v", err)
	}
	contains(t, err, "keys_pkey", "claimed_at", "lets the same key in twice")
}

// The files are plain goose files: the goose command runs them, and Up takes the table over.
func TestGooseRunsTheFiles(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := open(t, emptyDatabase(t))
	provider, err := goose.NewProvider(goose.DialectPostgres, pool, migrations.FS, goose.WithDisableGlobalRegistry(true))
	ok(t, err)
	_, err = provider.Up(ctx)
	ok(t, err)
	ok(t, migrations.Validate(ctx, pool))
	ok(t, migrations.Up(ctx, pool))
	equal(t, "relations", query(t, pool, relations),
		"public.goose_db_version\npublic.idempotency_goose_version\npublic.idempotency_keys")
	_, err = provider.Down(ctx)
	ok(t, err)
	contains(t, migrations.Validate(ctx, pool), "does not exist")

	// The command can read the versions that Up records.
	ok(t, migrations.Down(ctx, pool))
	ok(t, migrations.Up(ctx, pool))
	command, err := goose.NewProvider(goose.DialectPostgres, pool, migrations.FS, goose.WithTableName("idempotency_goose_version"),
		goose.WithDisableGlobalRegistry(true))
	ok(t, err)
	list, err := command.Status(ctx)
	ok(t, err)
	if len(list) != 1 || list[0].State != goose.StateApplied {
		t.Errorf("%+v", list)
	}
}

// Two processes may run a migration one after the other: see takeTurns.
func TestEveryMigrationToleratesASecondRun(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := open(t, emptyDatabase(t))
	provider, err := goose.NewProvider(goose.DialectPostgres, pool, migrations.FS, goose.WithDisableVersioning(true),
		goose.WithDisableGlobalRegistry(true))
	ok(t, err)
	for range 2 {
		_, err := provider.Up(ctx)
		ok(t, err)
	}
	for range 2 {
		_, err := provider.DownTo(ctx, 0)
		ok(t, err)
	}
}

func TestNothingIsLogged(t *testing.T) {
	var text bytes.Buffer
	before := log.Writer()
	log.SetOutput(&text)
	defer log.SetOutput(before)
	ctx := context.Background()
	pool := open(t, emptyDatabase(t))
	ok(t, migrations.Up(ctx, pool))
	ok(t, migrations.Up(ctx, pool))
	ok(t, migrations.Down(ctx, pool))
	equal(t, "log", text.String(), "")
}
