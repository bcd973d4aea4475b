// Package conformance is the behaviour that every driver, mode and setting has to show, written once and run over all of
// them: the root module runs it with pgx, and the module internal/compat with what only compatibility needs.
package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
)

// Cell is a way of running GORM on PostgreSQL.
type Cell struct {
	// Group and Name are its place in the table of docs/compatibility.md.
	Group, Name string

	// Dialector makes the driver's for a DSN.
	Dialector func(dsn string) gorm.Dialector

	// State extracts the driver's own SQLSTATE by errors.As on the driver's own type, to show that the original error
	// is reachable. nil: pgx's.
	State func(error) string

	// Setup, if not nil, prepares the cell's database, and returns the DSN to use: of something in between, perhaps.
	Setup func(t *testing.T, dsn string) string

	// Use registers other plugins: those that come before ours, and those after it.
	Before, After func(t testing.TB, db *gorm.DB, dsn string)

	Gorm    gorm.Config
	Config  idempotency.Config
	Conns   int                  // the pool's size; 0: no limit
	Options []idempotency.Option // of each delivery

	// Handle is what the deliveries are made on. The zero Handle is the pool itself.
	Handle Handle

	// Strict is a level at which a delivery may fail with 40001, as any transaction there: it is delivered again.
	Strict bool

	// Unnamed leaves out what names a prepared statement, where the next transaction may be on another connection.
	Unnamed bool

	// Alone runs one case at a time: a transaction that is strict by default fails because of others that it has nothing to
	// do with but neighbourhood in an index.
	Alone bool
}

// Run runs every case in a cell. The cases share a database and a pool, and run at the same time: each has a source of its
// own.
func Run(t *testing.T, cell Cell) {
	t.Helper()
	suite := newSuite(t, cell)
	db := suite.open(t, cell.Config, cell.Dialector(suite.dsn))
	t.Cleanup(func() { requireIdle(t, db) })
	for _, c := range cases {
		if !c.in(suite) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			if !cell.Alone {
				t.Parallel()
			}
			suite.run(t, c, db)
		})
		suite.ran++
	}
	t.Cleanup(func() {
		if !t.Failed() {
			note(Record{Group: cell.Group, Name: cell.Name, Outcome: fmt.Sprintf("works: %d cases", suite.ran)})
		}
	})
}

// suite is a cell with its database.
type suite struct {
	Cell

	direct string // the DSN of the database itself
	dsn    string // and of what is in front of it
	ran    int
}

func newSuite(t *testing.T, cell Cell) *suite {
	t.Helper()
	if cell.State == nil {
		cell.State = PgxState
	}
	if cell.Handle.with == nil {
		cell.Handle = Pool
	}
	s := &suite{Cell: cell, direct: gormtest.DSN(t)}
	s.dsn = s.direct
	if cell.Setup != nil {
		s.dsn = cell.Setup(t, s.direct)
	}
	s.createTables(t)
	return s
}

// PgxState is the SQLSTATE of pgx's error.
func PgxState(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
}

// createTables makes the effects' tables under the names that the cell's naming strategy gives them.
func (s *suite) createTables(t *testing.T) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.direct)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	naming := s.Gorm
	if naming.NamingStrategy == nil {
		naming.NamingStrategy = defaultNaming
	}
	effects, marks := naming.NamingStrategy.TableName("effect"), naming.NamingStrategy.TableName("mark")
	var statements []string
	for _, name := range []string{effects, s.Config.Table} {
		if schema, _, qualified := strings.Cut(name, "."); qualified {
			statements = append(statements, "CREATE SCHEMA IF NOT EXISTS "+schema)
		}
	}
	if s.Config.Table != "" {
		statements = append(statements, "CREATE TABLE "+s.Config.Table+" (LIKE idempotency_keys INCLUDING ALL)",
			"DROP TABLE idempotency_keys")
	}
	// Each row knows the transaction that wrote it.
	statements = append(statements,
		`CREATE TABLE `+effects+` (id bigserial PRIMARY KEY, event text NOT NULL, version int, deleted_at timestamptz,
			xid bigint NOT NULL DEFAULT txid_current(), ref bigint REFERENCES `+effects+` DEFERRABLE INITIALLY DEFERRED)`,
		`CREATE TABLE `+marks+` (id bigserial PRIMARY KEY, effect_id bigint NOT NULL REFERENCES `+effects+`, event text NOT NULL,
			xid bigint NOT NULL DEFAULT txid_current())`)
	for _, statement := range statements {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

// open gives a pool of the cell's kind.
func (s *suite) open(t testing.TB, config idempotency.Config, dialector gorm.Dialector) *gorm.DB {
	t.Helper()
	gormConfig := s.Gorm
	if gormConfig.Logger == nil {
		gormConfig.Logger = logger.Discard
	}
	db, err := gorm.Open(dialector, &gormConfig)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	})
	pool.SetMaxOpenConns(s.Conns)
	pool.SetMaxIdleConns(10) // rather than forking a backend for each case
	if s.Before != nil {
		s.Before(t, db, s.dsn)
	}
	if err := db.Use(idempotency.New(config)); err != nil {
		t.Fatal(err)
	}
	if s.After != nil {
		s.After(t, db, s.dsn)
	}
	return db
}

func (s *suite) run(t *testing.T, c testCase, db *gorm.DB) {
	t.Helper()
	scene := &scene{T: t, suite: s, pool: db, source: c.name}
	s.Handle.with(t, db, func(handle *gorm.DB) {
		scene.db = handle
		c.run(scene)
	})
	for _, check := range scene.afterwards {
		check()
	}
}

// Handle is what an application calls Do on.
type Handle struct {
	Name   string
	Joined bool // it is in a transaction already
	with   func(t *testing.T, pool *gorm.DB, use func(handle *gorm.DB))
}

// Handles are the ways of getting one.
var Handles = []Handle{Pool, Conn, Begun, InTransaction, InNestedTransaction, InScope}

// The handles.
var (
	Pool = Handle{Name: "pool", with: func(_ *testing.T, pool *gorm.DB, use func(*gorm.DB)) { use(pool) }}

	Conn = Handle{Name: "Connection", with: func(t *testing.T, pool *gorm.DB, use func(*gorm.DB)) {
		t.Helper()
		requireNil(t, pool.Connection(func(tx *gorm.DB) error {
			// GORM's handle is one chain of calls: an application makes a session of it, or its conditions pile up.
			use(tx.Session(&gorm.Session{}))
			return nil
		}))
	}}

	Begun = Handle{Name: "Begin", Joined: true, with: func(t *testing.T, pool *gorm.DB, use func(*gorm.DB)) {
		t.Helper()
		tx := pool.Begin()
		requireNil(t, tx.Error)
		use(tx)
		requireNil(t, tx.Commit().Error)
	}}

	InTransaction = Handle{Name: "Transaction", Joined: true, with: func(t *testing.T, pool *gorm.DB, use func(*gorm.DB)) {
		t.Helper()
		requireNil(t, pool.Transaction(func(tx *gorm.DB) error {
			use(tx)
			return nil
		}))
	}}

	InNestedTransaction = Handle{Name: "nested Transaction", Joined: true, with: func(t *testing.T, pool *gorm.DB, use func(*gorm.DB)) {
		t.Helper()
		requireNil(t, pool.Transaction(func(tx *gorm.DB) error {
			return tx.Transaction(func(tx *gorm.DB) error {
				use(tx)
				return nil
			})
		}))
	}}

	InScope = Handle{Name: "another key's handler", Joined: true, with: func(t *testing.T, pool *gorm.DB, use func(*gorm.DB)) {
		t.Helper()
		_, err := idempotency.Do(pool, "around", t.Name(), nil, func(tx *gorm.DB) error {
			use(tx)
			return nil
		})
		requireNil(t, err)
	}}
)

func requireNil(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// requireIdle fails unless the pool's connections have come back. database/sql returns a cancelled transaction's in a
// goroutine of its own, which closing the pool would not wait for: so this asks for one that only then is free.
func requireIdle(t *testing.T, db *gorm.DB) {
	t.Helper()
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	pool.SetMaxOpenConns(1)
	if err := pool.PingContext(context.Background()); err != nil { // also when the test's own context has ended
		t.Errorf("the pool has no connection left: %v", err)
	}
	if used := pool.Stats().InUse; used > 0 {
		t.Errorf("%d connections were not given back", used)
	}
}
