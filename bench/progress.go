package main

import (
	"fmt"
	"io"
	"os"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/gorm-idempotency/idempotency/internal/pglocal"
)

// progress shows how far a run has got.
type progress interface {
	begin(n, of int, g group)
	step()
	end()
}

// progressOn is a spinner on a terminal, and a line for each group elsewhere.
func progressOn(out io.Writer) progress {
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		return &spinner{out: out}
	}
	return lines{out: out}
}

// spinner says what is measured, and counts rounds: how many there will be depends on how long they take.
type spinner struct {
	out   io.Writer
	drawn *progressbar.ProgressBar
}

func (s *spinner) begin(n, of int, g group) {
	s.drawn = progressbar.NewOptions64(-1,
		progressbar.OptionSetWriter(s.out),
		progressbar.OptionSetDescription(fmt.Sprintf("%d of %d  %s: %s, rounds", n, of, g.name, g.about)),
		progressbar.OptionShowCount(),
		progressbar.OptionSetElapsedTime(true),
		progressbar.OptionSetRenderBlankState(true),
		progressbar.OptionSetSpinnerChangeInterval(0), // else a goroutine draws beside this one
	)
}

func (s *spinner) step() {
	if s.drawn != nil {
		_ = s.drawn.Add(1)
	}
}

func (s *spinner) end() { _ = s.drawn.Clear() }

type lines struct{ out io.Writer }

func (l lines) begin(n, of int, g group) {
	fmt.Fprintf(l.out, "%d of %d  %s: %s\n", n, of, g.name, g.about)
}
func (lines) step() {}
func (lines) end()  {}

// announce tells of a download when it begins, and not how it gets on.
func announce(out io.Writer) func(pglocal.Progress) {
	told := false
	return func(p pglocal.Progress) {
		if !told {
			fmt.Fprintln(out, p)
		}
		told = true
	}
}
