package main

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// nameWidth is how much of a name is shown.
const nameWidth = 32

// table is lines of columns. The first column and those without a title, which are bars, are aligned on the left, and the
// others, which are numbers, on the right.
type table struct{ rows [][]string }

func newTable(titles ...string) *table { return &table{rows: [][]string{titles}} }

func (t *table) row(cells ...string) {
	cells[0] = shorten(cells[0], nameWidth)
	t.rows = append(t.rows, cells)
}

func (t *table) print(out io.Writer) error {
	titles := t.rows[0]
	widths := make([]int, len(titles))
	for _, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range t.rows {
		var line strings.Builder
		for i, cell := range row {
			padding := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i == 0 || titles[i] == "" {
				line.WriteString(cell + padding + "  ")
			} else {
				line.WriteString(padding + cell + "  ")
			}
		}
		if _, err := fmt.Fprintln(out, strings.TrimRight(line.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

// shorten makes a text visible, cuts it at width characters, and shows that it did.
func shorten(text string, width int) string {
	text = visible(text)
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width-1]) + "…"
}
