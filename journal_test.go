package idempotency_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-idempotency/idempotency/gormtest"
)

// journal is a GORM logger that keeps every line: messages with their level, statements with their text and error.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) LogMode(logger.LogLevel) logger.Interface { return j }

func (j *journal) Info(_ context.Context, text string, args ...any)  { j.write("info", text, args) }
func (j *journal) Warn(_ context.Context, text string, args ...any)  { j.write("warn", text, args) }
func (j *journal) Error(_ context.Context, text string, args ...any) { j.write("error", text, args) }

func (j *journal) Trace(_ context.Context, _ time.Time, statement func() (string, int64), err error) {
	text, _ := statement()
	j.write("trace", "%s: %v", []any{text, err})
}

func (j *journal) write(level, format string, args []any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, level+" "+fmt.Sprintf(format, args...))
}

// of returns the lines that start with one of these levels.
func (j *journal) of(levels ...string) []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(j.lines), func(line string) bool {
		return !slices.ContainsFunc(levels, func(level string) bool { return strings.HasPrefix(line, level+" ") })
	})
}

// sent is a statement as it reached the driver.
type sent struct {
	text string
	args []any
}

// wire keeps every statement that reaches the driver, whoever sends it: GORM, database/sql or the library.
type wire struct {
	mu         sync.Mutex
	statements []sent
	before     func(*pgx.Conn, string)
}

// watch calls before with each statement to come, ahead of the server. It may block, and use other connections.
func (w *wire) watch(before func(*pgx.Conn, string)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.before = before
}

func (w *wire) TraceQueryStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	args := slices.DeleteFunc(slices.Clone(data.Args), func(arg any) bool {
		switch arg.(type) {
		case pgx.QueryResultFormats, pgx.QueryResultFormatsByOID, pgx.QueryExecMode:
			return true // pgx's own options
		}
		return false
	})
	w.mu.Lock()
	w.statements = append(w.statements, sent{data.SQL, args})
	before := w.before
	w.mu.Unlock()
	if before != nil {
		before(conn, data.SQL)
	}
	return ctx
}

func (w *wire) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// take returns the statements since the last take.
func (w *wire) take() []sent {
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := w.statements
	w.statements = nil
	return taken
}

// requireSilent fails if a statement has reached the driver since the last take.
func (w *wire) requireSilent(t testing.TB) {
	t.Helper()
	for _, s := range w.take() {
		t.Errorf("a statement ran: %s", s.text)
	}
}

// openWired is open with a record of what reaches the driver. It begins empty.
func openWired(t testing.TB, s setup) (*gorm.DB, *wire) {
	t.Helper()
	if s.dsn == "" {
		s.dsn = gormtest.DSN(t)
	}
	config, err := pgx.ParseConfig(s.dsn)
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{}
	config.Tracer = w
	s.driver = postgres.New(postgres.Config{Conn: stdlib.OpenDB(*config)})
	db := open(t, s)
	w.take()
	return db, w
}

// mustExec runs a statement of a test's own, outside of everything.
func mustExec(t testing.TB, db *gorm.DB, statement string, args ...any) {
	t.Helper()
	if err := db.Exec(statement, args...).Error; err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// read gives the first column of a query's first row.
func read[T any](t testing.TB, db *gorm.DB, query string, args ...any) T {
	t.Helper()
	var values []T
	if err := db.Raw(query, args...).Scan(&values).Error; err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	if len(values) == 0 {
		t.Fatalf("%s: no row", query)
	}
	return values[0]
}
