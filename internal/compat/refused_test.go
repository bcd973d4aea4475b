package compat_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/utils/tests"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
	"github.com/gorm-idempotency/idempotency/internal/conformance"
	"github.com/gorm-idempotency/idempotency/migrations"
)

// A server that only reads, such as a standby, refuses the claim. Also of a key that it has: what is answered there may be
// older than what the primary knows. lib/pq begins every transaction with READ WRITE: it overrides the setting, and a
// standby refuses its BEGIN with the same SQLSTATE.
func TestReadOnlyServerIsRefused(t *testing.T) {
	t.Parallel()
	for _, d := range drivers[:5] {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			dsn := gormtest.DSN(t)
			_, err := idempotency.Do(openWithOrders(t, dsn, gorm.Config{}), "s", "there", nil, placeOrder("there"))
			requireNil(t, err)
			admin := connect(t, dsn)
			execute(t, admin, "ALTER DATABASE "+query(t, admin, "SELECT current_database()")+" SET default_transaction_read_only = on")
			db := open(t, d.dialector(dsn), gorm.Config{})
			requireNil(t, db.Use(idempotency.New(idempotency.Config{})))
			for _, event := range []string{"there", "new"} {
				_, err := idempotency.Do(db, "s", event, nil, unwanted(t))
				requireReadOnly(t, d, err)
				_ = db.Transaction(func(tx *gorm.DB) error {
					_, err := idempotency.Do(tx, "s", event, nil, unwanted(t))
					requireReadOnly(t, d, err)
					return err
				})
			}
			// What only reads works.
			_, err = idempotency.Lookup(t.Context(), db, "s", "there")
			requireNil(t, err)
			requireNil(t, idempotency.CheckSchema(t.Context(), db))
			conformance.Note(t, "Refused", "a read-only server or standby, "+d.name, "the first call fails with SQLSTATE 25006; Lookup and CheckSchema work")
		})
	}
}

func requireReadOnly(t *testing.T, d pgDriver, err error) {
	t.Helper()
	requireNoVerdict(t, err)
	if d.state(err) != "25006" {
		t.Errorf("error %v, want SQLSTATE 25006", err)
	}
}

// withoutTransactions is a driver that has only what database/sql insists on.
type withoutTransactions struct{ driver.Connector }

func (c withoutTransactions) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return plainConn{Conn: conn}, nil
}

type plainConn struct{ driver.Conn }

func (plainConn) Begin() (driver.Tx, error) { return noTransaction{}, nil }

// noTransaction is what such drivers pretend with.
type noTransaction struct{}

func (noTransaction) Commit() error   { return nil }
func (noTransaction) Rollback() error { return errors.New("there is nothing to roll back") }

// A driver that has no isolation levels, and may have no transactions either, fails at BEGIN: the library asks for a level,
// and database/sql refuses it for the driver.
func TestDriverWithoutTransactionsIsRefused(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	for _, d := range []pgDriver{drivers[0], drivers[5]} {
		connector, err := d.connect(dsn)
		requireNil(t, err)
		pool := sql.OpenDB(withoutTransactions{connector})
		db := open(t, postgres.New(postgres.Config{Conn: pool}), gorm.Config{})
		requireNil(t, db.Use(idempotency.New(idempotency.Config{})))
		_, err = idempotency.Do(db, "s", "evt", nil, unwanted(t))
		requireNoVerdict(t, err)
		if !strings.HasPrefix(err.Error(), "idempotency: begin: ") || !strings.Contains(err.Error(), "isolation level") {
			t.Errorf("error %v", err)
		}
	}
	requireQuery(t, connect(t, dsn), "0", "SELECT count(*) FROM idempotency_keys")
	conformance.Note(t, "Refused", "a driver without transactions", "the first call fails at BEGIN: driver does not support non-default isolation level")
}

// poolWithoutBegin is a pool of the application's own that cannot begin a transaction.
type poolWithoutBegin struct{ gorm.ConnPool }

func TestPoolWithoutTransactionsIsRefused(t *testing.T) {
	t.Parallel()
	pool := &poolWithoutBegin{connect(t, gormtest.DSN(t))}
	db, err := gorm.Open(postgres.New(postgres.Config{Conn: pool}), &gorm.Config{DisableAutomaticPing: true})
	requireNil(t, err)
	requireNil(t, db.Use(idempotency.New(idempotency.Config{})))
	_, err = idempotency.Do(db, "s", "evt", nil, unwanted(t))
	requireIs(t, err, idempotency.ErrUnsupported)
	requireIs(t, err, errors.ErrUnsupported)
	conformance.Note(t, "Refused", "a ConnPool that cannot begin", "the first call fails with ErrUnsupported")
}

func TestOtherDialectIsRefused(t *testing.T) {
	t.Parallel()
	db, err := gorm.Open(tests.DummyDialector{})
	requireNil(t, err)
	err = db.Use(idempotency.New(idempotency.Config{}))
	requireIs(t, err, idempotency.ErrUnsupported)
	if !strings.Contains(err.Error(), `the dialect "dummy"`) {
		t.Errorf("error %v", err)
	}
	conformance.Note(t, "Refused", "another dialect than PostgreSQL's", "db.Use fails with ErrUnsupported")
}

// oldServer makes a server say that it is of version 11. There is none to be had.
type oldServer struct{ driver.Connector }

func (c oldServer) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return oldConn{conn.(*stdlib.Conn)}, nil
}

type oldConn struct{ *stdlib.Conn }

func (c oldConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.Conn.QueryContext(ctx, strings.ReplaceAll(query, "pg_catalog.current_setting('server_version_num')", "'110022'"), args)
}

func TestServerBefore12IsRefused(t *testing.T) {
	t.Parallel()
	connector, err := drivers[0].connect(gormtest.DSN(t))
	requireNil(t, err)
	pool := sql.OpenDB(oldServer{connector})
	db := open(t, postgres.New(postgres.Config{Conn: pool}), gorm.Config{})
	requireNil(t, db.Use(idempotency.New(idempotency.Config{})))
	for _, err := range []error{
		idempotency.CheckSchema(t.Context(), db), migrations.Validate(t.Context(), pool), migrations.Up(t.Context(), pool),
	} {
		requireIs(t, err, idempotency.ErrSchema)
		if !strings.Contains(err.Error(), "want 12 or newer") {
			t.Errorf("error %v", err)
		}
	}
	conformance.Note(t, "Refused", "a server before PostgreSQL 12", "CheckSchema, migrations.Validate and migrations.Up fail with ErrSchema, which names both versions")
}
