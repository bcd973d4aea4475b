package pipeline_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
	"github.com/gorm-idempotency/idempotency/internal/faultproxy"
	"github.com/gorm-idempotency/idempotency/pipeline"
)

type order struct {
	ID    uint `gorm:"primaryKey"`
	Event string
}

func parse(t *testing.T, dsn string) *pgx.ConnConfig {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func open(t *testing.T, pool *sql.DB) *gorm.DB {
	t.Helper()
	t.Cleanup(func() { _ = pool.Close() })
	db, err := gorm.Open(postgres.New(postgres.Config{Conn: pool}), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Use(idempotency.New(idempotency.Config{})); err != nil {
		t.Fatal(err)
	}
	if err := db.Exec(`CREATE TABLE IF NOT EXISTS orders (id bigserial PRIMARY KEY, event text NOT NULL)`).Error; err != nil {
		t.Fatal(err)
	}
	return db
}

func placeOrder(event string) func(*gorm.DB) error {
	return func(tx *gorm.DB) error { return tx.Create(&order{Event: event}).Error }
}

func placeAndAnswer(event string) func(*gorm.DB) error {
	return func(tx *gorm.DB) error {
		if err := placeOrder(event)(tx); err != nil {
			return err
		}
		return idempotency.Respond(tx, 201, event)
	}
}

func requireEffects(t *testing.T, db *gorm.DB, event string, want int64) {
	t.Helper()
	var count int64
	if err := db.Model(&order{}).Where("event = ?", event).Count(&count).Error; err != nil {
		t.Fatal(err)
	}
	if count != want {
		t.Errorf("the effect of %s happened %d times, want %d", event, count, want)
	}
}

func requireDone(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// modes are pgx's ways to send a statement: each batches in a way of its own.
var modes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec,
	pgx.QueryExecModeSimpleProtocol,
}

// The promise: once its statements are prepared, a transaction that claims a key and stores an answer takes as many round
// trips as one without the library. But for describe_exec, which asks for a description before each batch.
func TestDeliveryTakesNoRoundTripOfItsOwn(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		if mode == pgx.QueryExecModeDescribeExec {
			continue
		}
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			config := parse(t, gormtest.DSN(t))
			proxy, err := faultproxy.Start(pgconn.NetworkAddress(config.Host, config.Port))
			requireDone(t, err)
			t.Cleanup(func() { _ = proxy.Close() })
			var trips atomic.Int64
			proxy.Follow(func(string) faultproxy.Fault { trips.Add(1); return faultproxy.None })
			config.Host, config.Port, config.TLSConfig, config.Fallbacks = "127.0.0.1", proxy.Port(), nil, nil
			config.DefaultQueryExecMode = mode
			db := open(t, pipeline.OpenDB(stdlib.GetConnector(*config)))

			ways := map[string]func(event string) error{
				"bare": func(event string) error { return db.Transaction(placeOrder(event)) },
				"no answer": func(event string) error {
					_, err := idempotency.Do(db, "s", event, nil, placeOrder(event))
					return err
				},
				"answer": func(event string) error {
					_, err := idempotency.Do(db, "s", event, nil, placeAndAnswer(event))
					return err
				},
			}
			took := map[string]int64{}
			for name, deliver := range ways {
				requireDone(t, deliver(name+", to prepare"))
				before := trips.Load()
				requireDone(t, deliver(name))
				took[name] = trips.Load() - before
			}
			for range 2 { // the first one prepares
				before := trips.Load()
				result, err := idempotency.Do(db, "s", "answer", nil, placeOrder("answer"))
				requireDone(t, err)
				if took["duplicate"] = trips.Load() - before; !result.Replayed {
					t.Error("a duplicate ran")
				}
			}
			if took["duplicate"] != 2 || took["no answer"] != took["bare"] || took["answer"] != took["bare"] {
				t.Errorf("round trips: %v", took)
			}
		})
	}
}

// What code around the library expects of a transaction is there: the *sql.Tx itself, and statements that GORM, or the
// application, has prepared on the pool.
func TestTransactionIsTheSqlTx(t *testing.T) {
	t.Parallel()
	pool := pipeline.OpenDB(stdlib.GetConnector(*parse(t, gormtest.DSN(t))))
	db := open(t, pool)
	prepared, err := pool.PrepareContext(t.Context(), "INSERT INTO orders (event) VALUES ($1)")
	requireDone(t, err)
	defer func() { _ = prepared.Close() }()
	_, err = idempotency.Do(db, "s", "evt", nil, func(tx *gorm.DB) error {
		plain, ok := tx.Statement.ConnPool.(*sql.Tx)
		if !ok {
			t.Errorf("the handler's connection is a %T", tx.Statement.ConnPool)
		}
		if _, err := plain.StmtContext(t.Context(), prepared).ExecContext(t.Context(), "prepared"); err != nil {
			return err
		}
		if err := tx.Session(&gorm.Session{PrepareStmt: true}).Create(&order{Event: "prepared"}).Error; err != nil {
			return err
		}
		if err := tx.Transaction(placeOrder("nested")); err != nil {
			return err
		}
		return errors.New("on second thoughts")
	})
	if err == nil {
		t.Error("the handler's error is lost")
	}
	requireEffects(t, db, "prepared", 0)
	requireEffects(t, db, "nested", 0)
	_, err = idempotency.Do(db, "s", "evt", nil, placeAndAnswer("evt"))
	requireDone(t, err)
	requireEffects(t, db, "evt", 1)
}

// Code that uses sql.Conn.Raw finds pgx's connection by the same method as on pgx's own pools.
func TestRawGivesPgxsConnection(t *testing.T) {
	t.Parallel()
	pool := pipeline.OpenDB(stdlib.GetConnector(*parse(t, gormtest.DSN(t))))
	t.Cleanup(func() { _ = pool.Close() })
	single, err := pool.Conn(t.Context())
	requireDone(t, err)
	defer func() { _ = single.Close() }()
	requireDone(t, single.Raw(func(raw any) error {
		return raw.(interface{ Conn() *pgx.Conn }).Conn().Ping(t.Context())
	}))
}

// A key that a transaction holds is asked for once more, after a look-up that found nobody's row and has ended the
// transaction with it.
func TestDuplicateOfARunningDelivery(t *testing.T) {
	t.Parallel()
	config := parse(t, gormtest.DSN(t))
	pool := pipeline.OpenDB(stdlib.GetConnector(*config))
	db, other := open(t, pool), open(t, stdlib.OpenDB(*config)) // two pools: the gate of one would answer by itself
	_, err := idempotency.Do(other, "s", "evt", nil, func(tx *gorm.DB) error {
		result, err := idempotency.Do(db, "s", "evt", nil, placeOrder("evt"), idempotency.WithWait(0))
		if result != nil || !errors.Is(err, idempotency.ErrInFlight) {
			t.Errorf("got %+v, %v", result, err)
		}
		if busy := pool.Stats().InUse; busy != 0 {
			t.Errorf("%d connections are still in use", busy)
		}
		return placeAndAnswer("evt")(tx)
	})
	requireDone(t, err)
	requireEffects(t, db, "evt", 1)
}

// COMMIT fails after the answer has been stored: nothing is kept, and the connection is as good as before.
func TestCommitThatFails(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			config := parse(t, gormtest.DSN(t))
			config.DefaultQueryExecMode = mode
			pool := pipeline.OpenDB(stdlib.GetConnector(*config))
			pool.SetMaxOpenConns(1)
			db := open(t, pool)
			requireDone(t, db.Exec(`ALTER TABLE orders ADD UNIQUE (event) DEFERRABLE INITIALLY DEFERRED`).Error)
			requireDone(t, db.Create(&order{Event: "taken"}).Error)
			result, err := idempotency.Do(db, "s", "taken", nil, placeAndAnswer("taken"))
			var refused *pgconn.PgError
			if result != nil || !errors.As(err, &refused) || refused.Code != "23505" || errors.Is(err, idempotency.ErrOutcomeUnknown) {
				t.Errorf("%+v, %v", result, err)
			}
			requireEffects(t, db, "taken", 1)
			_, err = idempotency.Lookup(t.Context(), db, "s", "taken")
			if !errors.Is(err, idempotency.ErrKeyNotFound) {
				t.Errorf("the key: %v", err)
			}
			_, err = idempotency.Do(db, "s", "free", nil, placeAndAnswer("free"))
			requireDone(t, err)
		})
	}
}

// A claim fails behind its BEGIN: the connection is as good as before. (pgx leaves it busy, if it may.)
func TestClaimThatFails(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			config := parse(t, gormtest.DSN(t))
			config.DefaultQueryExecMode = mode
			pool := pipeline.OpenDB(stdlib.GetConnector(*config))
			pool.SetMaxOpenConns(1)
			db := open(t, pool)
			backend := func() (pid int) {
				requireDone(t, db.Raw("SELECT pg_backend_pid()").Scan(&pid).Error)
				return pid
			}
			requireDone(t, db.Exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$`).Error)
			requireDone(t, db.Exec(`CREATE TRIGGER refuse BEFORE INSERT ON idempotency_keys FOR EACH ROW
				WHEN (NEW.event_id = 'refused') EXECUTE FUNCTION refuse()`).Error)
			before := backend()
			for range 3 {
				result, err := idempotency.Do(db, "s", "refused", nil, placeAndAnswer("refused"))
				var refused *pgconn.PgError
				if result != nil || !errors.As(err, &refused) || refused.Code != "P0001" {
					t.Errorf("%+v, %v", result, err)
				}
				if after := backend(); after != before {
					t.Error("the connection was lost")
				}
			}
			_, err := idempotency.Do(db, "s", "evt", nil, placeAndAnswer("evt"))
			requireDone(t, err)
		})
	}
}

// COMMIT is behind the completion, and must not be made if that has nothing to complete.
func TestCompletionOfNoRowCommitsNothing(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			config := parse(t, gormtest.DSN(t))
			config.DefaultQueryExecMode = mode
			db := open(t, pipeline.OpenDB(stdlib.GetConnector(*config)))
			requireDone(t, db.Exec(`CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$`).Error)
			requireDone(t, db.Exec(`CREATE TRIGGER skip BEFORE UPDATE ON idempotency_keys FOR EACH ROW EXECUTE FUNCTION skip()`).Error)
			result, err := idempotency.Do(db, "s", "evt", nil, placeAndAnswer("evt"))
			if result != nil || err == nil || !strings.Contains(err.Error(), "deleted the claimed key or answered it") {
				t.Errorf("%+v, %v", result, err)
			}
			requireEffects(t, db, "evt", 0)
		})
	}
}

// What a goroutine executes that the handler left behind belongs to the transaction or fails: once COMMIT is on its way it
// would be a transaction of its own, which stays when the delivery's is rolled back.
func TestNothingFollowsTheCommit(t *testing.T) {
	t.Parallel()
	db := open(t, pipeline.OpenDB(stdlib.GetConnector(*parse(t, gormtest.DSN(t)))))
	requireDone(t, db.Exec(`ALTER TABLE orders ADD UNIQUE (event) DEFERRABLE INITIALLY DEFERRED`).Error)
	requireDone(t, db.Exec(`CREATE TABLE leftovers (event text)`).Error)
	requireDone(t, db.Create(&order{Event: "taken"}).Error)
	for round := range 30 {
		var left sync.WaitGroup
		_, err := idempotency.Do(db, "s", fmt.Sprint(round), nil, func(tx *gorm.DB) error {
			conn, ctx := tx.Statement.ConnPool, context.WithoutCancel(tx.Statement.Context)
			left.Go(func() {
				for {
					if _, err := conn.ExecContext(ctx, "INSERT INTO leftovers VALUES ($1)", round); errors.Is(err, sql.ErrTxDone) {
						return
					}
				}
			})
			return placeAndAnswer("taken")(tx) // COMMIT finds that it is there twice
		})
		left.Wait()
		if err == nil {
			t.Error("the commit should fail")
		}
	}
	var kept int64
	requireDone(t, db.Raw("SELECT count(*) FROM leftovers").Scan(&kept).Error)
	if kept != 0 {
		t.Errorf("%d rows are left of deliveries that were rolled back", kept)
	}
}

// A statement that the server no longer has, or whose table has changed, costs a delivery at most, and not every one that its
// connection is given.
func TestPreparedStatementsThatAreStale(t *testing.T) {
	t.Parallel()
	for _, change := range []string{
		"ALTER TABLE idempotency_keys ALTER claimed_at TYPE timestamptz(3)", "DEALLOCATE ALL", "DISCARD ALL",
	} {
		t.Run(change, func(t *testing.T) {
			t.Parallel()
			pool := pipeline.OpenDB(stdlib.GetConnector(*parse(t, gormtest.DSN(t))))
			pool.SetMaxOpenConns(1)
			db := open(t, pool)
			_, err := idempotency.Do(db, "s", "before", nil, placeAndAnswer("before"))
			requireDone(t, err)
			requireDone(t, db.Exec(change).Error)
			_, first := idempotency.Do(db, "s", "first", nil, placeAndAnswer("first"))
			if errors.Is(first, idempotency.ErrOutcomeUnknown) {
				t.Errorf("unknown: %v", first)
			}
			_, err = idempotency.Do(db, "s", "second", nil, placeAndAnswer("second"))
			requireDone(t, err)
		})
	}
}

// An error of COMMIT itself is not taken for one of the statement before it.
func TestCommitThatDividesByZero(t *testing.T) {
	t.Parallel()
	db := open(t, pipeline.OpenDB(stdlib.GetConnector(*parse(t, gormtest.DSN(t)))))
	requireDone(t, db.Exec(`CREATE FUNCTION divide() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM 1 / 0; RETURN NULL; END $$`).Error)
	requireDone(t, db.Exec(`CREATE CONSTRAINT TRIGGER divide AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
		EXECUTE FUNCTION divide()`).Error)
	_, err := idempotency.Do(db, "s", "evt", nil, placeAndAnswer("evt"))
	if err == nil || !strings.Contains(err.Error(), "commit: ") || strings.Contains(err.Error(), "store the answer") {
		t.Errorf("got %v", err)
	}
	requireEffects(t, db, "evt", 0)
}

// A logger that keeps GORM's statements in the same database is called with the statement's context, marks included. Its own
// write is executed all the same.
func TestLoggerThatWritesToThePool(t *testing.T) {
	t.Parallel()
	db := open(t, pipeline.OpenDB(stdlib.GetConnector(*parse(t, gormtest.DSN(t)))))
	pool, err := db.DB()
	requireDone(t, err)
	requireDone(t, db.Exec(`CREATE TABLE log (statement text)`).Error)
	_, err = idempotency.Do(db.Session(&gorm.Session{Logger: writingLogger{logger.Discard, t, pool}}), "s", "evt", nil, placeAndAnswer("evt"))
	requireDone(t, err)
	requireEffects(t, db, "evt", 1)
	var logged int64
	requireDone(t, db.Raw("SELECT count(*) FROM log WHERE statement LIKE 'WITH completed%'").Scan(&logged).Error)
	if logged != 1 {
		t.Errorf("the completion was logged %d times", logged)
	}
}

type writingLogger struct {
	logger.Interface

	t    *testing.T
	pool *sql.DB
}

func (l writingLogger) Trace(ctx context.Context, _ time.Time, statement func() (string, int64), _ error) {
	text, _ := statement()
	_, err := l.pool.ExecContext(ctx, "INSERT INTO log VALUES ($1)", text)
	requireDone(l.t, err)
}

// A wrapper around the driver, for tracing perhaps, may lose what a context carries. Then the library commits by itself, and
// believes nothing but that.
func TestMarksThatGetLostChangeNothing(t *testing.T) {
	t.Parallel()
	connector := stdlib.GetConnector(*parse(t, gormtest.DSN(t)))
	db := open(t, sql.OpenDB(forgetful{pipeline.OpenDB(connector).Driver(), connector}))
	requireDone(t, db.Exec(`ALTER TABLE orders ADD UNIQUE (event) DEFERRABLE INITIALLY DEFERRED`).Error)
	_, err := idempotency.Do(db, "s", "first", nil, placeAndAnswer("evt"))
	requireDone(t, err)
	result, err := idempotency.Do(db, "s", "second", nil, placeAndAnswer("evt"))
	if err == nil {
		t.Errorf("reported %+v of a commit that failed", result)
	}
	requireEffects(t, db, "evt", 1)
}

// forgetful is a connector with a driver that pipelines, whose connections do not.
type forgetful struct {
	driver driver.Driver
	driver.Connector
}

func (f forgetful) Driver() driver.Driver { return f.driver }

// A pool over a pgxpool pipelines too, and connections of another driver are left as they are.
func TestOtherConnectors(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	shared, err := pgxpool.New(t.Context(), dsn)
	requireDone(t, err)
	t.Cleanup(shared.Close)
	for name, connector := range map[string]driver.Connector{
		"pgxpool": stdlib.GetPoolConnector(shared),
		"another": another{stdlib.GetConnector(*parse(t, dsn))},
	} {
		pool := pipeline.OpenDB(connector)
		pool.SetMaxIdleConns(0)
		db := open(t, pool)
		for _, replayed := range []bool{false, true} {
			result, err := idempotency.Do(db, "s", name, nil, placeAndAnswer(name))
			if err != nil || result.Replayed != replayed {
				t.Errorf("%s: %+v, %v", name, result, err)
			}
		}
		requireEffects(t, db, name, 1)
	}
}

// another is a connector whose connections are not pgx's own.
type another struct{ driver.Connector }

func (a another) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := a.Connector.Connect(ctx)
	return wrapped{conn.(*stdlib.Conn)}, err
}

func (a another) Driver() driver.Driver { return wrappedDriver{a.Connector.Driver()} }

type wrapped struct{ *stdlib.Conn }

type wrappedDriver struct{ driver.Driver }

// A pooled connection that cannot be written to any more is replaced, as database/sql does where BEGIN is sent by itself.
func TestConnectionThatBrokeInThePool(t *testing.T) {
	t.Parallel()
	config := parse(t, gormtest.DSN(t))
	var broken atomic.Bool
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		return &breakable{Conn: conn, broken: &broken}, err
	}
	pool := pipeline.OpenDB(stdlib.GetConnector(*config))
	pool.SetMaxOpenConns(1)
	db := open(t, pool)
	_, err := idempotency.Do(db, "s", "before", nil, placeAndAnswer("before"))
	requireDone(t, err)
	broken.Store(true)
	_, err = idempotency.Do(db, "s", "after", nil, placeAndAnswer("after"))
	requireDone(t, err)
	requireEffects(t, db, "after", 1)
}

// breakable fails its next write if it is told to, once.
type breakable struct {
	net.Conn

	broken *atomic.Bool
}

func (b *breakable) Write(p []byte) (int, error) {
	if b.broken.CompareAndSwap(true, false) {
		_ = b.Close()
		return 0, errors.New("broken pipe")
	}
	return b.Conn.Write(p)
}
