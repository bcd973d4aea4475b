package gormtest

import (
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/DATA-DOG/go-sqlmock"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
)

// Mock is a database that follows a script: expectations of go-sqlmock's, and those of [Expect] among them.
type Mock struct {
	sqlmock.Sqlmock

	differences *differences
}

// NewMock returns a handle on a mock, for a unit test that needs no database. The plugin is registered, in its default
// configuration but for Config.Wait: calls do not wait, since what a waiting call says cannot be foreseen. What the test
// expects is matched in order, by go-sqlmock's default matcher. GORM's warnings and errors go to the test's log.
//
// When the test ends, an expectation that was not met fails it, and the handle is closed. For a matcher, gorm.Config or plugin
// configuration of your own make the mock with sqlmock.New, and give it to [Expect].
//
// A mock cannot show a race: see [Expect].
func NewMock(t testing.TB) (*gorm.DB, *Mock) {
	t.Helper()
	pool, script, err := sqlmock.New()
	if err != nil {
		t.Fatalf("gormtest: make a mock: %v", err)
	}
	mock := &Mock{Sqlmock: script, differences: &differences{}}
	t.Cleanup(func() { mock.end(t, pool) })
	db, err := gorm.Open(postgres.New(postgres.Config{Conn: pool}), &gorm.Config{Logger: newLogger(t)})
	if err != nil {
		t.Fatalf("gormtest: open the mock: %v", err)
	}
	if err := db.Use(idempotency.New(idempotency.Config{Wait: -time.Second})); err != nil {
		t.Fatalf("gormtest: register the plugin: %v", err)
	}
	return db, mock
}

// end reports what is left of the script. An error of Do says what came instead, but a test may not look at it, and the
// library ignores that of a ROLLBACK.
func (m *Mock) end(t testing.TB, pool *sql.DB) {
	t.Helper()
	if err := m.ExpectationsWereMet(); err != nil {
		t.Errorf("gormtest: the code under test did not do all that the test expects: %s%v\n%v", hint(err.Error()), m.differences, err)
	}
	_ = pool.Close() // what it says is only that nobody expects it
}

// hint says what it commonly means that an expectation is left.
func hint(remaining string) string {
	switch {
	case strings.Contains(remaining, "ExpectedBegin "):
		return "a transaction was not begun. Was a delivery left out, or refused before any SQL? The error of the call tells."
	case strings.Contains(remaining, "ExpectedCommit "):
		return "a transaction was not committed. Its handler failed, or the mock refused a statement: the error of the call tells."
	case strings.Contains(remaining, "ExpectedRollback "):
		return "a transaction was not rolled back. Did the handler succeed, where the test expects it to fail?"
	case strings.Contains(remaining, "response_status IS NULL"):
		return "an answer was not stored. Did the handler respond, and with this answer?"
	}
	return "a statement was not sent, or sent differently. The error of the call tells."
}
