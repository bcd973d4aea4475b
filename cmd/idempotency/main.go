// Command idempotency shows what the library does: see idempotency demo --help.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gorm-idempotency/idempotency/internal/demo"
)

const (
	exitFailed      = 1
	exitInterrupted = 130 // what shells expect of a program that an interrupt has ended
)

func main() {
	// A reader that goes away, as head does, must not keep the command from cleaning up.
	signal.Ignore(syscall.SIGPIPE)
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// run returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	context.AfterFunc(ctx, stop) // the second one ends the process at once

	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	command, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	_, _ = fmt.Fprintf(stderr, "idempotency: %v\n", err)
	if usage := (usageError{}); errors.As(err, &usage) {
		_, _ = fmt.Fprintf(stderr, "Usage: %s\nFor more: %s --help\n", command.UseLine(), command.CommandPath())
	}
	if errors.Is(err, demo.ErrInterrupted) {
		return exitInterrupted
	}
	return exitFailed
}

// usageError is a call that the command does not understand.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "idempotency",
		Short:         "Tools of the GORM plugin that makes a webhook's database effect happen exactly once",
		SilenceErrors: true, // run prints them
		SilenceUsage:  true,
		Args:          usage(cobra.NoArgs),
		RunE:          func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(newDemo())
	return root
}

// usage marks what is wrong with the arguments as an error of the call.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		if err := check(command, args); err != nil {
			return usageError{err}
		}
		return nil
	}
}
