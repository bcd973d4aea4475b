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

// Counts are how deliveries ended, as the library observed it, and the rows in the database.
type Counts struct {
	Deliveries int `json:"deliveries"` // requests
	Executed   int `json:"executed"`   // the handler ran and its effect was committed
	Replays    int `json:"replays"`
	InFlight   int `json:"in_flight"`
	Mismatches int `json:"mismatches"`
	Failed     int `json:"failed"` // the handler failed or crashed, and all was rolled back
	Orders     int `json:"orders"`
	Payments   int `json:"payments"`
	Keys       int `json:"keys"`
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
	Log []Delivery `json:"log"`
}

// Delivery is one request, in milliseconds since the storm began.
type Delivery struct {
	Number      int     `json:"number"`
	Copy        int     `json:"copy"`
	Attempt     int     `json:"attempt"`
	ChangedBody bool    `json:"changed_body,omitempty"`
	AnswerLost  bool    `json:"answer_lost,omitempty"`
	At          float64 `json:"at_ms"`
	Took        float64 `json:"took_ms"`
	Waited      float64 `json:"waited_ms"`
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

func (r *Report) add(e *event, deliveries []*delivery, got effects) {
	wrong := judge(e, got, deliveries)
	r.Problems = append(r.Problems, wrong...)
	entry := Event{
		Source: e.sender.name, EventID: e.id, Kind: e.kind, Scenario: e.scenario.title,
		OK: len(wrong) == 0, AnswersIdentical: identical(deliveries),
		Counts: Counts{Orders: got.orders, Payments: got.payments, Keys: got.keys},
	}
	for _, d := range deliveries {
		entry.count(d.outcome)
		entry.Log = append(entry.Log, d.entry())
	}
	r.Totals.sum(entry.Counts)
	r.Events = append(r.Events, entry)
	r.tell(&story{event: e, deliveries: deliveries, effects: got})
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

func (d *delivery) entry() Delivery {
	const ms = 1e6
	return Delivery{
		Number: d.number, Copy: d.copy, Attempt: d.attempt, ChangedBody: d.changed, AnswerLost: d.lost,
		At: float64(d.started) / ms, Took: float64(d.took) / ms, Waited: float64(d.waited) / ms,
		Outcome: string(d.outcome), Status: d.status,
	}
}

func (c *Counts) count(outcome idempotency.Kind) {
	c.Deliveries++
	switch outcome {
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
	c.Executed += other.Executed
	c.Replays += other.Replays
	c.InFlight += other.InFlight
	c.Mismatches += other.Mismatches
	c.Failed += other.Failed
	c.Orders += other.Orders
	c.Payments += other.Payments
	c.Keys += other.Keys
}
