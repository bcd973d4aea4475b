package demo

import (
	"bytes"
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/gorm-idempotency/idempotency"
)

// numberHeader tells the receiver which request of the demo one is. A real sender has no such thing, and the handler does
// not look at it.
const numberHeader = "X-Demo-Request"

// request is what the sender saw of it, and what the library observed. Times are since the storm began.
type request struct {
	number   int // in the order of sending
	delivery int // of its event, from 1
	try      int // of its delivery, from 1
	changed  bool
	lost     bool // the answer did not reach the sender

	sent   time.Duration
	took   time.Duration // until the sender had its answer
	status int           // 0: no answer
	answer []byte
	delay  time.Duration // what the answer asks the sender to wait

	outcome idempotency.Kind
	waited  time.Duration
	claimed time.Duration // when its handler began, if it ran
	ended   time.Duration // when its transaction had
}

// succeeded tells whether the event was taken: by a 2xx, whether it reached the sender or not.
func (r *request) succeeded() bool { return r.status >= 200 && r.status < 300 }

// final tells whether the sender will not try again.
func (r *request) final() bool {
	return !r.lost && r.status != 0 && r.status < 500
}

// journal collects both sides of every request. The receiver's side comes through Config.Observe, so it is the library's
// own account.
type journal struct {
	mu       sync.Mutex
	began    time.Time
	claims   map[int]time.Time
	observed map[int]observation
	requests map[eventKey][]*request
	numbers  int
	listener func(idempotency.Observation) // nil: nobody
}

// observation is the library's, and when it came: right after the call's transaction has ended.
type observation struct {
	idempotency.Observation
	at time.Time
}

func newJournal() *journal {
	return &journal{claims: map[int]time.Time{}, observed: map[int]observation{}, requests: map[eventKey][]*request{}}
}

// begin starts the clock.
func (j *journal) begin() time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.began = time.Now()
	return j.began
}

type requestNumber struct{}

// numbered puts the request's number into the context, where observe finds it.
func numbered(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if number, err := strconv.Atoi(r.Header.Get(numberHeader)); err == nil {
			r = r.WithContext(context.WithValue(r.Context(), requestNumber{}, number))
		}
		next.ServeHTTP(w, r)
	})
}

// observe is the plugin's Config.Observe.
func (j *journal) observe(ctx context.Context, o idempotency.Observation) {
	at := time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	if number, ok := ctx.Value(requestNumber{}).(int); ok {
		j.observed[number] = observation{o, at}
	}
	if j.listener != nil {
		j.listener(o)
	}
}

// claimed notes that a request's handler begins.
func (j *journal) claimed(ctx context.Context) {
	at := time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	if number, ok := ctx.Value(requestNumber{}).(int); ok {
		j.claims[number] = at
	}
}

func (j *journal) listen(listener func(idempotency.Observation)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.listener = listener
}

func (j *journal) next() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.numbers++
	return j.numbers
}

// add enters a request that has ended. The library observes before the handler answers, so its side is there by now.
func (j *journal) add(key eventKey, r *request) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r.outcome, r.ended = idempotency.Failed, r.sent+r.took // also where a request did not get as far as the library
	if o, ok := j.observed[r.number]; ok {
		r.outcome, r.waited, r.ended = o.Kind, o.Waited, o.at.Sub(j.began)
	}
	if at, ok := j.claims[r.number]; ok {
		r.claimed = at.Sub(j.began)
	}
	j.requests[key] = append(j.requests[key], r)
}

// of are an event's requests in the order in which they ended.
func (j *journal) of(key eventKey) []*request {
	j.mu.Lock()
	defer j.mu.Unlock()
	return inOrder(slices.Clone(j.requests[key]))
}

// inOrder sorts an event's requests by when their transactions had ended. On a busy machine that is observed later than it
// happens: a run had ended when another request found its row, or claimed the event after it.
func inOrder(list []*request) []*request {
	if i := slices.IndexFunc(list, func(r *request) bool { return r.outcome == idempotency.Executed }); i >= 0 {
		executed := list[i]
		for _, r := range list {
			switch {
			case r.outcome == idempotency.Replayed || r.outcome == idempotency.Mismatch:
				executed.ended = min(executed.ended, r.ended)
			case r.outcome == idempotency.Failed && r.claimed != 0:
				r.ended = min(r.ended, executed.claimed)
			}
		}
	}
	slices.SortFunc(list, func(a, b *request) int {
		return cmp.Or(cmp.Compare(a.ended, b.ended), first(a, b), cmp.Compare(a.number, b.number))
	})
	return list
}

// first compares requests that ended at the same moment: the execution comes before what it lets through.
func first(a, b *request) int {
	switch idempotency.Executed {
	case a.outcome:
		return -1
	case b.outcome:
		return 1
	}
	return 0
}

// tally counts outcomes.
type tally map[idempotency.Kind]int

func (j *journal) tally(key eventKey) tally {
	j.mu.Lock()
	defer j.mu.Unlock()
	counts := tally{}
	for _, r := range j.requests[key] {
		counts[r.outcome]++
	}
	return counts
}

// identical tells whether all successful answers are the same to the byte. Without one there is nothing that differs.
func identical(requests []*request) bool {
	var first *request
	for _, r := range requests {
		switch {
		case !r.succeeded():
		case first == nil:
			first = r
		case !bytes.Equal(first.answer, r.answer):
			return false
		}
	}
	return true
}
