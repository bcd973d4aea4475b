package idempotency_test

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
	"github.com/gorm-idempotency/idempotency/pipeline"
)

// order is the effect that the tests' handlers have. Nothing but the library keeps it from happening twice.
type order struct {
	ID    uint `gorm:"primaryKey"`
	Event string
}

// setup is what a test may want different from the defaults.
type setup struct {
	dsn    string         // a database of the test's own by default
	driver gorm.Dialector // pgx on dsn by default
	config idempotency.Config
	gorm   gorm.Config
	conns  int // the pool's size; 0: no limit
}

// open gives a handle on a database of the test's own, with the plugin and the table of orders.
func open(t testing.TB, s setup) *gorm.DB {
	t.Helper()
	if s.driver == nil {
		if s.dsn == "" {
			s.dsn = gormtest.DSN(t)
		}
		s.driver = dialector(t, s.dsn)
	}
	if s.gorm.Logger == nil {
		s.gorm.Logger = logger.Discard
	}
	db, err := gorm.Open(s.driver, &s.gorm)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close() })
	pool.SetMaxOpenConns(s.conns)
	if err := db.Use(idempotency.New(s.config)); err != nil {
		t.Fatal(err)
	}
	if err := db.Exec(`CREATE TABLE IF NOT EXISTS orders (id bigserial PRIMARY KEY, event text NOT NULL)`).Error; err != nil {
		t.Fatal(err)
	}
	return db
}

// dialector is pgx on a DSN. With IDEMPOTENCY_TEST_PIPELINE=on it pipelines, and everything must be as without it.
func dialector(t testing.TB, dsn string) gorm.Dialector {
	t.Helper()
	if os.Getenv("IDEMPOTENCY_TEST_PIPELINE") != "on" {
		return postgres.Open(dsn)
	}
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return postgres.New(postgres.Config{Conn: pipeline.OpenDB(stdlib.GetConnector(*config))})
}

// placeOrder is a handler that writes one order and answers 201 with it.
func placeOrder(event string) func(*gorm.DB) error {
	return func(tx *gorm.DB) error {
		if err := tx.Create(&order{Event: event}).Error; err != nil {
			return err
		}
		return idempotency.Respond(tx, 201, map[string]string{"order": event})
	}
}

// effects counts the orders of an event that are committed.
func effects(t testing.TB, db *gorm.DB, event string) int64 {
	t.Helper()
	var count int64
	if err := db.Session(&gorm.Session{NewDB: true, Context: context.Background()}).
		Model(&order{}).Where("event = ?", event).Count(&count).Error; err != nil {
		t.Fatal(err)
	}
	return count
}

func requireEffects(t testing.TB, db *gorm.DB, event string, want int64) {
	t.Helper()
	if got := effects(t, db, event); got != want {
		t.Errorf("the effect of %s happened %d times, want %d", event, got, want)
	}
}

// requireNoKey fails unless the key is free.
func requireNoKey(t testing.TB, db *gorm.DB, source, id string) {
	t.Helper()
	if key, err := idempotency.Lookup(context.Background(), db, source, id); !errors.Is(err, idempotency.ErrKeyNotFound) {
		t.Errorf("key %s %s: got %+v, %v; want ErrKeyNotFound", source, id, key, err)
	}
}

// requireError fails unless err is want.
func requireError(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want %v", err, want)
	}
}

// requireIdle fails unless all connections of the pool come back. database/sql gives back the connection of a cancelled
// transaction in a goroutine of its own, so this waits, with a limit.
func requireIdle(t testing.TB, db *gorm.DB) {
	t.Helper()
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pool's connections come back", func() bool { return pool.Stats().InUse == 0 })
}

// eventually polls until ok, and fails the test if that takes longer than anything here should.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("did not happen: %s", what)
}

// holder is a delivery whose handler runs until it is told to finish.
type holder struct {
	running chan struct{} // closed when the handler runs: the key is claimed
	finish  chan error    // what the handler returns
	done    chan struct{} // closed when the call has returned
	result  *idempotency.Result
	err     error
}

// hold starts a delivery that claims the key, and returns once it has.
func hold(t testing.TB, db *gorm.DB, source, id string, body []byte) *holder {
	t.Helper()
	h := &holder{running: make(chan struct{}), finish: make(chan error, 1), done: make(chan struct{})}
	go func() {
		defer close(h.done)
		h.result, h.err = idempotency.Do(db, source, id, body, func(tx *gorm.DB) error {
			close(h.running)
			if err := <-h.finish; err != nil {
				return err
			}
			return placeOrder(id)(tx)
		})
	}()
	select {
	case <-h.running:
	case <-h.done:
		t.Fatalf("the holder's call returned early: %v, %v", h.result, h.err)
	}
	var once sync.Once
	t.Cleanup(func() { once.Do(func() { h.end(errors.New("the test is over")) }) })
	return h
}

// end lets the handler return err, and waits for the call to return.
func (h *holder) end(err error) {
	select {
	case h.finish <- err:
	default: // told already
	}
	<-h.done
}
