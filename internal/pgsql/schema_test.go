package pgsql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/gorm-idempotency/idempotency/internal/pglocal"
	"github.com/gorm-idempotency/idempotency/internal/pgsql"
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

// newDatabase creates a database and drops it when the test and its parallel subtests have ended.
func newDatabase(t *testing.T, options string) (*sql.DB, *pgx.ConnConfig) {
	t.Helper()
	config, err := server()
	ok(t, err)
	admin := stdlib.OpenDB(*config)
	name := fmt.Sprintf("pgsql_%d_%d", os.Getpid(), time.Now().UnixNano())
	exec(t, admin, "CREATE DATABASE "+name+" TEMPLATE template0 "+options)
	config = config.Copy()
	config.Database = name
	pool := stdlib.OpenDB(*config)
	t.Cleanup(func() {
		ok(t, pool.Close())
		exec(t, admin, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '"+name+"'", "DROP DATABASE "+name)
		ok(t, admin.Close())
	})
	return pool, config
}

func exec(t *testing.T, pool *sql.DB, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		if _, err := pool.ExecContext(context.Background(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// columns are the table's, as the migration creates them.
const columns = `
  source          TEXT COLLATE "C" NOT NULL,
  event_id        TEXT COLLATE "C" NOT NULL,
  payload_digest  BYTEA       NOT NULL,
  response_status SMALLINT,
  response_header JSONB,
  response_body   JSONB,
  response_raw    BYTEA,
  claimed_at      TIMESTAMPTZ NOT NULL DEFAULT now(),
  completed_at    TIMESTAMPTZ`

const (
	primaryKey = ", PRIMARY KEY (source, event_id)"
	right      = "CREATE TABLE S.keys (" + columns + primaryKey + ")"
	keyless    = "CREATE TABLE S.keys (" + columns + ")"
)

// replaced is the right table with another definition of one column, or of none if it is empty.
func replaced(column, definition string) string {
	var lines []string
	for line := range strings.SplitSeq(strings.Trim(columns, "\n"), "\n") {
		if strings.Fields(line)[0] == column {
			if definition == "" {
				continue
			}
			line = definition
		}
		lines = append(lines, strings.TrimSuffix(strings.TrimSpace(line), ","))
	}
	return "CREATE TABLE S.keys (" + strings.Join(lines, ", ") + primaryKey + ")"
}

const anyCase = `CREATE COLLATION S.any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)`

// C40 and C39: every table on which the protocol would fail is refused, and by name.
func TestCheckSchemaRefusesWrongTables(t *testing.T) {
	t.Parallel()
	pool, _ := newDatabase(t, "ENCODING 'UTF8'")
	for name, test := range map[string]struct {
		create []string
		want   []string
	}{
		"missing":           {nil, []string{"does not exist", "migrations.Up", "AutoMigrate"}},
		"view":              {[]string{"CREATE VIEW S.keys AS SELECT 1 AS source"}, []string{"it is a view"}},
		"materialized view": {[]string{"CREATE MATERIALIZED VIEW S.keys AS SELECT 1 AS source"}, []string{"it is a materialized view"}},
		"sequence":          {[]string{"CREATE SEQUENCE S.keys"}, []string{"it is a sequence"}},
		"index":             {[]string{"CREATE TABLE S.t (i int)", "CREATE INDEX keys ON S.t (i)"}, []string{"it is an index"}},
		"composite type":    {[]string{"CREATE TYPE S.keys AS (i int)"}, []string{"it is a composite type"}},
		"foreign table": {[]string{
			"CREATE FOREIGN DATA WRAPPER S", "CREATE SERVER S FOREIGN DATA WRAPPER S", "CREATE FOREIGN TABLE S.keys (i int) SERVER S",
		}, []string{"it is a foreign table"}},
		"unlogged": {[]string{strings.Replace(right, "TABLE", "UNLOGGED TABLE", 1)}, []string{"unlogged", "SET LOGGED"}},
		"row-level security": {[]string{right, "ALTER TABLE S.keys ENABLE ROW LEVEL SECURITY"},
			[]string{"row-level security", "in flight for ever", "DISABLE ROW LEVEL SECURITY"}},

		"no key": {[]string{keyless}, []string{"nothing keeps (source, event_id) unique", "ADD PRIMARY KEY (source, event_id)"}},
		"index that is not unique": {[]string{keyless, "CREATE INDEX ON S.keys (source, event_id)"},
			[]string{"nothing keeps (source, event_id) unique"}},
		"partial": {[]string{keyless, "CREATE UNIQUE INDEX mine ON S.keys (source, event_id) WHERE completed_at IS NOT NULL"},
			[]string{`"mine" is partial`, "nothing keeps"}},
		"deferrable": {[]string{keyless, "ALTER TABLE S.keys ADD CONSTRAINT mine PRIMARY KEY (source, event_id) DEFERRABLE"},
			[]string{`"mine" is deferrable`, "nothing keeps"}},
		"wider": {[]string{keyless, "ALTER TABLE S.keys ADD CONSTRAINT mine PRIMARY KEY (source, event_id, claimed_at)"},
			[]string{`"mine" is on (claimed_at, event_id, source), which lets the same key in twice`, "nothing keeps"}},
		"narrower": {[]string{keyless, "ALTER TABLE S.keys ADD CONSTRAINT mine PRIMARY KEY (event_id)"},
			[]string{`"mine" is on (event_id) alone, so different keys collide`, "nothing keeps"}},
		"narrower beside the right one": {[]string{right, "CREATE UNIQUE INDEX mine ON S.keys (event_id)"},
			[]string{`"mine" is on (event_id) alone`}},
		"deferrable beside the right one": {[]string{right, "ALTER TABLE S.keys ADD CONSTRAINT mine UNIQUE (event_id, source) DEFERRABLE"},
			[]string{`"mine" is deferrable`}},
		"expression": {[]string{keyless, "CREATE UNIQUE INDEX mine ON S.keys (lower(source), event_id)"},
			[]string{`"mine" is on (event_id, an expression), not on the key`, "nothing keeps"}},
		"other columns": {[]string{keyless, "CREATE UNIQUE INDEX mine ON S.keys (payload_digest)"},
			[]string{`"mine" is on (payload_digest), not on the key`, "nothing keeps"}},
		"invalid": {[]string{right, "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'S.keys_pkey'::regclass"},
			[]string{`"keys_pkey" is invalid`, "nothing keeps"}},
		"nondeterministic column": {[]string{anyCase, replaced("event_id", "event_id TEXT COLLATE S.any_case NOT NULL")},
			[]string{"event_id has a nondeterministic collation", `COLLATE "C"`}},
		"nondeterministic index beside the right one": {
			[]string{anyCase, right, "CREATE UNIQUE INDEX mine ON S.keys (source COLLATE S.any_case, event_id)"},
			[]string{`"mine" has a nondeterministic collation`}},

		"partitioned by time": {[]string{
			strings.Replace(right, "event_id)", "event_id, claimed_at)", 1) + " PARTITION BY RANGE (claimed_at)",
			"CREATE TABLE S.p PARTITION OF S.keys DEFAULT",
		}, []string{"partitioned by range", "PARTITION BY HASH", "keys_pkey", "claimed_at", "lets the same key in twice"}},
		"partitioned by list": {[]string{right + " PARTITION BY LIST (source)", "CREATE TABLE S.p PARTITION OF S.keys DEFAULT"},
			[]string{"partitioned by list", "PARTITION BY HASH"}},
		"partitioned with a key of the partitions only": {[]string{
			keyless + " PARTITION BY HASH (source, event_id)",
			"CREATE TABLE S.p PARTITION OF S.keys FOR VALUES WITH (MODULUS 1, REMAINDER 0)", "CREATE UNIQUE INDEX ON S.p (source, event_id)",
		}, []string{"nothing keeps"}},
		"partitioned with a key that lacks a partition's": {[]string{
			keyless + " PARTITION BY HASH (source, event_id)",
			"CREATE TABLE S.p PARTITION OF S.keys FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
			"CREATE UNIQUE INDEX mine ON ONLY S.keys (source, event_id)",
		}, []string{`"mine" is invalid`, "nothing keeps"}},
		"a partition is missing": {[]string{
			right + " PARTITION BY HASH (source, event_id)",
			"CREATE TABLE S.p0 PARTITION OF S.keys FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
			"CREATE TABLE S.p1 PARTITION OF S.keys FOR VALUES WITH (MODULUS 6, REMAINDER 1)",
			"CREATE TABLE S.p5 PARTITION OF S.keys FOR VALUES WITH (MODULUS 6, REMAINDER 5)",
		}, []string{"a partition is missing"}},
		"no partition": {[]string{right + " PARTITION BY HASH (source, event_id)"}, []string{"no partition"}},
		"unlogged partition": {[]string{
			right + " PARTITION BY HASH (source, event_id)",
			"CREATE UNLOGGED TABLE S.lossy PARTITION OF S.keys FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
		}, []string{"unlogged partitions lossy"}},

		"source missing":          {[]string{replaced("completed_at", "")}, []string{"the column completed_at is missing"}},
		"source varchar":          {[]string{replaced("source", "source VARCHAR(40)")}, []string{"source is character varying(40): want text"}},
		"event_id uuid":           {[]string{replaced("event_id", "event_id UUID")}, []string{"event_id is uuid: want text"}},
		"payload_digest text":     {[]string{replaced("payload_digest", "payload_digest TEXT")}, []string{"payload_digest is text: want bytea"}},
		"response_status integer": {[]string{replaced("response_status", "response_status INT")}, []string{"response_status is integer: want smallint"}},
		"response_header json":    {[]string{replaced("response_header", "response_header JSON")}, []string{"response_header is json: want jsonb"}},
		"response_body text":      {[]string{replaced("response_body", "response_body TEXT")}, []string{"response_body is text: want jsonb"}},
		"response_raw text":       {[]string{replaced("response_raw", "response_raw TEXT")}, []string{"response_raw is text: want bytea"}},
		"claimed_at timestamp":    {[]string{replaced("claimed_at", "claimed_at TIMESTAMP")}, []string{"claimed_at is timestamp without time zone: want"}},
		"completed_at date":       {[]string{replaced("completed_at", "completed_at DATE")}, []string{"completed_at is date: want"}},
		"a type of that name":     {[]string{"CREATE DOMAIN S.text AS varchar", replaced("source", "source S.text")}, []string{"the column source is "}},
		"answer not null": {[]string{replaced("response_status", "response_status SMALLINT NOT NULL")},
			[]string{"response_status is NOT NULL, and a claim leaves it empty"}},
		"generated": {[]string{replaced("completed_at", "completed_at TIMESTAMPTZ GENERATED ALWAYS AS (claimed_at) STORED")},
			[]string{"completed_at is generated"}},
		"more columns": {[]string{replaced("completed_at", "completed_at TIMESTAMPTZ, tenant INT NOT NULL")},
			[]string{"tenant is NOT NULL without a default"}},
		"everything at once": {[]string{"CREATE UNLOGGED TABLE S.keys (source INT, tenant INT NOT NULL)"},
			[]string{"unlogged", "source is integer", "event_id is missing", "response_raw is missing", "tenant is NOT NULL", "nothing keeps"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := pgsql.CheckSchema(context.Background(), pool, create(t, pool, test.create))
			if !errors.Is(err, pgsql.ErrSchema) {
				t.Fatalf("got %v, want an error that wraps ErrSchema", err)
			}
			for _, part := range test.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q: want it to contain %q", err, part)
				}
			}
			if !strings.Contains(err.Error(), ".keys ") {
				t.Errorf("%q does not name the table", err)
			}
		})
	}
}

func TestCheckSchemaAcceptsRightTables(t *testing.T) {
	t.Parallel()
	pool, _ := newDatabase(t, "ENCODING 'UTF8'")
	for name, statements := range map[string][]string{
		"the migration's":    {right},
		"unique index":       {keyless, "CREATE UNIQUE INDEX ON S.keys (source, event_id)"},
		"other order":        {keyless, "CREATE UNIQUE INDEX ON S.keys (event_id, source)"},
		"unique constraint":  {keyless, "ALTER TABLE S.keys ADD UNIQUE (source, event_id) INCLUDE (claimed_at)"},
		"default collation":  {replaced("source", "source TEXT NOT NULL")},
		"other columns":      {replaced("completed_at", "completed_at TIMESTAMPTZ NOT NULL, id BIGINT GENERATED ALWAYS AS IDENTITY UNIQUE, note TEXT")},
		"dropped column":     {right, "ALTER TABLE S.keys ADD gone INT NOT NULL", "ALTER TABLE S.keys DROP gone"},
		"millisecond":        {replaced("claimed_at", "claimed_at TIMESTAMPTZ(3) NOT NULL")},
		"partial one beside": {right, "CREATE UNIQUE INDEX ON S.keys (source, event_id) WHERE completed_at IS NULL"},
		"wider one beside":   {right, "CREATE UNIQUE INDEX ON S.keys (source, event_id, claimed_at)"},
		"partitioned by hash": {
			right + " PARTITION BY HASH (source, event_id)",
			"CREATE TABLE S.p0 PARTITION OF S.keys FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
			"CREATE TABLE S.p1 PARTITION OF S.keys FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
		},
		"partitioned by hashes of different moduli": {
			right + " PARTITION BY HASH (source, event_id)",
			"CREATE TABLE S.p0 PARTITION OF S.keys FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
			"CREATE TABLE S.p1 PARTITION OF S.keys FOR VALUES WITH (MODULUS 6, REMAINDER 1)",
			"CREATE TABLE S.p3 PARTITION OF S.keys FOR VALUES WITH (MODULUS 6, REMAINDER 3)",
			"CREATE TABLE S.p5 PARTITION OF S.keys FOR VALUES WITH (MODULUS 6, REMAINDER 5)",
		},
		"partitioned by hash of the event": {
			right + " PARTITION BY HASH (event_id)", "CREATE TABLE S.p PARTITION OF S.keys FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ok(t, pgsql.CheckSchema(context.Background(), pool, create(t, pool, statements)))
		})
	}
}

// create runs statements in a schema of their own, which they call S, and gives the table keys in it.
func create(t *testing.T, pool *sql.DB, statements []string) pgsql.Table {
	t.Helper()
	schema := fmt.Sprintf("s_%d", time.Now().UnixNano())
	exec(t, pool, "CREATE SCHEMA "+schema)
	for _, statement := range statements {
		statement = strings.ReplaceAll(statement, "S.", schema+".")
		exec(t, pool, strings.ReplaceAll(strings.ReplaceAll(statement, "WRAPPER S", "WRAPPER "+schema), "SERVER S", "SERVER "+schema))
	}
	return pgsql.Table{Schema: schema, Name: "keys"}
}

// The name is resolved as a claim resolves it.
func TestCheckSchemaFollowsTheSearchPath(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool, config := newDatabase(t, "ENCODING 'UTF8'")
	exec(t, pool, "CREATE SCHEMA app", `CREATE SCHEMA "App"`, strings.Replace(right, "S.keys", `public.keys`, 1),
		strings.Replace(keyless, "S.keys", "app.keys", 1), strings.Replace(right, "S.keys", `"App"."Keys"`, 1))
	config = config.Copy()
	config.RuntimeParams["search_path"] = `app, "App", public`
	app := stdlib.OpenDB(*config)
	defer app.Close()
	for _, test := range []struct {
		q      pgsql.Querier
		table  string
		usable bool
	}{
		{pool, "keys", true},
		{app, "keys", false},
		{app, "public.keys", true},
		{pool, "Keys", false},
		{app, "Keys", true},
		{pool, "App.Keys", true},
		{pool, "app.Keys", false},
		{pool, "nowhere.keys", false},
	} {
		table, err := pgsql.ParseTable(test.table)
		ok(t, err)
		err = pgsql.CheckSchema(ctx, test.q, table)
		if test.usable != (err == nil) || err != nil && !errors.Is(err, pgsql.ErrSchema) {
			t.Errorf("%s: usable %v, got %v", test.table, test.usable, err)
		}
	}

	// A temporary table comes first in every search path.
	conn, err := pool.Conn(ctx)
	ok(t, err)
	defer conn.Close()
	_, err = conn.ExecContext(ctx, strings.Replace(strings.Replace(right, "S.keys", "keys", 1), "TABLE", "TEMPORARY TABLE", 1))
	ok(t, err)
	err = pgsql.CheckSchema(ctx, conn, pgsql.Table{Name: "keys"})
	if !errors.Is(err, pgsql.ErrSchema) || !strings.Contains(err.Error(), "temporary") {
		t.Errorf("temporary: got %v", err)
	}
}

func TestCheckSchemaRefusesOtherEncodings(t *testing.T) {
	t.Parallel()
	pool, _ := newDatabase(t, "ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'")
	exec(t, pool, strings.Replace(right, "S.", "", 1))
	err := pgsql.CheckSchema(context.Background(), pool, pgsql.Table{Name: "keys"})
	if !errors.Is(err, pgsql.ErrSchema) || !strings.Contains(err.Error(), "SQL_ASCII") {
		t.Errorf("got %v", err)
	}
}

// It works for a role that may do nothing but see the schema, in a transaction, in every one of pgx's modes, and it
// leaves no rows open: a pool of one would hang.
func TestCheckSchemaNeedsLittle(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	pool, config := newDatabase(t, "ENCODING 'UTF8'")
	role := fmt.Sprintf("role_%d", time.Now().UnixNano())
	exec(t, pool, "CREATE SCHEMA app", strings.Replace(right, "S.", "app.", 1), "CREATE ROLE "+role+" LOGIN PASSWORD 'x'")
	defer exec(t, pool, "DROP OWNED BY "+role, "DROP ROLE "+role)
	table := pgsql.Table{Schema: "app", Name: "keys"}
	config = config.Copy()
	config.User, config.Password = role, "x"
	for granted := range 2 {
		for _, mode := range []pgx.QueryExecMode{
			pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec,
			pgx.QueryExecModeSimpleProtocol,
		} {
			config.DefaultQueryExecMode = mode
			one := stdlib.OpenDB(*config)
			one.SetMaxOpenConns(1)
			err := pgsql.CheckSchema(ctx, one, table)
			if granted == 0 && (err == nil || errors.Is(err, pgsql.ErrSchema) || !strings.Contains(err.Error(), "permission denied")) {
				t.Errorf("%v: without the right to see it: got %v", mode, err)
			}
			if granted == 1 {
				ok(t, err)
				tx, err := one.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
				ok(t, err)
				ok(t, pgsql.CheckSchema(ctx, tx, table))
				ok(t, tx.Commit())
			}
			ok(t, one.Close())
		}
		exec(t, pool, "GRANT USAGE ON SCHEMA app TO "+role)
	}
	cancel()
	if err := pgsql.CheckSchema(ctx, pool, table); !errors.Is(err, context.Canceled) || errors.Is(err, pgsql.ErrSchema) {
		t.Errorf("cancelled: got %v", err)
	}
}
