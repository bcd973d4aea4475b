package gormtest

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
)

// HammerReport says what a storm came to.
type HammerReport struct {
	Deliveries int // how many were made
	Ran        int // how often a handler ran: once for each event, and once more for each run that failed
	Keys       int // how many keys were claimed and committed
	Refused    int // deliveries that returned an error, most often ErrInFlight, and were made again
}

// Hammer delivers events as senders at their worst do, and fails the test where the effect of one did not happen exactly
// once:
//
//  1. event 0 alone, once, to see what a delivery does;
//  2. event 0 again: nothing may change, and the answer has to be the first one's;
//  3. a storm: each event many times, in random order, from many goroutines and connections at a time, after which there have
//     to be as many keys as events;
//  4. each event once more: again nothing may change, and the answer has to be the one that was given in the storm.
//
// What changes in the database is noted row by row, with the transaction and the key that it belongs to, whichever
// connection, function or trigger changes it. So a counter that is incremented twice is found as a row that is inserted
// twice. The failure names rows and statement, the line that sent it, and what to do.
//
// db is a handle of a pool on the driver pgx, on a database of the test's own, with the plugin and the application's tables: that
// of [Open] or one opened on [DSN]. The deliveries get handles like it on other connections. While it works it needs the right to create a
// schema and triggers; afterwards they are gone, the events' rows and keys stay.
//
// A delivery that fails during the storm is made again, as a sender would. One that panics, leaves its goroutine, does not
// return within [WithTimeout] or leaves goroutines running fails the test. Nothing can end a goroutine that ignores its
// context: its connection is taken from it.
//
// Hammer needs [WithEvents], [WithDeliveries] and [WithConcurrency] rarely. It does not see a write that leaves the handler's
// transaction and is made once: [CrashPoints] and [Record] do.
func Hammer(t testing.TB, db *gorm.DB, deliver Deliver, opts ...Option) HammerReport {
	t.Helper()
	tr := newTrial(t, db, deliver, opts)
	defer tr.close()
	given, alone := tr.first()
	s := &storm{
		trial: tr, answers: map[int]answer{0: given}, differs: make(map[int]answer),
		report: HammerReport{Deliveries: 2, Keys: len(alone.keys)},
	}
	if !tr.again(0, given) {
		return s.finish()
	}
	s.rage()
	s.settle()
	if s.requireEffects(alone, tr.effect()) {
		s.repeat()
	}
	return s.finish()
}

// storm is what is done with many events at a time.
type storm struct {
	*trial

	mu      sync.Mutex
	report  HammerReport
	answers map[int]answer // the first that each event was given
	differs map[int]answer // another one that it was given
	refused error          // why the first delivery was refused that was
	fault   string
}

// rage delivers every event many times, all of them mixed.
func (s *storm) rage() {
	s.t.Helper()
	var queue []int
	for event := range s.events {
		for range s.deliveries {
			queue = append(queue, event)
		}
	}
	rand.Shuffle(len(queue), func(i, j int) { queue[i], queue[j] = queue[j], queue[i] }) //nolint:gosec // an order is no secret
	next := make(chan int, len(queue))
	for _, event := range queue {
		next <- event
	}
	close(next)
	var senders sync.WaitGroup
	for range s.concurrency {
		senders.Go(func() {
			for event := range next {
				if !s.note(event, s.deliver(event)) {
					return
				}
			}
		})
	}
	senders.Wait()
	s.requireNoFault()
}

// note keeps what a delivery was answered, and reports whether there is any point in going on.
func (s *storm) note(event int, o reply) (goOn bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Deliveries++
	given, known := s.answers[event]
	switch {
	case o.fault != "":
		s.fault = o.fault
	case o.err != nil:
		s.report.Refused++
		if s.refused == nil && !errors.Is(o.err, idempotency.ErrInFlight) {
			s.refused = o.err
		}
	case !known:
		s.answers[event] = o.answer
	case given != o.answer:
		s.differs[event] = o.answer
	}
	return s.fault == ""
}

func (s *storm) requireNoFault() {
	s.t.Helper()
	if s.fault != "" {
		s.t.Fatalf("gormtest: %s", s.fault)
	}
	s.requireNoGoroutines()
}

// settle delivers what was refused every time, as its sender would, when there is no crowd any more.
func (s *storm) settle() {
	s.t.Helper()
	for event := range s.events {
		if _, answered := s.answers[event]; !answered {
			s.note(event, reply{answer: s.mustDeliver(event, "delivered once more after the storm")})
		}
	}
	s.requireNoGoroutines()
}

// requireEffects looks at what the storm changed. Each of its events has to claim a key, may do without it what event 0 did without
// one, such as a write after the commit, and has to do something with its key if event 0 did.
func (s *storm) requireEffects(alone, done effect) (ok bool) {
	s.t.Helper()
	ok = true
	s.report.Keys += len(done.keys)
	if s.report.Keys < s.events {
		ok = false
		s.t.Errorf("gormtest: %d events claimed %s, such as %q: %s", s.events, plural(s.report.Keys, "key"), alone.keys[0].row, ownKey)
	}
	events := s.events - 1
	once := alone.outsideOf()
	for table, n := range done.outsideOf() {
		if n > once[table]*events {
			ok = false
			s.t.Errorf("gormtest: %s changed outside of the transactions that hold the keys, %s for %d events, delivered at the same time; "+
				"event 0 alone did so %s: write inside the handler, through the handle that it is given%s",
				table, times(n), events, times(once[table]), s.describe(done.of(table)))
		}
	}
	if len(alone.total()) == 0 {
		return ok
	}
	if idle := done.idleKeys(); len(idle) > 0 {
		ok = false
		s.t.Errorf("gormtest: together with %s nothing else was written, such as with %q, where event 0 changed %v: a handler must not "+
			"remember outside of the database what it has done, nor do something else from a certain event on, such as when stock runs out",
			plural(len(idle), "key"), idle[0].row, alone.total())
	}
	return ok
}

// repeat delivers everything once more.
func (s *storm) repeat() {
	s.t.Helper()
	for event := range s.events {
		if other, differs := s.differs[event]; differs {
			s.requireAnswer(event, s.answers[event], other)
			return
		}
		s.report.Deliveries++
		if !s.again(event, s.answers[event]) {
			return
		}
	}
}

// finish completes the report.
func (s *storm) finish() HammerReport {
	s.t.Helper()
	s.report.Ran = s.tap.claimsWon()
	s.t.Logf("gormtest: %d deliveries of %d events: handlers ran %s; %d of the deliveries were refused and made again",
		s.report.Deliveries, s.events, times(s.report.Ran), s.report.Refused)
	if s.refused != nil {
		s.t.Logf("gormtest: the first one that was refused: %v", s.refused)
	}
	return s.report
}
