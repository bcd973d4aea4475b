package migrations_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/internal/conformance"
	"github.com/gorm-idempotency/idempotency/internal/pgsql"
	"github.com/gorm-idempotency/idempotency/migrations"
)

// Each partition is what the ordinary table is: the same key, indexes and room for updates. A partitioned parent has none of
// that itself.
func TestUpCreatesPartitions(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		table, quoted string
		n             int
	}{
		{"", "public.idempotency_keys", 2}, {"app.keys", "app.keys", 3}, {"App.Keys", `"App"."Keys"`, 16},
		{strings.Repeat("k", 48), strings.Repeat("k", 48), 256},
	} {
		t.Run(fmt.Sprintf("%s in %d", test.table, test.n), func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			pool := open(t, emptyDatabase(t))
			exec(t, pool, `CREATE SCHEMA app`, `CREATE SCHEMA "App"`)
			with := []migrations.Option{migrations.WithTable(test.table), migrations.WithPartitions(test.n)}
			for range 2 {
				ok(t, migrations.Up(ctx, pool, with...))
			}
			ok(t, migrations.Validate(ctx, pool, with[0]))

			leaves := `pg_partition_tree('` + test.quoted + `') p JOIN pg_class c ON c.oid = p.relid WHERE p.isleaf`
			name := test.quoted[strings.LastIndex(test.quoted, ".")+1:]
			want := make([]string, test.n)
			for i := range want {
				want[i] = fmt.Sprintf("%s_p%d|{fillfactor=65}|FOR VALUES WITH (modulus %d, remainder %d)|p", strings.Trim(name, `"`), i, test.n, i)
			}
			equal(t, "partitions", query(t, pool, `SELECT relname, reloptions::text, pg_get_expr(relpartbound, c.oid), relpersistence::text FROM `+
				leaves+` ORDER BY length(relname), relname`), strings.Join(want, "\n"))
			equal(t, "kinds of index on each partition", query(t, pool, `
SELECT i.indisprimary, am.amname, x.reloptions::text, pg_get_expr(i.indpred, i.indrelid),
       (SELECT string_agg(attname, ',' ORDER BY attnum) FROM pg_attribute WHERE attrelid = min(x.oid::bigint)),
       bool_and(i.indisvalid AND i.indisready), count(DISTINCT i.indrelid), count(*)
FROM pg_partition_tree('`+test.quoted+`') p JOIN pg_index i ON i.indrelid = p.relid
JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_am am ON am.oid = x.relam
WHERE p.isleaf GROUP BY 1, 2, 3, 4 ORDER BY 1, 2`), strings.ReplaceAll(`false|brin|{autosummarize=on}|<nil>|claimed_at|true|n|n
false|btree|<nil>|(completed_at IS NULL)|claimed_at|true|n|n
true|btree|<nil>|<nil>|source,event_id|true|n|n`, "n|n", fmt.Sprintf("%d|%[1]d", test.n)))

			list, err := migrations.Status(ctx, pool, with[0])
			ok(t, err)
			if len(list) != 1 || !list[0].Applied() {
				t.Errorf("status: %+v", list)
			}
			ok(t, migrations.Down(ctx, pool, with[0])) // without saying how many
			equal(t, "relations", query(t, pool, `SELECT count(*) FROM pg_class WHERE relname LIKE '`+strings.Trim(name, `"`)+`\_p%'`), "0")
			contains(t, migrations.Validate(ctx, pool, with[0]), "does not exist")
		})
	}
}

// Two rows of one key cannot be, in whichever partition the key belongs.
func TestKeysAreUniqueAcrossPartitions(t *testing.T) {
	t.Parallel()
	pool := open(t, emptyDatabase(t))
	ok(t, migrations.Up(context.Background(), pool, migrations.WithPartitions(4)))
	insert := `INSERT INTO idempotency_keys (source, event_id, payload_digest) SELECT 's', i::text, '' FROM generate_series(1, 1000) i`
	exec(t, pool, insert, insert+" ON CONFLICT (source, event_id) DO NOTHING")
	equal(t, "partitions used, rows", query(t, pool, "SELECT count(DISTINCT tableoid), count(*) FROM idempotency_keys"), "4|1000")
	if _, err := pool.Exec(insert); err == nil {
		t.Error("every key was inserted twice")
	}
	for i := range 4 { // a row that is put into another partition by hand is refused by its constraint
		_, err := pool.Exec(fmt.Sprintf(`INSERT INTO idempotency_keys_p%d SELECT * FROM idempotency_keys_p%d LIMIT 1`, i, (i+1)%4))
		contains(t, err, "violates partition constraint")
	}
}

func TestUpRefusesATableOfAnotherKind(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, test := range []struct {
		name        string
		have, want  int
		fragments   []string
		unversioned bool // the table comes from AutoMigrate or a restored dump
	}{
		{"ordinary", 0, 4, []string{`"public"."idempotency_keys" exists without partitions`, "leave WithPartitions out", "docs/migrations.md"}, false},
		{"fewer", 4, 8, []string{"exists with 4 hash partitions and not 8", "want WithPartitions(4)"}, false},
		{"more", 8, 4, []string{"exists with 8 hash partitions and not 4", "want WithPartitions(8)"}, false},
		{"ordinary, not ours", 0, 4, []string{"exists without partitions"}, true},
		{"more, not ours", 8, 4, []string{"exists with 8 hash partitions and not 4"}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			pool := open(t, emptyDatabase(t))
			ok(t, migrations.Up(ctx, pool, migrations.WithPartitions(test.have)))
			if test.unversioned {
				exec(t, pool, "DROP TABLE idempotency_goose_version")
			}
			before := query(t, pool, relations)
			err := migrations.Up(ctx, pool, migrations.WithPartitions(test.want))
			contains(t, err, append(test.fragments, "idempotency: migrate up: ")...)
			equal(t, "relations", query(t, pool, relations), before)
			ok(t, migrations.Up(ctx, pool, migrations.WithPartitions(test.have)))
			ok(t, migrations.Validate(ctx, pool, migrations.WithPartitions(test.want)))
			ok(t, migrations.Down(ctx, pool, migrations.WithPartitions(test.want)))
			ok(t, migrations.Up(ctx, pool, migrations.WithPartitions(test.want)))
		})
	}
}

// A version of the application from before the switch to partitions starts on them, and changes nothing.
func TestUpWithoutANumberTakesOverPartitions(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, versioned := range []bool{true, false} {
		pool := open(t, emptyDatabase(t))
		ok(t, migrations.Up(ctx, pool, migrations.WithPartitions(4)))
		before := query(t, pool, relations)
		if !versioned {
			exec(t, pool, "DROP TABLE idempotency_goose_version")
		}
		ok(t, migrations.Up(ctx, pool))
		equal(t, "relations", query(t, pool, relations), before)
	}
}

// Between one process's look at the table and its turn, another one may have created it otherwise: nobody must believe in
// partitions that are not there.
func TestUpNoticesThatAnotherProcessWasFaster(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, kinds := range [][2]int{{0, 4}, {4, 8}, {8, 4}} {
		t.Run(fmt.Sprint(kinds), func(t *testing.T) {
			t.Parallel()
			dsn := emptyDatabase(t)
			pool := open(t, dsn)
			ok(t, migrations.Up(ctx, pool))
			ok(t, migrations.Down(ctx, pool)) // leaves the version table, so that the wait is within the migration
			turn := holdTheTurn(t, open(t, dsn))
			defer turn.Rollback()
			slower := make(chan error)
			go func() { slower <- migrations.Up(ctx, pool, migrations.WithPartitions(kinds[1])) }()
			eventually(t, pool, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database())")
			script, err := migrations.SQL(migrations.WithPartitions(kinds[0]))
			ok(t, err)
			_, body, _ := strings.Cut(script, "READ COMMITTED;") // the turn is taken already
			if _, err := turn.Exec(strings.TrimSuffix(strings.TrimSpace(body), "COMMIT;")); err != nil {
				t.Fatal(err)
			}
			ok(t, turn.Commit())
			if err := <-slower; err == nil {
				t.Error("the slower process believes its own")
			}
			ok(t, migrations.Up(ctx, pool, migrations.WithPartitions(kinds[0])))
		})
	}
}

// A table that was partitioned by hand, or has been split since, has partitions of its own names. It is taken over.
func TestUpTakesOverPartitionsOfOtherNames(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := open(t, emptyDatabase(t))
	ok(t, migrations.Up(ctx, pool, migrations.WithPartitions(2)))
	exec(t, pool, "DROP TABLE idempotency_goose_version", "DROP INDEX idx_idempotency_keys_claimed_at",
		"ALTER TABLE idempotency_keys DETACH PARTITION idempotency_keys_p1",
		"CREATE TABLE half PARTITION OF idempotency_keys FOR VALUES WITH (MODULUS 4, REMAINDER 1)",
		"CREATE TABLE other_half PARTITION OF idempotency_keys FOR VALUES WITH (MODULUS 4, REMAINDER 3)",
		"DROP TABLE idempotency_keys_p1")
	ok(t, migrations.Up(ctx, pool, migrations.WithPartitions(3)))
	equal(t, "partitions with the index", query(t, pool, `SELECT count(*) FROM pg_inherits WHERE inhparent = 'idx_idempotency_keys_claimed_at'::regclass`), "3")
	equal(t, "partitions", query(t, pool, `SELECT count(*) FROM pg_inherits WHERE inhparent = 'idempotency_keys'::regclass`), "3")
}

func TestPartitionsNeedTheirNames(t *testing.T) {
	t.Parallel()
	pool := open(t, emptyDatabase(t))
	exec(t, pool, "CREATE TABLE idempotency_keys_p3 (id int)", "CREATE VIEW idempotency_keys_p1 AS SELECT 1")
	err := migrations.Up(context.Background(), pool, migrations.WithPartitions(4))
	contains(t, err, "a partition of idempotency_keys needs a name", "idempotency_keys_p1", "idempotency_keys_p3")
	equal(t, "relations", query(t, pool, relations), "public.idempotency_keys_p3")
}

func TestSenselessPartitionsAreRefusedBeforeAnySQL(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{-1: "negative", -1 << 62: "negative", 1: "one partition", 257: "at most 256", 5000: "too many", 1 << 62: "too many"} {
		_, err := migrations.SQL(migrations.WithPartitions(n))
		contains(t, err, "idempotency: migration SQL: partitions: ", want)
		_, err = migrations.Export(t.TempDir(), migrations.WithPartitions(n))
		contains(t, err, "idempotency: export migrations: partitions: ", want)
		contains(t, migrations.Up(context.Background(), nil, migrations.WithPartitions(n)), "idempotency: migrate up: partitions: ", want)
	}
}

// Time partitioning would let the same key in once a period.
func TestTimePartitionsAreRefused(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := open(t, emptyDatabase(t))
	ok(t, migrations.Up(ctx, pool))
	exec(t, pool, "ALTER TABLE idempotency_keys RENAME TO plain", "DROP INDEX idx_idempotency_keys_claimed_at, idx_idempotency_keys_incomplete",
		"CREATE TABLE idempotency_keys (LIKE plain INCLUDING DEFAULTS, PRIMARY KEY (source, event_id, claimed_at)) PARTITION BY RANGE (claimed_at)",
		"CREATE TABLE today PARTITION OF idempotency_keys DEFAULT")
	for _, n := range []int{0, 2} {
		for _, err := range []error{
			migrations.Validate(ctx, pool, migrations.WithPartitions(n)),
			migrations.Up(ctx, pool, migrations.WithPartitions(n)),
		} {
			contains(t, err, "partitioned by range")
			if !errors.Is(err, pgsql.ErrSchema) {
				t.Errorf("got %v", err)
			}
		}
	}
}

// C40: places are per partition. By the source page's statement, live keys that share one with an expired key would go too.
func TestSweepOfPartitionsDeletesTheExpiredAlone(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	dsn := emptyDatabase(t)
	pool := open(t, dsn)
	ok(t, migrations.Up(ctx, pool, migrations.WithPartitions(4)))
	insert := `INSERT INTO idempotency_keys SELECT '%s', i::text, sha256(''), 200, NULL, NULL, '', at, at FROM generate_series(1, %d) i,
LATERAL (SELECT now() - interval '%s' AS at) a`
	exec(t, pool, fmt.Sprintf(insert, "expired", 1000, "31 days"), fmt.Sprintf(insert, "live", 9000, "29 days"))
	db := shop(t, dsn)
	sweeper, err := idempotency.NewSweeper(db, idempotency.SweeperConfig{BatchSize: 100, Pause: time.Millisecond})
	ok(t, err)
	report, err := sweeper.Sweep(ctx)
	if err != nil || report.Deleted != 1000 || !report.CaughtUp {
		t.Errorf("got %+v, %v", report, err)
	}
	equal(t, "keys", query(t, pool, "SELECT source, count(*) FROM idempotency_keys GROUP BY source"), "live|9000")
	if _, err := idempotency.Lookup(ctx, db, "s", "live"); !errors.Is(err, idempotency.ErrKeyNotFound) {
		t.Errorf("got %v", err)
	}
	key, err := idempotency.Lookup(ctx, db, "live", "7")
	if err != nil || key.EventID != "7" {
		t.Errorf("got %+v, %v", key, err)
	}
	ok(t, idempotency.Forget(ctx, db, "live", "7"))
	equal(t, "keys", query(t, pool, "SELECT count(*) FROM idempotency_keys"), "8999")
}

// AutoMigrate finds nothing to do on a partitioned table.
func TestAutoMigrateAfterPartitionsChangesNothing(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	dsn := emptyDatabase(t)
	pool := open(t, dsn)
	ok(t, migrations.Up(ctx, pool, migrations.WithPartitions(4)))
	db := shop(t, dsn)
	dump := strings.Replace(schemaDump, "'app'", "'public'", 1)
	before := query(t, pool, dump)
	ok(t, db.AutoMigrate(&idempotency.IdempotencyKey{}))
	equal(t, "schema", query(t, pool, dump), before)
}

// eventually waits until a condition holds.
func eventually(t *testing.T, pool *sql.DB, condition string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); query(t, pool, condition) != "true"; time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("did not happen: %s", condition)
		}
	}
}

// partitioned makes a test database's table one with partitions.
func partitioned(n int) func(*testing.T, string) string {
	return func(t *testing.T, dsn string) string {
		t.Helper()
		db, err := gorm.Open(postgres.Open(dsn), &gorm.Config{Logger: logger.Discard})
		ok(t, err)
		pool, err := db.DB()
		ok(t, err)
		defer pool.Close()
		ctx := context.Background()
		ok(t, migrations.Down(ctx, pool))
		ok(t, migrations.Up(ctx, pool, migrations.WithPartitions(n)))
		ok(t, db.Use(idempotency.New(idempotency.Config{})))
		ok(t, idempotency.CheckSchema(ctx, db))
		return dsn
	}
}

// The whole protocol holds on a partitioned table, also with prepared statements, whose plans are of all partitions.
func TestConformanceOnPartitions(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]gorm.Config{"defaults": {}, "PrepareStmt": {PrepareStmt: true, SkipDefaultTransaction: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conformance.Run(t, conformance.Cell{Dialector: postgres.Open, Gorm: config, Setup: partitioned(4)})
		})
	}
}

// A later migration is one text for both kinds of table: what it does to a partitioned one reaches every partition.
func TestLaterMigrationsReachEveryPartition(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, n := range []int{0, 4} {
		pool := open(t, emptyDatabase(t))
		with := migrations.WithPartitions(n)
		ok(t, migrations.Up(ctx, pool, with))
		ok(t, migrations.UpLater(ctx, t, pool, with))
		equal(t, "relations with the new column and index", query(t, pool, `
SELECT count(*), count(a.attname), count(x.relname) FROM pg_class c
LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'attempts'
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indkey[0] = a.attnum AND i.indisvalid
LEFT JOIN pg_class x ON x.oid = i.indexrelid AND x.reloptions::text = '{fillfactor=70}'
WHERE c.oid = 'idempotency_keys'::regclass OR c.oid IN (SELECT relid FROM pg_partition_tree('idempotency_keys'))`), fmt.Sprintf("%d|%[1]d|%[1]d", n+1))
		ok(t, migrations.Validate(ctx, pool))
	}
}
