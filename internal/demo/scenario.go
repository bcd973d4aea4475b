package demo

import "time"

// scenario is what an event goes through.
type scenario struct {
	title   string
	trouble trouble
	waves   []wave
	told    string // the sender whose event is told request by request, "": none
}

// wave is a number of deliveries that begin at the same moment. Each takes as many requests as it needs for a final answer.
type wave struct {
	deliveries int
	changed    int           // further ones, with another body
	lost       bool          // the deliveries' first answers do not reach the sender
	pause      time.Duration // after the wave before
	settled    bool          // only when the wave before has its final answers
}

// Every event goes through one of these, in turn.
var scenarios = []*scenario{
	{
		title: "many deliveries at the same moment",
		waves: []wave{{deliveries: 16}},
	},
	{
		title:   "the handler fails at first, after it has written its rows",
		trouble: fails, told: "stripe",
		waves: []wave{{deliveries: 6}, {deliveries: 4, pause: 60 * time.Millisecond}},
	},
	{
		title:   "the handler crashes at first, and the connection breaks",
		trouble: crashes,
		waves:   []wave{{deliveries: 8}},
	},
	{
		title:   "delivered again while the first delivery is still being handled",
		trouble: dawdles, told: "shopify",
		waves: []wave{{deliveries: 1}, {deliveries: 6, pause: 50 * time.Millisecond}},
	},
	{
		title: "handled, but the answer is lost on its way to the sender",
		waves: []wave{{deliveries: 1, lost: true}, {deliveries: 6, settled: true}},
	},
	{
		title: "handled, then delivered again, sometimes with another body", told: "github",
		waves: []wave{{deliveries: 1}, {deliveries: 4, changed: 3, settled: true}},
	},
}

// deliveries is how many are planned.
func (s *scenario) deliveries() int {
	total := 0
	for _, w := range s.waves {
		total += w.deliveries + w.changed
	}
	return total
}
