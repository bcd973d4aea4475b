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

// numberHeader tells the receiver which delivery of the demo a request is. A real sender has no such thing, and the handler
// does not look at it.
const numberHeader = "X-Demo-Delivery"

// delivery is one request: what the sender saw of it, and what the library observed.
type delivery struct {
	number  int // in the order of sending
	copy    int // of its event, from 1
	attempt int // of its copy, from 1
	changed bool
	lost    bool // the answer did not reach the sender

	started time.Duration // since the storm began
	took    time.Duration
	status  int // 0: no answer
	answer  []byte
	delay   time.Duration // what the answer asks the sender to wait

	outcome idempotency.Kind
	waited  time.Duration
}

// succeeded tells whether the event was taken: by a 2xx, whether it reached the sender or not.
func (d *delivery) succeeded() bool { return d.status >= 200 && d.status < 300 }

// final tells whether the sender will not try again.
func (d *delivery) final() bool {
	return !d.lost && d.status != 0 && d.status < 500
}

// journal collects both sides of every delivery. The receiver's side comes through Config.Observe, so it is the
// library's own account.
type journal struct {
	mu         sync.Mutex
	observed   map[int]idempotency.Observation
	deliveries map[eventKey][]*delivery
	numbers    int
	listener   func(idempotency.Observation) // nil: nobody
}

func newJournal() *journal {
	return &journal{observed: map[int]idempotency.Observation{}, deliveries: map[eventKey][]*delivery{}}
}

type deliveryNumber struct{}

// numbered puts the delivery's number into the context, where observe finds it.
func numbered(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if number, err := strconv.Atoi(r.Header.Get(numberHeader)); err == nil {
			r = r.WithContext(context.WithValue(r.Context(), deliveryNumber{}, number))
		}
		next.ServeHTTP(w, r)
	})
}

// observe is the plugin's Config.Observe.
func (j *journal) observe(ctx context.Context, o idempotency.Observation) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if number, ok := ctx.Value(deliveryNumber{}).(int); ok {
		j.observed[number] = o
	}
	if j.listener != nil {
		j.listener(o)
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

// add enters a delivery that has ended. The library observes before the handler answers, so its side is there by now.
func (j *journal) add(key eventKey, d *delivery) {
	j.mu.Lock()
	defer j.mu.Unlock()
	d.outcome = idempotency.Failed // also where a request did not get as far as the library
	if o, ok := j.observed[d.number]; ok {
		d.outcome, d.waited = o.Kind, o.Waited
	}
	j.deliveries[key] = append(j.deliveries[key], d)
}

// of are an event's deliveries in the order of sending.
func (j *journal) of(key eventKey) []*delivery {
	j.mu.Lock()
	defer j.mu.Unlock()
	list := slices.Clone(j.deliveries[key])
	slices.SortFunc(list, func(a, b *delivery) int { return cmp.Compare(a.number, b.number) })
	return list
}

// tally counts outcomes.
type tally map[idempotency.Kind]int

func (j *journal) tally(key eventKey) tally {
	j.mu.Lock()
	defer j.mu.Unlock()
	counts := tally{}
	for _, d := range j.deliveries[key] {
		counts[d.outcome]++
	}
	return counts
}

// identical tells whether all successful answers are the same to the byte. Without one there is nothing that differs.
func identical(deliveries []*delivery) bool {
	var first *delivery
	for _, d := range deliveries {
		switch {
		case !d.succeeded():
		case first == nil:
			first = d
		case !bytes.Equal(first.answer, d.answer):
			return false
		}
	}
	return true
}
