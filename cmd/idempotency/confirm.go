package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

var (
	errNobodyToAsk = errors.New("there is no terminal to ask on: repeat it with --yes if you are sure")
	errDeclined    = errors.New("nothing was done, since the answer was not yes")
)

// confirm asks a question, and returns nil after a yes. Where nobody can be asked, as in a script, it is refused; Ctrl-C is
// errInterrupted. Commands that ask have a flag --yes, which skips this.
func confirm(command *cobra.Command, question string) error {
	in := command.InOrStdin()
	if file, ok := in.(*os.File); ok && !term.IsTerminal(int(file.Fd())) {
		return errNobodyToAsk
	}
	_, _ = fmt.Fprintf(command.ErrOrStderr(), "%s [y/N] ", question)
	answer := make(chan string, 1)
	go func() { // it stays until the process ends, if nobody answers
		line, _ := bufio.NewReader(in).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case line := <-answer:
		if line == "y" || line == "yes" {
			return nil
		}
		return errDeclined
	case <-command.Context().Done():
		_, _ = fmt.Fprintln(command.ErrOrStderr())
		return errInterrupted
	}
}
