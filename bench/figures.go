package main

import "slices"

// Figure is a figure that the project has set itself.
type Figure struct {
	Measure string  `json:"measure"`
	Target  string  `json:"target"`
	Value   *Spread `json:"value"` // nil: not measured
	Met     bool    `json:"met"`
}

// target is what a figure has to be, and where it is found.
type target struct {
	measure string
	atMost  bool
	limit   float64
	unit    string
	of      func(*Results) (Spread, bool)
}

const oneConnection = "1 connection"

// targets are the project's. Where a target does not say how transactions commit, it is judged without the disk, which is
// harder for the library, and then with it.
var targets = []target{
	{"fresh with an answer ÷ source page's statements through GORM", true, 0.90, "", quotient("delivery", nameAnswer, namePageGORM, "")},
	{"fresh with no answer ÷ the same", true, 0.70, "", quotient("delivery", nameNoAnswer, namePageGORM, "")},
	{"fresh with an answer ÷ source page's statements on raw pgx", true, 1.15, "", quotient("delivery", nameAnswer, namePagePgx, "")},
	{"duplicate of a committed key ÷ bare GORM transaction", true, 1.0, "", quotient("delivery", nameDuplicate, nameBare, "")},
	{"the same, pipelined", true, 1.0, "", quotient("delivery", namePipelinedDup, nameBare, "")},
	{"fresh with an answer ÷ source page's statements through GORM, synchronous_commit on", true, 0.90, "", quotient("commit", nameAnswer, namePageGORM, oneConnection)},
	{"fresh with no answer ÷ the same", true, 0.70, "", quotient("commit", nameNoAnswer, namePageGORM, oneConnection)},
	{"fresh with an answer ÷ source page's statements on raw pgx, synchronous_commit on", true, 1.15, "", quotient("commit", nameAnswer, namePagePgx, oneConnection)},
	{"duplicate of a committed key ÷ bare GORM transaction, synchronous_commit on", true, 1.0, "", quotient("commit", nameDuplicate, nameBare, oneConnection)},
	{"added round trips, fresh with an answer", true, 2, "", added("roundtrips", nameAnswer)},
	{"added round trips, fresh with no answer", true, 1, "", added("roundtrips", nameNoAnswer)},
	{"the same, pipelined, with an answer", true, 0, "", added("roundtrips", namePipelined)},
	{"the same, pipelined, with no answer", true, 0, "", added("roundtrips", namePipelinedNoAnswer)},
	{"pipelined with an answer ÷ bare GORM transaction, at 0.5 ms of network delay", true, 1.15, "", quotient("network", namePipelined, nameBare, "0.5 ms")},
	{"the same, at 2 ms", true, 1.15, "", quotient("network", namePipelined, nameBare, "2 ms")},
	{"throughput at 32 connections ÷ pgbench on the same statements", false, 0.70, "", quotient("connections", nameAnswer, pgbenchName, "32 connections")},
	{"claim latency at 1 million keys ÷ at 0", true, 1.3, "", grown("tables", nameClaim, "1,000,000 keys", "0 keys")},
	{"claim latency at 10 million keys ÷ at 0", true, 1.3, "", grown("tables", nameClaim, "10,000,000 keys", "0 keys")},
	{"HOT share of completion updates, answers of 40 B to 1,500 B, the least", false, 98.5, " %", least("hot", nameHOT)},
	{"allocations added to a bare GORM transaction, with an answer", true, 40, "", added("allocations", nameAnswer)},
	{"allocations added to a bare GORM transaction, with no answer", true, 40, "", added("allocations", nameNoAnswer)},
	{"other keys' throughput during a storm on one key, pool of 8", false, 80, " %", percent(grown("storm", nameOurs, inStorm, noStorm))},
	{"claim p99 while sweeping ÷ without", true, 1.5, "", grown("sweeping", "claims", inSweep, noSweep)},
	{"a batch of the sweep ÷ of the source page's", true, 1.0, "", quotient("sweep-batch", nameOurSweep, namePageSweep, "")},
	{"memory of a sweep of 1,000,000 keys, growth", true, 1000, " kB", growth("memory", nameHeap)},
	{"sweep with nothing to do after 3 cycles", true, 64, " buffers", value("idle-sweep", nameOurSweep)},
}

func judge(r *Results) []Figure {
	var figures []Figure
	for _, t := range targets {
		relation := "≥ "
		if t.atMost {
			relation = "≤ "
		}
		f := Figure{Measure: t.measure, Target: relation + number(t.limit) + t.unit}
		if measured, ok := t.of(r); ok {
			f.Value = &measured
			f.Met = t.atMost == (measured.Median <= t.limit) || measured.Median == t.limit
		}
		figures = append(figures, f)
	}
	return figures
}

// quotient divides an arm by another, round by round.
func quotient(group, of, to, setting string) func(*Results) (Spread, bool) {
	return func(r *Results) (Spread, bool) { return r.group(group).ratio(of, to, setting) }
}

// grown divides an arm at one setting by itself at another.
func grown(group, arm, at, than string) func(*Results) (Spread, bool) {
	return func(r *Results) (Spread, bool) {
		g := r.group(group)
		a, found := g.find(arm, at)
		b, also := g.find(arm, than)
		return spreadOf(ratios(a.Rounds, b.Rounds)), found && also
	}
}

// added is how much more an arm takes than the group's reference.
func added(group, arm string) func(*Results) (Spread, bool) {
	return func(r *Results) (Spread, bool) {
		g := r.group(group)
		a, found := g.find(arm, "")
		b, also := g.find(g.Reference, "")
		if !found || !also {
			return Spread{}, false
		}
		differences := make([]float64, min(len(a.Rounds), len(b.Rounds)))
		for i := range differences {
			differences[i] = a.Rounds[i] - b.Rounds[i]
		}
		return spreadOf(differences), true
	}
}

// growth is how much more there is of an arm at the last setting than at the first.
func growth(group, arm string) func(*Results) (Spread, bool) {
	return func(r *Results) (Spread, bool) {
		var values []float64
		for _, s := range r.group(group).Series {
			if s.Arm == arm {
				values = append(values, s.Median)
			}
		}
		if len(values) == 0 {
			return Spread{}, false
		}
		grown := values[len(values)-1] - values[0]
		return Spread{grown, grown, grown}, true
	}
}

func value(group, arm string) func(*Results) (Spread, bool) {
	return func(r *Results) (Spread, bool) {
		s, found := r.group(group).find(arm, "")
		return s.Spread, found
	}
}

// least is the least of an arm's values over all settings.
func least(group, arm string) func(*Results) (Spread, bool) {
	return func(r *Results) (Spread, bool) {
		var values []float64
		for _, s := range r.group(group).Series {
			if s.Arm == arm {
				values = append(values, s.Median)
			}
		}
		if len(values) == 0 {
			return Spread{}, false
		}
		low := slices.Min(values)
		return Spread{low, low, low}, true
	}
}

func percent(of func(*Results) (Spread, bool)) func(*Results) (Spread, bool) {
	return func(r *Results) (Spread, bool) {
		s, found := of(r)
		return Spread{100 * s.Median, 100 * s.Low, 100 * s.High}, found
	}
}

func (f Figure) verdict() string {
	if f.Met {
		return "met"
	}
	return "missed"
}
