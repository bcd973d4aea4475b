package main

import (
	"fmt"
	"strings"
	"unicode"
)

// misleads reports whether a terminal would do something else with a character than to show it: move the cursor, or change
// the direction of the text around it, so that a person reads another name or amount than is there.
func misleads(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)
}

// misleadsInText is misleads of a text that has lines.
func misleadsInText(r rune) bool { return r != '\n' && r != '\t' && misleads(r) }

// escaped writes what misleads as JSON's own escape, where JSON may contain it as it is: DEL, the control characters from
// U+0080 on, and those of direction.
func escaped(text string) string {
	var b strings.Builder
	for _, r := range text {
		if misleadsInText(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// visible shows what misleads as a question mark: a row may come from other code than the library, which refuses such keys.
func visible(text string) string {
	return strings.Map(func(r rune) rune {
		if misleads(r) {
			return '?'
		}
		return r
	}, text)
}
