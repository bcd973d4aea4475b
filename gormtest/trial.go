package gormtest

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

// trial is code under test, with all that is needed to look at what it does: a tap on the connections that it is given, and
// a journal of what changes in the database.
type trial struct {
	settings

	t       testingT
	ctx     context.Context
	db      *gorm.DB // for the code under test
	pool    *sql.DB  // db's
	tap     *tap
	journal *journal
	subject Deliver
	id      string // labels its goroutines

	mu    sync.Mutex
	lines map[string][]string // of the user's code that sent a statement outside of all handlers, by its text
}

// maxConns is how many connections the code under test gets: enough for races, and few enough for tests in parallel.
const maxConns = 20

// newTrial prepares one, or fails the test with what is in the way.
func newTrial(t testingT, db *gorm.DB, subject Deliver, opts []Option) *trial {
	t.Helper()
	tr, err := prepareTrial(t, db, subject, opts)
	if err != nil {
		t.Fatalf("gormtest: %v", err)
	}
	return tr
}

func prepareTrial(t testingT, db *gorm.DB, subject Deliver, opts []Option) (*trial, error) {
	settings, err := collect(opts)
	if err != nil {
		return nil, err
	}
	if subject == nil {
		return nil, errors.New("the Deliver is nil")
	}
	tr := &trial{settings: settings, t: t, ctx: t.Context(), subject: subject, id: rand.Text(), lines: make(map[string][]string)}
	tr.tap = newTap(tr.remember)
	ctx, cancel := context.WithTimeout(tr.ctx, setupTimeout)
	defer cancel()
	if tr.db, tr.pool, err = tapInto(ctx, db, tr.tap); err != nil {
		return nil, err
	}
	tr.pool.SetMaxOpenConns(maxConns)
	if tr.journal, err = openJournal(ctx, db, tr.tables); err != nil {
		_ = tr.pool.Close()
		return nil, err
	}
	return tr, nil
}

// tapInto returns a handle like db whose requests pass the tap, after a look at whether it can be used at all.
func tapInto(ctx context.Context, db *gorm.DB, t *tap) (*gorm.DB, *sql.DB, error) {
	if db == nil || db.Config == nil || db.Statement == nil {
		return nil, nil, errors.New("the handle is nil, or gorm.Open did not make it")
	}
	if db.Error != nil {
		return nil, nil, fmt.Errorf("the handle carries an error: %w", db.Error)
	}
	if _, inTransaction := db.Statement.ConnPool.(gorm.TxCommitter); inTransaction {
		return nil, nil, errors.New("the handle is in a transaction: give one of a pool")
	}
	if err := idempotency.CheckSchema(ctx, db.WithContext(ctx)); err != nil {
		return nil, nil, oneLine(err)
	}
	table, err := libraryTable(db)
	if err != nil {
		return nil, nil, err
	}
	t.statements = pgsql.Render(table)
	return tapped(ctx, db, t)
}

// reply is what became of one delivery.
type reply struct {
	answer answer
	err    error  // the sender was refused, and will come back
	fault  string // what no delivery may do: the trial is over
}

// grace is how long a delivery has to return once its context is cancelled.
const grace = 2 * time.Second

// deliver makes one delivery.
func (tr *trial) deliver(event int) reply { return tr.deliverOn(tr.db, event) }

// deliverOn makes one delivery on a handle, in a goroutine of its own, since it may leave that or never come back.
func (tr *trial) deliverOn(db *gorm.DB, event int) reply {
	ctx, cancel := context.WithCancel(tr.ctx)
	defer cancel()
	ended := make(chan reply, 1)
	go labelled(ctx, tr.id, func(ctx context.Context) { tr.call(ctx, db, event, ended) })
	timeout := time.NewTimer(tr.timeout)
	defer timeout.Stop()
	select {
	case o := <-ended:
		return o
	case <-timeout.C:
	}
	places := running(tr.id)
	cancel()
	fault := fmt.Sprintf("the delivery of event %d had not returned after %v%s", event, tr.timeout, at(places))
	select {
	case <-ended:
		return reply{fault: fault + ": give what it waits for a limit"}
	case <-time.After(grace):
		return reply{fault: fault + ", nor when its context was cancelled: wait for ctx.Done() too"}
	}
}

// at lists places for a message.
func at(places []string) string {
	const most = 3
	if len(places) == 0 {
		return ""
	}
	return ": it was at " + strings.Join(places[:min(most, len(places))], ", ")
}

// call calls the code under test, and says what became of it, also if it panics or leaves its goroutine.
func (tr *trial) call(ctx context.Context, db *gorm.DB, event int, ended chan<- reply) {
	o := reply{fault: fmt.Sprintf("the delivery of event %d left its goroutine, by t.FailNow or runtime.Goexit: return an error", event)}
	defer func() {
		if reason := recover(); reason != nil {
			o = reply{fault: fmt.Sprintf("the delivery of event %d panicked at %s: %v", event, caller(), reason)}
		}
		ended <- o
	}()
	value, err := tr.subject(ctx, db.WithContext(ctx), event)
	o = reply{answer: answerOf(value, tr.headers...), err: err}
}

// mustDeliver is for a delivery that has to succeed. If it doesn't, the trial is over.
func (tr *trial) mustDeliver(event int, what string) answer {
	tr.t.Helper()
	o := tr.deliver(event)
	switch {
	case o.fault != "":
		tr.t.Fatalf("gormtest: %s", o.fault)
	case o.err != nil:
		tr.t.Fatalf("gormtest: event %d, %s, failed: %v%s", event, what, o.err, remedy(o.err))
	}
	return o.answer
}

// remedy says what an error comes from that does not say so itself.
func remedy(err error) string {
	if sqlState(err) == stateTxAborted {
		return ": an earlier statement of this transaction failed, and the handler went on without its error: return it, or run what may " +
			"fail in a tx.Transaction of its own"
	}
	return ""
}

// stateTxAborted is how the server refuses all that follows on a statement that failed.
const stateTxAborted = "25P02"

// effect takes what was committed since the last time.
func (tr *trial) effect() effect {
	tr.t.Helper()
	changes, err := tr.journal.take(tr.ctx)
	if err != nil {
		tr.t.Fatalf("gormtest: %v", err)
	}
	return effectOf(changes)
}

// close leaves nothing behind: no trigger, and no connection with which what still runs could do harm.
func (tr *trial) close() {
	tr.t.Helper()
	if err := tr.pool.Close(); err != nil {
		tr.t.Errorf("gormtest: close: %v", err)
	}
	tr.tap.breakAll()
	if err := tr.journal.close(); err != nil {
		tr.t.Errorf("gormtest: %v", err)
	}
}
