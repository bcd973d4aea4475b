package gormtest

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// remember keeps the line that a statement came from, for messages. Those of handlers are not kept: the same text may be sent
// inside of one and outside, and it is what was done outside that messages are about.
func (tr *trial) remember(r request) {
	if r.holds {
		return
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	lines := tr.lines[r.text]
	if r.caller != "" && !slices.Contains(lines, r.caller) {
		lines = append(lines, r.caller)
	}
	tr.lines[r.text] = lines
}

// mostCauses is how many causes a message tells. Further ones are counted.
const mostCauses = 5

// describe names statements that were sent outside of handlers, the rows they changed and the lines they came from.
func (tr *trial) describe(changes []change) string {
	var text strings.Builder
	causes := tr.causesOf(changes)
	for _, c := range causes[:min(len(causes), mostCauses)] {
		fmt.Fprintf(&text, "\n\t%s: %s of %s, such as %s\n\t\tby %s", c.operation, rows(c.rows), c.table, shorten(c.first), shorten(c.statement))
		if c.origin != "" {
			text.WriteString("\n\t\t" + c.origin)
		}
	}
	if more := len(causes) - mostCauses; more > 0 {
		fmt.Fprintf(&text, "\n\tand %d more", more)
	}
	return text.String()
}

// cause is what changed rows of a table: a statement, or a line that sends one with other values each time.
type cause struct {
	table, operation string
	origin           string // where it came from; "" if that cannot be told
	statement, first string // one that was sent, and a row that it changed
	rows             int
}

// causesOf finds them, the one that changed most first.
func (tr *trial) causesOf(changes []change) []cause {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	var causes []cause
	for _, c := range changes {
		origin, ofLine := tr.originOf(c.statement)
		at := slices.IndexFunc(causes, func(other cause) bool {
			return other.table == c.table && other.operation == c.operation && other.origin == origin &&
				(ofLine || other.statement == c.statement)
		})
		if at < 0 {
			at = len(causes)
			causes = append(causes, cause{table: c.table, operation: c.operation, origin: origin, statement: c.statement, first: c.row})
		}
		causes[at].rows++
	}
	slices.SortStableFunc(causes, func(a, b cause) int { return cmp.Compare(b.rows, a.rows) })
	return causes
}

// originOf says where a statement came from, and whether that is a line.
func (tr *trial) originOf(statement string) (origin string, ofLine bool) {
	switch lines, passed := tr.linesOf(statement); {
	case !passed:
		return "through a handle that the Deliver was not given", false
	case len(lines) == 0:
		return "", false
	default:
		return "at " + strings.Join(lines, " or "), true
	}
}

// placeholder stands for a parameter in a statement.
var placeholder = regexp.MustCompile(`\$[0-9]+`)

// linesOf finds the lines that sent a statement. The text is the server's: under pgx's simple protocol that has the values in it.
func (tr *trial) linesOf(text string) (lines []string, passed bool) {
	if lines, passed = tr.lines[text]; passed {
		return lines, true
	}
	for sent, lines := range tr.lines {
		if containsInOrder(text, placeholder.Split(sent, -1)) {
			return lines, true
		}
	}
	return nil, false
}

// containsInOrder reports whether text begins with the first part, and has the others behind it in this order.
func containsInOrder(text string, parts []string) bool {
	if len(parts) < 2 || !strings.HasPrefix(text, parts[0]) {
		return false
	}
	for _, part := range parts {
		at := strings.Index(text, part)
		if at < 0 {
			return false
		}
		text = text[at+len(part):]
	}
	return true
}

// rows says a number of rows.
func rows(n int) string { return plural(n, "row") }

// plural says a number of things whose plural ends in s.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// times says how often.
func times(n int) string {
	switch n {
	case 1:
		return "once"
	case 2:
		return "twice"
	}
	return plural(n, "time")
}
