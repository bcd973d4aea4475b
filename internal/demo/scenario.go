package demo

import "time"

// scenario is what an event goes through.
type scenario struct {
	title   string
	trouble trouble
	waves   []wave
	told    string // the sender whose event is told delivery by delivery, "": none
}

// wave is a number of copies that are sent at the same moment. Each is delivered again until its sender has a final answer.
type wave struct {
	copies  int
	changed int           // further copies, with another body
	lost    bool          // the copies' first answers do not reach the sender
	pause   time.Duration // after the wave before
	settled bool          // only when the wave before has its final answers
}

// Every event goes through one of these, in turn.
var scenarios = []*scenario{
	{
		title: "many copies at the same moment",
		waves: []wave{{copies: 16}},
	},
	{
		title:   "the handler fails at first, after it has written its rows",
		trouble: fails, told: "stripe",
		waves: []wave{{copies: 6}, {copies: 4, pause: 60 * time.Millisecond}},
	},
	{
		title:   "the handler crashes at first, and the connection breaks",
		trouble: crashes,
		waves:   []wave{{copies: 8}},
	},
	{
		title:   "redelivered while the first delivery is still being handled",
		trouble: dawdles, told: "shopify",
		waves: []wave{{copies: 1}, {copies: 6, pause: 50 * time.Millisecond}},
	},
	{
		title: "handled, but the answer is lost on its way to the sender",
		waves: []wave{{copies: 1, lost: true}, {copies: 6, settled: true}},
	},
	{
		title: "handled, then some copies come back with another body", told: "github",
		waves: []wave{{copies: 1}, {copies: 4, changed: 3, settled: true}},
	},
}

// copies is how many deliveries are planned, retries not counted.
func (s *scenario) copies() int {
	total := 0
	for _, w := range s.waves {
		total += w.copies + w.changed
	}
	return total
}
