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
	{"requests", 9, plain, func(c Counts) int { return c.Requests }},
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

// legend explains the words.
func (p *printer) legend() {
	p.printf("\n")
	for _, line := range [][2]string{
		{"settled", "of a delivery: it has its final answer, and is not sent again"},
		{"requests", "of a delivery: another one after each 500, 503 or missing answer"},
		{"effects", "an order and its payment, counted in the database with plain SQL"},
		{"replays", "the stored answer was given again, and the handler did not run"},
		{"in flight", "503 with Retry-After: another request was still being handled"},
		{"mismatch", "422: the event's id came back with another body"},
		{"refused", "in flight and mismatch together"},
		{"failed", "500 or no answer: the handler failed, its writes were rolled back"},
		{"answers", "whether all successful answers to an event are equal to the byte"},
		{"sent, ended", "ms since the start; ended: its transaction was over, or its wait"},
		{"waited", "ms behind another request of the event, without a connection"},
		{"completed_at", "set with claimed_at, since others see the row only once committed"},
	} {
		p.printf("%s %s\n", p.paint(cyan, pad(line[0], 12)), line[1])
	}
}

// storyIndent is the width of what stands before the sentence about a request.
const storyIndent = 42

func (p *printer) story(s *story) {
	name := fmt.Sprintf("%s %s, %s", s.event.sender.name, s.event.id, s.event.kind)
	p.printf("\n%s\n%s\n", p.paint(bold, shorten(name, lineWidth)), s.event.scenario.title)
	p.printf("%s\n", p.paint(faint, " sent waited  ended delivery try  answer  what the library did"))
	for _, r := range s.requests {
		status, waited := strconv.Itoa(r.status), "-"
		if r.status == 0 {
			status = "none"
		}
		if r.waited >= perceptible {
			waited = strconv.FormatInt(r.waited.Milliseconds(), 10)
		}
		p.printf("%5d %6s %6d %8d %3d  %s  %s\n", r.sent.Milliseconds(), waited, r.ended.Milliseconds(), r.delivery, r.try,
			p.paint(statusStyle(r.status), pad(status, 6)), shorten(r.happened(), lineWidth-storyIndent))
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

// comparison says what the library was for. Without it nothing is refused, so there is neither a 503 nor the retry after it.
func (p *printer) comparison(r *Report) {
	if !r.OK {
		return
	}
	changed, again := "", ""
	if r.Totals.Mismatches > 0 {
		changed = ", changed bodies included"
	}
	if lost := r.Totals.AnswersLost; lost > 0 {
		again = fmt.Sprintf(", and once more for each of the %d whose answer was lost and which came again", lost)
	}
	p.printf("\n")
	p.paragraph(plain, fmt.Sprintf("Without the library, the same handler in a transaction would have recorded an order and a payment "+
		"for each of the %s%s%s: %d of each instead of %d.",
		deliveries(r.Totals.Deliveries), changed, again, r.Totals.Deliveries+r.Totals.AnswersLost, r.Totals.Orders))
}

func (p *printer) verdict(r *Report) {
	s := green
	if !r.OK {
		s = red
	}
	p.printf("\n")
	p.paragraph(s, r.Verdict)
}
