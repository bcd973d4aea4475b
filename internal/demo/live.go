package demo

import (
	"fmt"
	"strings"
	"time"

	"github.com/gorm-idempotency/idempotency"
)

const (
	frameTime = 80 * time.Millisecond // between two pictures on a terminal
	lineTime  = time.Second           // between two lines in a pipe
)

// watch shows a storm while it goes on. The function that it returns ends that.
func (p *printer) watch(s *storm) (stop func()) {
	if p.quiet {
		return func() {}
	}
	view, interval := view(&ticker{printer: p}), lineTime
	if p.screen.Size != nil {
		view, interval = &picture{printer: p}, frameTime
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				view.show(s.progress())
			case <-done:
				view.end(s.progress())
				return
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

type view interface {
	show(now progress)
	end(now progress)
}

// progress is how far a storm has got, by scenario.
type progress struct {
	scenarios []*scenario
	planned   map[*scenario]int // deliveries
	settled   map[*scenario]int // deliveries that have their final answer
	outcomes  map[*scenario]tally
	elapsed   time.Duration
}

func (s *storm) progress() progress {
	now := progress{
		planned: map[*scenario]int{}, settled: map[*scenario]int{}, outcomes: map[*scenario]tally{},
		elapsed: time.Since(s.began),
	}
	for i, e := range s.events {
		of := e.scenario
		if now.outcomes[of] == nil {
			now.outcomes[of] = tally{}
			now.scenarios = append(now.scenarios, of)
		}
		now.planned[of] += of.deliveries()
		now.settled[of] += int(s.settled[i].Load())
		for kind, count := range s.journal.tally(e.key()) {
			now.outcomes[of][kind] += count
		}
	}
	return now
}

func (g progress) totals() (planned, settled int, outcomes tally) {
	outcomes = tally{}
	for _, of := range g.scenarios {
		planned += g.planned[of]
		settled += g.settled[of]
		for kind, count := range g.outcomes[of] {
			outcomes[kind] += count
		}
	}
	return planned, settled, outcomes
}

func (g progress) summary() string {
	planned, settled, _ := g.totals()
	return fmt.Sprintf("%.1f s, %d of %d deliveries are settled: they have their final answer", g.elapsed.Seconds(), settled, planned)
}

func (t tally) String() string {
	return fmt.Sprintf("%s, %s, %d refused, %d failed", plural(t[idempotency.Executed], "effect"),
		plural(t[idempotency.Replayed], "replay"), t[idempotency.InFlight]+t[idempotency.Mismatch], t[idempotency.Failed])
}

// ticker is the view in a pipe: a line now and then.
type ticker struct{ printer *printer }

func (v *ticker) show(g progress) {
	planned, settled, outcomes := g.totals()
	v.printer.printf("%5.1f s     %3d of %d settled: %s\n", g.elapsed.Seconds(), settled, planned, outcomes)
}

func (v *ticker) end(g progress) { v.show(g) }

// picture is the view on a terminal: a block of lines that is drawn over the one before.
type picture struct {
	printer *printer
	drawn   int // lines
}

// marks are what a bar is made of, a character for each outcome's share.
var marks = []struct {
	kind  idempotency.Kind
	mark  string
	style style
	name  string
}{
	{idempotency.Executed, "█", green, "effect"},
	{idempotency.Replayed, "▒", cyan, "replay"},
	{idempotency.InFlight, "~", yellow, "in flight"},
	{idempotency.Mismatch, "≠", yellow, "mismatch"},
	{idempotency.Failed, "×", red, "failed"},
}

func (v *picture) show(g progress) {
	width, height := v.printer.screen.Size()
	lines := []string{shorten(g.summary(), max(1, width-1))}
	if whole := v.lines(g); width > lineWidth && height > len(whole) {
		lines = whole // else it would wrap or scroll away, and could not be drawn over
	}
	v.erase()
	for _, line := range lines {
		v.printer.printf("%s\n", line)
	}
	v.drawn = len(lines)
}

// end takes the picture away: the table says the same, and more.
func (v *picture) end(progress) { v.erase() }

func (v *picture) erase() {
	if v.drawn > 0 {
		v.printer.printf("\x1b[%dA\x1b[J", v.drawn)
	}
	v.drawn = 0
}

func (v *picture) lines(g progress) []string {
	p := v.printer
	lines := []string{""}
	for _, of := range g.scenarios {
		lines = append(lines, shorten(of.title, lineWidth), v.bar(g.outcomes[of], lineWidth-12)+
			fmt.Sprintf(" %3d of %3d", g.settled[of], g.planned[of]))
	}
	key := ""
	for _, m := range marks {
		key += p.paint(m.style, m.mark) + " " + m.name + "   "
	}
	return append(lines, "", key, g.summary())
}

// bar shows every request as a mark, or its share of the width where there are too many.
func (v *picture) bar(t tally, width int) string {
	total := 0
	for _, count := range t {
		total += count
	}
	scale := 1.0
	if total > width {
		scale = float64(width) / float64(total)
	}
	bar, filled, seen := "", 0, 0
	for _, m := range marks {
		seen += t[m.kind]
		length := int(float64(seen)*scale) - filled
		filled += length
		bar += v.printer.paint(m.style, strings.Repeat(m.mark, length))
	}
	return bar + strings.Repeat(" ", width-filled)
}
