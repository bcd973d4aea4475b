package gormtest

import (
	"context"
	"sync"
	"testing"

	"gorm.io/gorm"
)

// RequireSingleConn fails the test if code uses a second connection while its transaction is open on a first one, be it to
// read. In a pool that is used up such code waits for a connection that nobody gives back, and what it reads there does
// not see what its own transaction wrote. The failure names the statement and its line.
//
// The code gets a handle like db. Run one delivery in it: of two at a time, each would be the other's second connection. Its
// error fails the test too. [WithTimeout] bounds it.
func RequireSingleConn(t testing.TB, db *gorm.DB, code func(db *gorm.DB) error, opts ...Option) {
	t.Helper()
	var w connWatch
	tr := newTrial(t, db, func(_ context.Context, db *gorm.DB, _ int) (any, error) { return nil, code(db) }, opts)
	defer tr.close()
	tr.tap.watch = w.see
	tr.mustDeliver(0, "delivered once")
	tr.requireNoGoroutines()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.second != nil {
		t.Errorf("gormtest: while a transaction is open on one connection, a second one is used for %s%s: use the transaction's handle",
			shorten(w.second.text), asked(w.second.caller))
	}
}

// connWatch looks for a request beside a transaction.
type connWatch struct {
	mu     sync.Mutex
	in     *tappedConn // the connection with a transaction
	second *request    // the first request on another one meanwhile
}

func (w *connWatch) see(r request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.in != nil && w.in != r.conn:
		if w.second == nil {
			w.second = &r
		}
	case r.text == begin:
		w.in = r.conn
	case r.text == commit, r.text == rollback:
		w.in = nil
	}
}
