package demo

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

func (p *printer) intro() {
	if p.quiet {
		return
	}
	p.paragraph(bold, "Webhook senders deliver at least once. Here they deliver many times, and the receiver handles each "+
		"event exactly once.")
	p.printf("\n")
}

// finish shows the report.
func (p *printer) finish(r *Report, asJSON bool) error {
	if asJSON {
		encoder := json.NewEncoder(p.screen.Out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	}
	p.table(r)
	p.legend()
	for _, s := range r.stories {
		p.story(s)
	}
	p.comparison(r)
	p.verdict(r)
	return p.err
}

// column is a count of the table.
type column struct {
	title string
	width int
	style style // where it is not zero
	value func(Counts) int
}

var columns = []column{
	{"requests", 9, plain, func(c Counts) int { return c.Deliveries }},
	{"effects", 8, green, func(c Counts) int { return c.Orders }},
	{"replays", 8, cyan, func(c Counts) int { return c.Replays }},
	{"in flight", 10, yellow, func(c Counts) int { return c.InFlight }},
	{"mismatch", 9, yellow, func(c Counts) int { return c.Mismatches }},
	{"failed", 7, red, func(c Counts) int { return c.Failed }},
}

const (
	eventWidth   = 20
	answersWidth = 8
)

func (p *printer) table(r *Report) {
	p.printf("\n%s", pad("event", eventWidth))
	for _, c := range columns {
		p.printf("%*s", c.width, c.title)
	}
	p.printf("%*s\n", answersWidth, "answers")
	scenario := ""
	for _, e := range r.Events {
		if e.Scenario != scenario {
			scenario = e.Scenario
			p.printf("%s\n", p.paint(bold, scenario))
		}
		p.row("  "+pad(e.Source, 8)+e.EventID, e.Counts, p.answers(e.AnswersIdentical))
	}
	p.printf("%s\n", strings.Repeat("-", lineWidth))
	same := true
	for _, e := range r.Events {
		same = same && e.AnswersIdentical
	}
	p.row(fmt.Sprintf("%s in %.1f s", plural(len(r.Events), "event"), r.Seconds), r.Totals, p.answers(same))
}

func (p *printer) row(name string, counts Counts, answers string) {
	p.printf("%s", pad(shorten(name, eventWidth), eventWidth))
	for _, c := range columns {
		text, s := strconv.Itoa(c.value(counts)), c.style
		switch {
		case c.title == "effects" && counts.Orders != counts.Payments:
			text, s = fmt.Sprintf("%d/%d", counts.Orders, counts.Payments), red
		case c.title == "effects" && counts.Orders != counts.Keys:
			s = red
		case text == "0":
			text, s = "-", faint
		}
		p.printf("%s", p.paint(s, fmt.Sprintf("%*s", c.width, text)))
	}
	p.printf("%s\n", answers)
}

func (p *printer) answers(identical bool) string {
	if identical {
		return p.paint(green, fmt.Sprintf("%*s", answersWidth, "same"))
	}
	return p.paint(red, fmt.Sprintf("%*s", answersWidth, "DIFFER"))
}

// legend explains the columns.
func (p *printer) legend() {
	p.printf("\n")
	for _, line := range [][2]string{
		{"effects", "an order and its payment, counted in the database with plain SQL"},
		{"replays", "the stored answer was given again, and the handler did not run"},
		{"in flight", "503 with Retry-After: the first delivery was still being handled"},
		{"mismatch", "422: the event's id came back with another body"},
		{"failed", "500 or no answer: the handler failed, its writes were rolled back"},
		{"answers", "whether all successful answers to an event are equal to the byte"},
	} {
		p.printf("%s %s\n", p.paint(cyan, pad(line[0], 11)), line[1])
	}
}

// storyIndent is the width of what stands before the sentence about a delivery.
const storyIndent = 25

func (p *printer) story(s *story) {
	name := fmt.Sprintf("%s %s, %s", s.event.sender.name, s.event.id, s.event.kind)
	p.printf("\n%s\n%s\n", p.paint(bold, shorten(name, lineWidth)), s.event.scenario.title)
	p.printf("%s\n", p.paint(faint, "  time copy try  answer  what the library did"))
	for _, d := range s.inTurn() {
		status := strconv.Itoa(d.status)
		if d.status == 0 {
			status = "none"
		}
		p.printf("%6.2f %4d %3d  %s  %s\n", d.started.Seconds(), d.copy, d.attempt,
			p.paint(statusStyle(d.status), pad(status, 6)), shorten(d.happened(), lineWidth-storyIndent))
	}
	p.printf("In the database: %s, and this row of %s:\n", s.effects, keysTable)
	for _, cell := range s.row {
		p.printf("  %s %s\n", p.paint(cyan, pad(cell[0], 15)), shorten(cell[1], lineWidth-18))
	}
}

func statusStyle(status int) style {
	switch {
	case status >= 200 && status < 300:
		return green
	case status == 503 || status == 422:
		return yellow
	}
	return red
}

// comparison says what the library was for.
func (p *printer) comparison(r *Report) {
	p.printf("\n")
	p.paragraph(plain, fmt.Sprintf("Without the library, %d of these requests would have recorded one more order and payment: "+
		"those that were replayed, in flight or mismatched.", r.Totals.Replays+r.Totals.InFlight+r.Totals.Mismatches))
}

func (p *printer) verdict(r *Report) {
	s := green
	if !r.OK {
		s = red
	}
	p.printf("\n")
	p.paragraph(s, r.Verdict)
}
