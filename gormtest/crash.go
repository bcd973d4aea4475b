package gormtest

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// CrashPoints delivers events whose connection breaks on the way, at each request to the database in turn: before the server
// sees it, and after the server has carried it out, when its reply is lost. So the transaction ends before and after the
// claim, after each statement of the handler, before the answer is stored, before COMMIT, and after COMMIT when nobody knows.
// Each event is then delivered again, as its sender would, and the test fails unless the effect happened once, and is what
// an event has that met no trouble:
//
//   - the delivery that met the crash returned an error, or its key was committed;
//   - the next one succeeds, and the one after that gets the same answer and changes nothing;
//   - the same number of rows of the same tables changed as for an event without a crash, together with the key and outside of
//     its transaction.
//
// Two events come first that meet no trouble. The second one is what the others are compared with, since the first one may find
// tables empty.
//
// Events must differ in their id alone: see [Deliver]. Everything else about db, the deliveries and what fails the test is as
// for [Hammer].
//
// It finds what survives a rollback: a write on another connection, a variable that remembers a run, an answer that was given
// before the commit. And it finds what is lost after the commit: a write that only the first delivery makes, by Result.Replayed or
// by AfterCommit. If that may be lost, name its table by [WithExempt]. What a goroutine writes that nobody waits for is found unless
// the end of the delivery's context, which comes when the delivery returns, keeps it from writing.
//
// GORM logs nothing of the deliveries that break. CrashPoints breaks connections, not processes; for the database that is the
// same.
func CrashPoints(t testing.TB, db *gorm.DB, deliver Deliver, opts ...Option) {
	t.Helper()
	tr := newTrial(t, db, deliver, opts)
	defer tr.close()
	whole, ok := tr.untroubled()
	if !ok {
		return
	}
	event := 1
	for at := 1; at <= maxRequests; at++ {
		for _, when := range []cutPoint{beforeRequest, afterRequest} {
			event++
			reached, ok := tr.crash(event, at, when, whole)
			if !ok {
				return
			}
			if !reached {
				t.Logf("gormtest: %d crashes, and one effect each", event-2)
				return
			}
		}
	}
	t.Fatalf("gormtest: a delivery makes more than %d requests to the database", maxRequests)
}

// untroubled delivers two events without a crash. What the second one does is what others are compared with: the first may find
// tables empty, and do once for all what each of them needs.
func (tr *trial) untroubled() (whole effect, ok bool) {
	tr.t.Helper()
	given, done := tr.first()
	if !tr.again(0, given) {
		return whole, false
	}
	given = tr.mustDeliver(1, "delivered for the first time")
	tr.requireNoGoroutines()
	whole = tr.effect()
	if len(whole.keys) == 0 {
		tr.t.Errorf("gormtest: event 1 claimed no key, after event 0 had claimed %q: %s", done.keys[0].row, ownKey)
		return whole, false
	}
	return whole, tr.again(1, given)
}

// maxRequests is how many requests of a delivery are broken. More are a loop, or a test that takes too long.
const maxRequests = 200

// cutPoint is where a connection breaks, as seen from a request.
type cutPoint int

const (
	noCut cutPoint = iota
	beforeRequest
	afterRequest
)

// cut is a plan to break a connection, once.
type cut struct {
	at   int // counts requests, from 1
	when cutPoint
	seen int
	hit  *request // the request that it happened to
}

func (c *cut) String() string {
	if c.when == beforeRequest {
		return "before " + c.request()
	}
	return "after " + c.request()
}

func (c *cut) request() string {
	text := fmt.Sprintf("request %d, %s", c.at, shorten(c.hit.text))
	if c.hit.caller != "" {
		text += " (" + c.hit.caller + ")"
	}
	return text
}

// planned tells a request's fate.
func (t *tap) planned(r request) cutPoint {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cut == nil {
		return noCut
	}
	t.cut.seen++
	if t.cut.seen != t.cut.at {
		return noCut
	}
	t.cut.hit = &r
	return t.cut.when
}

// follow makes the tap break the next delivery's connection, or none.
func (t *tap) follow(c *cut) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cut = c
}

// crash delivers one event with a crash and then without. reached is false if the delivery has no such request.
func (tr *trial) crash(event, at int, when cutPoint, whole effect) (reached, ok bool) {
	tr.t.Helper()
	c := &cut{at: at, when: when}
	tr.tap.follow(c)
	crashed := tr.deliverOn(tr.quiet(), event)
	tr.tap.follow(nil)
	if crashed.fault != "" {
		tr.t.Fatalf("gormtest: after a crash: %s", crashed.fault)
	}
	if c.hit == nil {
		return false, true
	}
	tr.requireNoGoroutines()
	tr.awaitEnd(c.hit.conn)
	early := tr.effect()
	if crashed.err == nil && len(early.keys) == 0 {
		tr.t.Errorf("gormtest: event %d was answered as a success, and nothing of it is committed, since the connection broke %v: "+
			"answer only when Do has returned without an error", event, c)
		return true, false
	}
	given := tr.mustDeliver(event, fmt.Sprintf("delivered again after the connection had broken %v", c))
	if crashed.err == nil && !tr.requireAnswer(event, crashed.answer, given) {
		return true, false
	}
	tr.requireNoGoroutines()
	return true, tr.requireOneEffect(event, c, whole, merge(early, tr.effect())) && tr.again(event, given)
}

// quiet is the handle for a delivery that is to fail: what GORM has to say about it would bury what the test says.
func (tr *trial) quiet() *gorm.DB { return tr.db.Session(&gorm.Session{Logger: logger.Discard}) }

// awaitEnd waits until the server has noticed that a connection broke, and has undone what was not committed. The key is
// free from then on.
func (tr *trial) awaitEnd(conn *tappedConn) {
	tr.t.Helper()
	for deadline := time.Now().Add(setupTimeout); ; time.Sleep(time.Millisecond) {
		exists, err := tr.journal.sessionExists(tr.ctx, conn.pid())
		switch {
		case err != nil:
			tr.t.Fatalf("gormtest: %v", err)
		case !exists:
			return
		case time.Now().After(deadline):
			tr.t.Fatalf("gormtest: the server has not ended a session %v after its connection broke", setupTimeout)
		}
	}
}

// requireOneEffect compares what became of an event with what one does that met no trouble.
func (tr *trial) requireOneEffect(event int, c *cut, whole, done effect) (ok bool) {
	tr.t.Helper()
	subject := fmt.Sprintf("gormtest: event %d, whose connection broke %v and which was delivered again,", event, c)
	if got, want := len(done.keys), len(whole.keys); got != want {
		tr.t.Errorf("%s claimed %s, and one without a crash %d: %s", subject, plural(got, "key"), want, adviceOnKeys(got, want))
		return false
	}
	if !tr.requireNoMoreOutside(subject, whole, done) || !tr.requireNothingLost(subject, whole, done) {
		return false
	}
	if got, want := done.total(), whole.total(); !maps.Equal(got, want) {
		tr.t.Errorf("%s changed %v together with its key, and one without a crash %v: a handler must not remember outside of the database "+
			"what it has done, nor do something else from a certain event on, such as when stock runs out", subject, got, want)
		return false
	}
	return true
}

func adviceOnKeys(got, want int) string {
	if got < want {
		return "a handler must not remember outside of the database what it has done"
	}
	return "its source and id have to be the same in each delivery"
}

// requireNoMoreOutside fails the test if something outside of the key's transaction happened twice.
func (tr *trial) requireNoMoreOutside(subject string, whole, done effect) (ok bool) {
	tr.t.Helper()
	once := whole.outsideOf()
	for table, n := range done.outsideOf() {
		if n > once[table] {
			tr.t.Errorf("%s changed %s of %s outside of the transaction that holds its key, which the rollback did not undo, and one "+
				"without a crash %d: write through the handle that the handler is given%s",
				subject, rows(n), table, once[table], tr.describe(done.of(table)))
			return false
		}
	}
	return true
}

// requireNothingLost fails the test if something was to happen after the commit, and did not: a crash comes in between, and the
// next delivery is a replay.
func (tr *trial) requireNothingLost(subject string, whole, done effect) (ok bool) {
	tr.t.Helper()
	outside := done.outsideOf()
	for table, n := range whole.outsideOf() {
		if outside[table] < n {
			tr.t.Errorf("%s changed %s of %s outside of the transaction that holds its key, and one without a crash %d: what follows the "+
				"commit is lost in a crash, since the event is a replay from then on: write it inside the handler. What AfterCommit runs is "+
				"lost likewise, as it documents; a table for which that may be so is for WithExempt%s",
				subject, rows(outside[table]), table, n, tr.describe(whole.of(table)))
			return false
		}
	}
	return true
}

// merge is what two takes of the journal amount to.
func merge(a, b effect) effect {
	merged := effect{keys: append(a.keys, b.keys...), outside: append(a.outside, b.outside...), inside: maps.Clone(a.inside)}
	maps.Copy(merged.inside, b.inside)
	return merged
}
