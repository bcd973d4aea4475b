package gormtest

import (
	"sync"
	"testing"

	"gorm.io/gorm/logger"
)

// newLogger logs warnings and errors to a test. There is no threshold for slow statements: on a busy machine all are.
func newLogger(t testing.TB) logger.Interface {
	t.Helper()
	w := &testWriter{t: t}
	t.Cleanup(w.end)
	return logger.New(w, logger.Config{LogLevel: logger.Warn, IgnoreRecordNotFoundError: true})
}

// testWriter writes to a test's log until the test ends. Logging later panics, and goroutines of a test's subject may
// outlive it.
type testWriter struct {
	mu    sync.Mutex
	t     testing.TB
	ended bool
}

// Printf implements logger.Writer.
func (w *testWriter) Printf(format string, args ...any) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.t.Logf(format, args...)
	}
}

func (w *testWriter) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
}
