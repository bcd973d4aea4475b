package compat_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-idempotency/idempotency"
)

// never is longer than any wait here lasts.
const never = time.Minute

// order is the effect that the handlers have. Nothing but the library keeps it from happening twice.
type order struct {
	ID    uint `gorm:"primaryKey"`
	Event string
}

const createOrders = "CREATE TABLE IF NOT EXISTS orders (id bigserial PRIMARY KEY, event text NOT NULL)"

func placeOrder(event string) func(*gorm.DB) error {
	return func(tx *gorm.DB) error {
		return errors.Join(tx.Create(&order{Event: event}).Error, idempotency.Respond(tx, 201, event))
	}
}

func unwanted(t testing.TB) func(*gorm.DB) error {
	return func(*gorm.DB) error {
		t.Error("the handler ran")
		return nil
	}
}

// connect opens a pool beside GORM.
func connect(t testing.TB, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", dsn)
	requireNil(t, err)
	t.Cleanup(func() { requireNil(t, db.Close()) })
	return db
}

// open opens a GORM handle without the plugin.
func open(t testing.TB, dialector gorm.Dialector, config gorm.Config) *gorm.DB {
	t.Helper()
	if config.Logger == nil {
		config.Logger = logger.Discard
	}
	db, err := gorm.Open(dialector, &config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		pool, err := db.DB()
		requireNil(t, err)
		requireNil(t, pool.Close())
	})
	return db
}

// openWithOrders opens one with the plugin and the table of orders.
func openWithOrders(t testing.TB, dsn string, config gorm.Config) *gorm.DB {
	t.Helper()
	db := open(t, postgres.Open(dsn), config)
	requireNil(t, db.Use(idempotency.New(idempotency.Config{})))
	requireNil(t, db.Exec(createOrders).Error)
	return db
}

func execute(t testing.TB, db *sql.DB, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		if _, err := db.ExecContext(context.Background(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

// query gives the first column of a query's only row, as text.
func query(t testing.TB, db *sql.DB, statement string, args ...any) string {
	t.Helper()
	var value any
	if err := db.QueryRowContext(context.Background(), statement, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return fmt.Sprint(value)
}

func requireQuery(t testing.TB, db *sql.DB, want, statement string, args ...any) {
	t.Helper()
	if got := query(t, db, statement, args...); got != want {
		t.Errorf("%s: got %s, want %s", statement, got, want)
	}
}

func requireNil(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func requireIs(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want %v", err, want)
	}
}

// requireNoVerdict fails unless err is an error that says nothing of what became of the key.
func requireNoVerdict(t testing.TB, err error) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, verdict := range []error{idempotency.ErrInFlight, idempotency.ErrDigestMismatch, idempotency.ErrOutcomeUnknown} {
		if errors.Is(err, verdict) {
			t.Errorf("error %v reads as %q", err, verdict)
		}
	}
}
