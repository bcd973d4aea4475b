package demo

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Screen is where a demo shows itself. The zero value is a pipe.
type Screen struct {
	Out    io.Writer
	Colour bool

	// Size returns a terminal's columns and lines. It is nil for anything else, which gets plain lines.
	Size func() (columns, lines int)
}

// lineWidth is what every line fits into: a terminal of 80 columns, whose last one makes some of them wrap.
const lineWidth = 79

type style string

const (
	plain  style = ""
	bold   style = "1"
	faint  style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
	cyan   style = "36"
)

// printer writes to a screen. It keeps the first error, since a reader that has gone away must not keep the demo from
// cleaning up.
type printer struct {
	screen Screen
	quiet  bool // nothing but the report, for a machine
	err    error
}

func (p *printer) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.screen.Out, format, args...)
	}
}

func (p *printer) paint(s style, text string) string {
	if !p.screen.Colour || s == plain {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// stepf says what has been done.
func (p *printer) stepf(name, format string, args ...any) {
	if p.quiet {
		return
	}
	for i, line := range wrap(fmt.Sprintf(format, args...), lineWidth-12) {
		if i > 0 {
			name = ""
		}
		p.printf("%s %s\n", p.paint(cyan, fmt.Sprintf("%-11s", name)), line)
	}
}

// paragraph is wrapped text.
func (p *printer) paragraph(s style, text string) {
	for _, line := range wrap(text, lineWidth) {
		p.printf("%s\n", p.paint(s, line))
	}
}

// wrap breaks a text into lines of at most width characters, where it has spaces.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

// shorten cuts a text at width characters, and shows that it did. What could move the cursor is shown as a question mark.
func shorten(text string, width int) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '?'
		}
		return r
	}, text)
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width-1]) + "…"
}

// pad fills a text up to width characters. fmt's own width would count the colours too.
func pad(text string, width int) string {
	return text + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text)))
}
