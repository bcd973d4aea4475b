package main

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// table is lines of columns: the first is of words, and the others are of numbers.
type table struct {
	title string
	rows  [][]string // the first are the columns' titles
	notes []string
}

// tables are all that there is to say of results, in words and numbers.
func (r *Results) tables() []table {
	var all []table
	for i := range r.Groups {
		all = append(all, r.Groups[i].table())
	}
	return append(all, figuresTable(r.Figures))
}

// table has a row for each arm, and for each setting its value and ratio; where there are many settings, its value alone.
func (g *Group) table() table {
	t := table{title: g.Title + ", " + g.Unit, notes: g.Notes}
	settings := g.settings()
	divided := g.Reference != "" && len(settings) <= mostBars
	titles := []string{""}
	for _, setting := range settings {
		name := setting
		if name == "" {
			name = g.Unit
		}
		titles = append(titles, name)
		if divided {
			titles = append(titles, "÷ "+shortName(g.Reference))
		}
	}
	t.rows = append(t.rows, titles)
	for _, arm := range g.arms() {
		row := []string{arm}
		for _, setting := range settings {
			cell, ratio := "", ""
			if s, found := g.find(arm, setting); found {
				cell = s.String()
				if quotient, ok := g.ratio(arm, g.Reference, setting); ok {
					ratio = quotient.String()
				}
			}
			row = append(row, cell)
			if divided {
				row = append(row, ratio)
			}
		}
		t.rows = append(t.rows, row)
	}
	return t
}

func shortName(arm string) string {
	if arm == nameBare {
		return "bare"
	}
	return "source page"
}

func figuresTable(figures []Figure) table {
	t := table{title: "Figures to reach", rows: [][]string{{"measure", "target", "measured", ""}}}
	missing := 0
	for _, f := range figures {
		if f.Value == nil {
			missing++
			continue
		}
		t.rows = append(t.rows, []string{f.Measure, f.Target, f.Value.String(), f.verdict()})
	}
	if missing > 0 {
		t.notes = []string{count(missing, "figure") + " of groups, settings or programs that were left out: not measured."}
	}
	return t
}

// print is for a terminal.
func (t table) print(out io.Writer) {
	fmt.Fprintf(out, "\n%s\n\n", t.title)
	widths := make([]int, len(t.rows[0]))
	for _, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range t.rows {
		var line strings.Builder
		for i, cell := range row {
			padding := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				line.WriteString(cell + padding + "  ")
			} else {
				line.WriteString(padding + cell + "  ")
			}
		}
		fmt.Fprintln(out, strings.TrimRight(line.String(), " "))
	}
	for _, note := range t.notes {
		fmt.Fprintln(out, note)
	}
}

// markdown is for a document.
func (t table) markdown() string {
	var text strings.Builder
	for i, row := range t.rows {
		text.WriteString("| " + strings.Join(row, " | ") + " |\n")
		if i == 0 {
			text.WriteString("| ---" + strings.Repeat(" | ---:", len(row)-1) + " |\n")
		}
	}
	for _, note := range t.notes {
		text.WriteString("\n" + note + "\n")
	}
	return text.String()
}

// String is the median, and the quartiles where they differ.
func (s Spread) String() string {
	if number(s.Low) == number(s.High) {
		return number(s.Median)
	}
	return fmt.Sprintf("%s (%s–%s)", number(s.Median), number(s.Low), number(s.High))
}

// number is written with three digits, and with commas between thousands.
func number(n float64) string {
	switch size := math.Abs(n); {
	case n == math.Trunc(n) && size < 1000:
		return strconv.FormatFloat(n, 'f', 0, 64)
	case size < 0.1:
		return strconv.FormatFloat(n, 'f', 3, 64)
	case size < 10:
		return strconv.FormatFloat(n, 'f', 2, 64)
	case size < 100:
		return strconv.FormatFloat(n, 'f', 1, 64)
	}
	return thousands(int(math.Round(n)))
}

// thousands puts commas between them.
func thousands(n int) string {
	text := strconv.Itoa(n)
	sign := ""
	if strings.HasPrefix(text, "-") {
		sign, text = "-", text[1:]
	}
	const group = 3
	for at := len(text) - group; at > 0; at -= group {
		text = text[:at] + "," + text[at:]
	}
	return sign + text
}
