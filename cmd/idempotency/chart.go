package main

import (
	"cmp"
	"io"
	"math"
	"os"
	"runtime"
	"strings"
)

// pen draws bars.
type pen struct {
	width int  // of the longest one, in characters
	ascii bool // for who cannot read blocks
}

const (
	widestBar    = 60
	narrowestBar = 10
	besideBar    = nameWidth + 30 // what else may stand in a line

	plainColumns = 100 // of what is no terminal, and has no columns
)

// penFor finds out what fits into an output's lines, and what its reader's locale can show.
func penFor(out io.Writer) pen {
	columns := plainColumns
	if size := screenOn(out).Size; size != nil {
		columns, _ = size()
	}
	return pen{width: max(narrowestBar, min(widestBar, columns-besideBar)), ascii: !readsUTF8()}
}

// readsUTF8 looks where the C library does. Windows, which has no locale there, shows UTF-8.
func readsUTF8() bool {
	locale := strings.ToLower(cmp.Or(os.Getenv("LC_ALL"), os.Getenv("LC_CTYPE"), os.Getenv("LANG")))
	if locale == "" {
		return runtime.GOOS == "windows"
	}
	return strings.Contains(locale, "utf-8") || strings.Contains(locale, "utf8")
}

// bar draws a part of the whole, to an eighth of a character. What is not nothing is seen.
func (p pen) bar(part, whole int64) string {
	if part <= 0 || whole <= 0 {
		return ""
	}
	length := float64(part) / float64(whole) * float64(p.width)
	if p.ascii {
		return strings.Repeat("#", max(1, int(math.Round(length))))
	}
	eighths := max(1, int(math.Round(8*length)))
	text := strings.Repeat("█", eighths/8)
	if rest := eighths % 8; rest > 0 {
		text += string([]rune("▏▎▍▌▋▊▉")[rest-1])
	}
	return text
}
