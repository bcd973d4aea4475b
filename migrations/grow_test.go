package migrations_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/migrations"
)

// growth is what docs/migrations.md tells an operator to run: beforehand, and as the switch's one transaction.
func growth(t *testing.T) (beforehand, theSwitch string) {
	t.Helper()
	text, err := os.ReadFile("../docs/migrations.md")
	ok(t, err)
	const first, second = "-- 1. Beforehand", "-- 2. The switch"
	_, block, found := strings.Cut(string(text), "```sql\n"+first)
	block, _, _ = strings.Cut(block, "```")
	beforehand, theSwitch, split := strings.Cut(block, second)
	if !found || !split {
		t.Fatalf("the document has no block with %q and %q", first, second)
	}
	return first + beforehand, second + strings.ReplaceAll(theSwitch, "app_service", "CURRENT_USER")
}

// grow runs the documented statements; meanwhile is called in between.
func grow(t *testing.T, pool *sql.DB, meanwhile func()) {
	t.Helper()
	beforehand, theSwitch := growth(t)
	exec(t, pool, beforehand)
	meanwhile()
	exec(t, pool, "BEGIN;"+theSwitch+"COMMIT")
}

// The table that has grown is the one that Up would have made: the same columns, indexes, partitions and names.
func TestAGrownTableIsTheMigrationsTable(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	grown, made := open(t, emptyDatabase(t)), open(t, emptyDatabase(t))
	ok(t, migrations.Up(ctx, made, migrations.WithPartitions(16)))
	ok(t, migrations.Up(ctx, grown))
	grow(t, grown, func() {})
	ok(t, migrations.Up(ctx, grown, migrations.WithPartitions(16)))
	for what, statement := range map[string]string{
		"columns": `SELECT attname, format_type(atttypid, atttypmod), attnotnull, l.collname, pg_get_expr(d.adbin, d.adrelid)
FROM pg_attribute a LEFT JOIN pg_collation l ON l.oid = a.attcollation LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = 'idempotency_keys'::regclass AND attnum > 0 ORDER BY attnum`,
		"partitions": `SELECT c.relname, c.reloptions::text, pg_get_expr(c.relpartbound, c.oid) FROM pg_class c
JOIN pg_inherits h ON h.inhrelid = c.oid WHERE h.inhparent = 'idempotency_keys'::regclass ORDER BY 1`,
		"indexes": `SELECT pg_get_indexdef(i.indexrelid) FROM pg_index i WHERE i.indrelid = 'idempotency_keys'::regclass ORDER BY 1`,
		"indexes of partitions": `SELECT i.indrelid::regclass, am.amname, c.reloptions::text, pg_get_expr(i.indpred, i.indrelid), i.indisvalid
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am am ON am.oid = c.relam
WHERE i.indrelid::regclass::text ~ '^idempotency_keys_p' ORDER BY 1, 2, 3`,
		"relations": relations,
	} {
		equal(t, what, query(t, grown, statement), query(t, made, statement))
	}
}

// The keys arrive as they are, with what has happened to them since they were copied: new ones, forgotten ones, and one that
// was forgotten and claimed again.
func TestGrowingKeepsEveryKey(t *testing.T) {
	t.Parallel()
	pool := open(t, emptyDatabase(t))
	ok(t, migrations.Up(context.Background(), pool))
	insert := func(from, to int, answer string) {
		exec(t, pool, fmt.Sprintf(`INSERT INTO idempotency_keys
SELECT 's', i::text, sha256(i::text::bytea), 201, '{"A": ["b"]}', '{"n": 1}', '%s', clock_timestamp(), clock_timestamp() FROM generate_series(%d, %d) i`,
			answer, from, to))
	}
	const keys = `SELECT * FROM idempotency_keys ORDER BY source, event_id`
	insert(1, 1000, "first")
	var before string
	grow(t, pool, func() {
		exec(t, pool, `DELETE FROM idempotency_keys WHERE event_id IN ('7', '77')`)
		insert(77, 77, "second")
		insert(1001, 1100, "third")
		before = query(t, pool, keys)
	})
	equal(t, "keys", query(t, pool, keys), before)
	equal(t, "count", query(t, pool, "SELECT count(*), count(DISTINCT tableoid) FROM idempotency_keys"), "1099|16")
}

// shop is an application with the plugin and a table of orders, which nothing else keeps from having two of an event.
func shop(t *testing.T, dsn *pgx.ConnConfig) *gorm.DB {
	t.Helper()
	pool := stdlib.OpenDB(*dsn)
	t.Cleanup(func() { ok(t, pool.Close()) })
	db, err := gorm.Open(postgres.New(postgres.Config{Conn: pool}), &gorm.Config{Logger: logger.Discard})
	ok(t, err)
	ok(t, db.Use(idempotency.New(idempotency.Config{})))
	ok(t, db.Exec("CREATE TABLE IF NOT EXISTS orders (event text)").Error)
	return db
}

func order(db *gorm.DB, event string, opts ...idempotency.Option) (*idempotency.Result, error) {
	return idempotency.Do(db, "s", event, []byte(event), func(tx *gorm.DB) error {
		if err := tx.Exec("INSERT INTO orders VALUES (?)", event).Error; err != nil {
			return err
		}
		return idempotency.Respond(tx, 201, event)
	}, opts...)
}

// redeliver delivers an event as a sender does: until it is told that it was received.
func redeliver(t *testing.T, db *gorm.DB, event string, opts []idempotency.Option) {
	var err error
	for range 20 {
		if _, err = order(db.WithContext(t.Context()), event, opts...); err == nil || !idempotency.Retryable(err) {
			break
		}
	}
	if err != nil {
		t.Errorf("%s: %v", event, err)
	}
}

// ways are how deliveries reach the server: a plan that was prepared before the switch is for a table that is gone after it.
var ways = map[string]struct {
	mode  pgx.QueryExecMode
	level sql.IsolationLevel
	plans string // plan_cache_mode
}{
	"custom plans":    {mode: pgx.QueryExecModeCacheStatement, plans: "force_custom_plan"},
	"generic plans":   {mode: pgx.QueryExecModeCacheStatement, plans: "force_generic_plan"},
	"simple protocol": {mode: pgx.QueryExecModeSimpleProtocol, plans: "auto"},
	"repeatable read": {mode: pgx.QueryExecModeCacheStatement, plans: "force_generic_plan", level: sql.LevelRepeatableRead},
}

// eachWay runs a test in each of the ways, with an application that has prepared its statements already.
func eachWay(t *testing.T, test func(t *testing.T, admin *sql.DB, db *gorm.DB, opts []idempotency.Option)) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := emptyDatabase(t)
			admin := open(t, dsn)
			ok(t, migrations.Up(context.Background(), admin))
			dsn = withSetting(dsn, "plan_cache_mode", way.plans)
			dsn.DefaultQueryExecMode = way.mode
			db := shop(t, dsn)
			var opts []idempotency.Option
			if way.level != sql.LevelDefault {
				opts = append(opts, idempotency.WithTxOptions(&sql.TxOptions{Isolation: way.level}))
			}
			warm(t, db, opts)
			test(t, admin, db, opts)
		})
	}
}

// warm has every connection of a pool of eight prepare the library's statements.
func warm(t *testing.T, db *gorm.DB, opts []idempotency.Option) {
	t.Helper()
	pool, err := db.DB()
	ok(t, err)
	pool.SetMaxOpenConns(8)
	pool.SetMaxIdleConns(8)
	var running, all sync.WaitGroup
	running.Add(8)
	for i := range 8 {
		all.Go(func() {
			started := sync.OnceFunc(running.Done)
			defer started()
			_, err := idempotency.Do(db, "warm", fmt.Sprint(i), nil, func(tx *gorm.DB) error {
				started()
				running.Wait() // at once, on eight connections
				return idempotency.Respond(tx, 200, nil)
			}, opts...)
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

const (
	oneWaits     = `SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`
	severalWait  = `SELECT count(*) >= 4 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`
	doubleEffect = `SELECT event, count(*) FROM orders GROUP BY event HAVING count(*) <> 1`
)

// A handler is running when the switch wants its lock, and deliveries of the same and of other events queue behind that. The
// switch waits for the handler, and the deliveries for the switch; then they are claims of the new table, which has the
// handler's key if that has committed, and has not if it hasn't.
func TestDeliveriesThatWaitForTheSwitchTakeEffectOnce(t *testing.T) {
	t.Parallel()
	for _, fails := range []bool{false, true} {
		t.Run(fmt.Sprintf("handler fails: %v", fails), func(t *testing.T) {
			t.Parallel()
			eachWay(t, func(t *testing.T, admin *sql.DB, db *gorm.DB, opts []idempotency.Option) {
				beforehand, theSwitch := growth(t)
				exec(t, admin, beforehand)
				_, err := order(db, "old", opts...)
				ok(t, err)

				running, finish := make(chan struct{}), make(chan error)
				var all sync.WaitGroup
				all.Go(func() {
					_, err := idempotency.Do(db, "s", "held", []byte("held"), func(tx *gorm.DB) error {
						close(running)
						select {
						case failure := <-finish:
							return errors.Join(tx.Exec("INSERT INTO orders VALUES ('held')").Error, failure)
						case <-t.Context().Done(): // the test has given up
							return t.Context().Err()
						}
					}, opts...)
					if (err != nil) != fails {
						t.Errorf("the handler that the switch waits for: %v", err)
					}
				})
				<-running
				all.Go(func() {
					if _, err := admin.Exec("BEGIN;" + strings.Replace(theSwitch, "'3s'", "'60s'", 1) + "COMMIT"); err != nil {
						t.Errorf("the switch: %v", err)
					}
				})
				eventually(t, admin, oneWaits)
				// Another process, so that the key's own gate does not hold its deliveries back.
				other := shop(t, connConfig(t, db))
				for _, event := range []string{"held", "new", "old"} {
					for _, process := range []*gorm.DB{other, other, db} {
						if event == "held" && process == db {
							continue
						}
						all.Go(func() { redeliver(t, process, event, opts) })
					}
				}
				eventually(t, admin, severalWait)
				if fails {
					finish <- errors.New("failed")
				} else {
					finish <- nil
				}
				all.Wait()
				equal(t, "orders", query(t, admin, "SELECT event, count(*) FROM orders GROUP BY 1 ORDER BY 1"), "held|1\nnew|1\nold|1")
				equal(t, "kind of table", query(t, admin, "SELECT relkind::text FROM pg_class WHERE oid = 'idempotency_keys'::regclass"), "p")
				for _, event := range []string{"held", "new", "old"} {
					if result, err := order(db, event); err != nil || !result.Replayed {
						t.Errorf("%s delivered again: %+v, %v", event, result, err)
					}
				}
			})
		})
	}
}

func connConfig(t *testing.T, db *gorm.DB) *pgx.ConnConfig {
	t.Helper()
	pool, err := db.DB()
	ok(t, err)
	conn, err := pool.Conn(context.Background())
	ok(t, err)
	defer conn.Close()
	var config *pgx.ConnConfig
	ok(t, conn.Raw(func(c any) error {
		config = c.(*stdlib.Conn).Conn().Config()
		return nil
	}))
	return config
}

// Under a storm of duplicates from two processes, each event takes effect once, whether it came before the switch, during it
// or after it.
func TestAStormAcrossTheSwitchTakesEffectOnce(t *testing.T) {
	t.Parallel()
	const events, workers = 100, 4
	eachWay(t, func(t *testing.T, admin *sql.DB, db *gorm.DB, opts []idempotency.Option) {
		beforehand, theSwitch := growth(t)
		other := shop(t, connConfig(t, db))
		var all sync.WaitGroup
		for worker := range 2 * workers {
			process := []*gorm.DB{db, other}[worker%2]
			all.Go(func() {
				for i := range events {
					redeliver(t, process, fmt.Sprint((i+worker)%events), opts)
				}
			})
		}
		eventually(t, admin, fmt.Sprintf("SELECT count(*) > %d FROM orders", events/10))
		exec(t, admin, beforehand, "BEGIN;"+theSwitch+"COMMIT")
		atSwitch := query(t, admin, "SELECT count(*) FROM orders")
		all.Wait()
		t.Logf("%s of %d events had taken effect just after the switch", atSwitch, events)
		equal(t, "double effects", query(t, admin, doubleEffect), "")
		equal(t, "orders", query(t, admin, "SELECT count(*) FROM orders"), fmt.Sprint(events))
		equal(t, "keys", query(t, admin, "SELECT count(*) FROM idempotency_keys WHERE source = 's'"), fmt.Sprint(events))
	})
}
