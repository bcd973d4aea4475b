package demo

import (
	"slices"

	"github.com/gorm-idempotency/idempotency"
)

// Report is what came of a storm.
type Report struct {
	OK       bool     `json:"ok"`
	Verdict  string   `json:"verdict"`
	Problems []string `json:"problems,omitempty"`
	Database string   `json:"database"`
	Seed     uint64   `json:"seed"`
	Seconds  float64  `json:"seconds"` // of the storm
	Totals   Counts   `json:"totals"`
	Events   []Event  `json:"events"`

	stories []*story
}

// Counts are the deliveries, how their requests ended, as the library observed it, and the rows in the database.
type Counts struct {
	Deliveries  int `json:"deliveries"`
	Requests    int `json:"requests"` // of all deliveries: the sum of the next five
	Executed    int `json:"executed"` // the handler ran and its effect was committed
	Replays     int `json:"replays"`
	InFlight    int `json:"in_flight"`
	Mismatches  int `json:"mismatches"`
	Failed      int `json:"failed"`       // the handler failed or crashed, and all was rolled back
	AnswersLost int `json:"answers_lost"` // of the successful ones
	Orders      int `json:"orders"`
	Payments    int `json:"payments"`
	Keys        int `json:"keys"`
}

// Event is what came of one event.
type Event struct {
	Source           string `json:"source"`
	EventID          string `json:"event_id"`
	Kind             string `json:"kind"`
	Scenario         string `json:"scenario"`
	OK               bool   `json:"ok"`
	AnswersIdentical bool   `json:"answers_identical"`
	Counts
	Log []Request `json:"log"` // in the order in which they ended
}

// Request is one of a delivery's. Sent and Ended are milliseconds since the storm began.
type Request struct {
	Number      int     `json:"number"`   // in the order of sending, over all events
	Delivery    int     `json:"delivery"` // of the event
	Try         int     `json:"try"`      // of the delivery
	ChangedBody bool    `json:"changed_body,omitempty"`
	AnswerLost  bool    `json:"answer_lost,omitempty"`
	Sent        float64 `json:"sent_ms"`
	Waited      float64 `json:"waited_ms"` // for another request of the event
	Ended       float64 `json:"ended_ms"`  // its transaction, at the receiver
	Took        float64 `json:"took_ms"`   // until the sender had its answer
	Outcome     string  `json:"outcome"`
	Status      int     `json:"status"` // 0: no answer
}

func newReport(events []*event, journal *journal, counts map[eventKey]effects) *Report {
	r := &Report{}
	for _, scenario := range scenarios { // so that what went through the same stands together
		for _, e := range events {
			if e.scenario == scenario {
				r.add(e, journal.of(e.key()), counts[e.key()])
			}
		}
	}
	r.Problems = append(r.Problems, strays(events, counts)...)
	r.OK = len(r.Problems) == 0
	r.Verdict = r.verdict()
	return r
}

func (r *Report) add(e *event, requests []*request, got effects) {
	wrong := judge(e, got, requests)
	r.Problems = append(r.Problems, wrong...)
	entry := Event{
		Source: e.sender.name, EventID: e.id, Kind: e.kind, Scenario: e.scenario.title,
		OK: len(wrong) == 0, AnswersIdentical: identical(requests),
		Counts: Counts{Deliveries: e.scenario.deliveries(), Orders: got.orders, Payments: got.payments, Keys: got.keys},
	}
	for _, request := range requests {
		entry.count(request)
		entry.Log = append(entry.Log, request.entry())
	}
	r.Totals.sum(entry.Counts)
	r.Events = append(r.Events, entry)
	r.tell(&story{event: e, requests: requests, effects: got})
}

// tell keeps one story of each scenario that is told: of the sender that is wanted, if there is one.
func (r *Report) tell(s *story) {
	wanted := s.event.scenario.told
	if wanted == "" {
		return
	}
	at := slices.IndexFunc(r.stories, func(other *story) bool { return other.event.scenario == s.event.scenario })
	switch {
	case at < 0:
		r.stories = append(r.stories, s)
	case r.stories[at].event.sender.name != wanted && s.event.sender.name == wanted:
		r.stories[at] = s
	}
}

func (r *request) entry() Request {
	const ms = 1e6
	return Request{
		Number: r.number, Delivery: r.delivery, Try: r.try, ChangedBody: r.changed, AnswerLost: r.lost,
		Sent: float64(r.sent) / ms, Waited: float64(r.waited) / ms, Ended: float64(r.ended) / ms, Took: float64(r.took) / ms,
		Outcome: string(r.outcome), Status: r.status,
	}
}

func (c *Counts) count(r *request) {
	c.Requests++
	if r.lost && r.succeeded() {
		c.AnswersLost++
	}
	switch r.outcome {
	case idempotency.Executed:
		c.Executed++
	case idempotency.Replayed:
		c.Replays++
	case idempotency.InFlight:
		c.InFlight++
	case idempotency.Mismatch:
		c.Mismatches++
	default:
		c.Failed++
	}
}

func (c *Counts) sum(other Counts) {
	c.Deliveries += other.Deliveries
	c.Requests += other.Requests
	c.Executed += other.Executed
	c.Replays += other.Replays
	c.InFlight += other.InFlight
	c.Mismatches += other.Mismatches
	c.Failed += other.Failed
	c.AnswersLost += other.AnswersLost
	c.Orders += other.Orders
	c.Payments += other.Payments
	c.Keys += other.Keys
}
