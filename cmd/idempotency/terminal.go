package main

import (
	"io"
	"os"

	"golang.org/x/term"

	"github.com/gorm-idempotency/idempotency/internal/demo"
)

// screenOn finds out whether an output is a terminal that can be drawn on. One without TERM, as on Windows, or with a dumb
// one may show escape sequences as they are.
func screenOn(out io.Writer) demo.Screen {
	screen := demo.Screen{Out: out}
	file, isFile := out.(*os.File)
	if !isFile || !term.IsTerminal(int(file.Fd())) {
		return screen
	}
	if kind := os.Getenv("TERM"); kind == "" || kind == "dumb" {
		return screen
	}
	screen.Colour = os.Getenv("NO_COLOR") == "" // no-color.org
	screen.Size = func() (columns, lines int) {
		columns, lines, err := term.GetSize(int(file.Fd()))
		if err != nil {
			return 0, 0 // draws the least
		}
		return columns, lines
	}
	return screen
}
