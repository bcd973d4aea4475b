package gormtest

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// remember keeps the line that a statement came from, for messages.
func (tr *trial) remember(r request) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if _, known := tr.lines[r.text]; !known {
		tr.lines[r.text] = r.caller
	}
}

// describe names statements, the rows they changed and the lines they came from.
func (tr *trial) describe(changes []change) string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	var text strings.Builder
	for _, s := range statementsOf(changes) {
		fmt.Fprintf(&text, "\n\t%s: %s of %s, such as %s\n\t\tby %s", s.operation, rows(s.rows), s.table, shorten(s.first), shorten(s.text))
		switch line, passed := tr.lineOf(s.text); {
		case !passed:
			text.WriteString("\n\t\tthrough a handle that the Deliver was not given")
		case line != "":
			text.WriteString("\n\t\tat " + line)
		}
	}
	return text.String()
}

// placeholder stands for a parameter in a statement.
var placeholder = regexp.MustCompile(`\$[0-9]+`)

// lineOf finds the line that sent a statement. The text is the server's: under pgx's simple protocol that has the values in it.
func (tr *trial) lineOf(text string) (line string, passed bool) {
	if line, passed = tr.lines[text]; passed {
		return line, true
	}
	for sent, line := range tr.lines {
		if containsInOrder(text, placeholder.Split(sent, -1)) {
			return line, true
		}
	}
	return "", false
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

// statementsOf are the statements that made changes, each with the rows that it changed.
func statementsOf(changes []change) []statementRows {
	var statements []statementRows
	for _, c := range changes {
		at := slices.IndexFunc(statements, func(s statementRows) bool { return s.text == c.statement && s.table == c.table })
		if at < 0 {
			statements = append(statements, statementRows{text: c.statement, table: c.table, operation: c.operation, first: c.row})
			at = len(statements) - 1
		}
		statements[at].rows++
	}
	slices.SortStableFunc(statements, func(a, b statementRows) int { return cmp.Compare(b.rows, a.rows) })
	return statements
}

// statementRows is a statement with what it did to one table.
type statementRows struct {
	text, table, operation string
	first                  string // a row that it changed
	rows                   int
}
