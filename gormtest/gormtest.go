// Package gormtest gives tests a real PostgreSQL, and finds handlers that do not keep the promise.
//
// Each test gets a database of its own with the library's table in it, so tests may use t.Parallel and need not clean up:
//
//	func TestPayment(t *testing.T) {
//		t.Parallel()
//		db := gormtest.Open(t)
//		…
//	}
//
// # Handlers
//
// The library makes a handler's effect happen once, and cannot keep it from having an effect elsewhere. These deliver events to
// your code, by a [Deliver] that you write, and fail the test with the row, the statement and the line that broke the promise:
//
//   - [Hammer]: the same events over and over, many at a time;
//   - [CrashPoints]: with the connection cut at each request in turn;
//   - [Record]: one delivery, with an eye on what leaves the handler's transaction, and on calls out of the process;
//   - [RequireSingleConn]: a second connection beside a transaction.
//
// [RequireKey], [RequireNoKey], [RequireReplayed] and [AgeKeys] are for tests of your own. [Expect] and [NewMock] are for unit
// tests without a database, which cannot show a race.
//
// What a delivery leaves running, in whatever way it ends, fails the test; none of the package's own goroutines outlives a
// call, but for the pools that close when the test ends.
//
// # The driver
//
// It is pgx, as gorm.io/driver/postgres has it by default: [Hammer], [CrashPoints], [Record] and [RequireSingleConn] refuse a handle on
// another one. They open connections of their own, by the pgx.ConnConfig of the handle's. Options of its pool, such as
// stdlib.OptionAfterConnect, are not carried over, nor is the pipelining of pipeline.OpenDB: each statement is sent by itself.
//
// # The server
//
// It is the one that the environment variable IDEMPOTENCY_TEST_DSN names, as a URL or as keywords and values. Its role
// must be allowed to create databases. The database in the DSN is only connected to.
//
// Without the variable it is a PostgreSQL that the first test of a process starts from the programs installed on the
// machine, in a temporary folder and on a free port of the loopback address. Where there is room its files are in memory,
// unless TMPDIR says where they go. It is gone when the process has ended, in whatever way.
//
// On a machine without programs they are downloaded, once: from Maven Central, or the repository in
// IDEMPOTENCY_POSTGRES_REPOSITORY ("off" for none), to the user's cache folder, or the one in IDEMPOTENCY_CACHE_DIR.
//
// A test without a server fails. It is never skipped: a promise that nobody checked isn't kept.
//
// # What is left on a server of yours
//
// Databases called gormtest_…, one for each test, are dropped when their test ends. What a killed process has left is
// dropped by the first test of a later process, a day after it was made. One database called gormtest_template_… stays
// for each role and version of the library's table, since copying it is what makes tests quick; it may be dropped while no
// test runs.
package gormtest

import (
	"context"
	"testing"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
)

// setupTimeout bounds the making, and the dropping, of one test's database on a server that is up.
const setupTimeout = 30 * time.Second

// DSN returns the DSN of an empty, migrated database that is the calling test's alone. It is dropped when the test and
// its subtests have ended, whoever is still connected.
//
// The DSN has the form of IDEMPOTENCY_TEST_DSN and its other parameters, or is a URL if that isn't set.
// DSN fails the test if there is no such database.
func DSN(t testing.TB) string {
	t.Helper()
	server, err := theServer()
	if err != nil {
		t.Fatalf("gormtest: %v", err)
	}
	return server.databaseFor(t)
}

// Open returns a handle on such a database as [DSN] gives, with the plugin registered in its default configuration. The
// handle is closed when the test ends.
//
// GORM's warnings and errors go to the test's log. For another driver, gorm.Config or plugin configuration use DSN.
func Open(t testing.TB) *gorm.DB {
	t.Helper()
	db, err := gorm.Open(postgres.Open(DSN(t)), &gorm.Config{Logger: newLogger(t)})
	if err != nil {
		t.Fatalf("gormtest: open: %v", oneLine(err))
	}
	closeAfter(t, db)
	if err := db.Use(idempotency.New(idempotency.Config{})); err != nil {
		t.Fatalf("gormtest: register the plugin: %v", err)
	}
	return db
}

func closeAfter(t testing.TB, db *gorm.DB) {
	t.Helper()
	pool, err := db.DB()
	if err != nil {
		t.Fatalf("gormtest: open: %v", err)
	}
	t.Cleanup(func() {
		if err := pool.Close(); err != nil {
			t.Errorf("gormtest: close: %v", err)
		}
	})
}

// databaseFor makes a database for a test and sees to its end.
func (s *server) databaseFor(t testing.TB) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
	defer cancel()
	name := newName()
	if err := s.createDatabase(ctx, name); err != nil {
		t.Fatalf("gormtest: %v", err)
	}
	t.Cleanup(func() {
		// Not the test's context, which has ended by now.
		ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
		defer cancel()
		if err := s.dropDatabase(ctx, name); err != nil {
			t.Errorf("gormtest: %v", err)
		}
	})
	return s.base.with(name)
}
