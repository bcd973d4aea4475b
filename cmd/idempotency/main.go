// Command idempotency shows what the library does, and looks after the table of keys: see idempotency --help.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/internal/demo"
)

const (
	exitFailed      = 1
	exitFindings    = 2
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
	return execute(ctx, root)
}

func execute(ctx context.Context, root *cobra.Command) int {
	command, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	if errors.Is(err, errFindings) {
		return exitFindings
	}
	stderr := root.ErrOrStderr()
	_, _ = fmt.Fprintf(stderr, "idempotency: %s\n", strings.TrimPrefix(err.Error(), "idempotency: "))
	if usage := (usageError{}); errors.As(err, &usage) {
		_, _ = fmt.Fprintf(stderr, "Usage: %s\nFor more: %s --help\n", command.UseLine(), command.CommandPath())
	}
	if errors.Is(err, idempotency.ErrSchema) {
		_, _ = fmt.Fprintln(stderr, "Create the table with: idempotency migrate up\nIf it has another name, say it with --table.")
	}
	for _, interrupted := range []error{errInterrupted, demo.ErrInterrupted, context.Canceled} {
		if errors.Is(err, interrupted) {
			return exitInterrupted
		}
	}
	return exitFailed
}

// errFindings is what a command returns that did what it was asked to, and printed what is wrong with the table or the key:
// nothing more is printed, and the exit status is 2.
var errFindings = errors.New("there are findings")

// usageError is a call that the command does not understand.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "idempotency",
		Short: "Tools of the GORM plugin that makes a webhook's database effect happen exactly once",
		Long: `Tools of the GORM plugin that makes a webhook's database effect happen exactly once.

All but the demo work on the application's own database, which --dsn or the
environment variable ` + dsnVariable + ` names. Results go to the standard output, and
progress and messages to the standard error.

The exit status is 0 if all is well, 1 if something failed, 2 if a command has
looked and found something wrong, and 130 after Ctrl-C.`,
		SilenceErrors: true, // execute prints them
		SilenceUsage:  true,
		Args:          usage(cobra.NoArgs),
		RunE:          func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(newDemo())
	root.AddCommand(newMigrate())
	root.AddCommand(newSweep())
	root.AddCommand(newDoctor())
	root.AddCommand(newShow())
	root.AddCommand(newForget())
	root.AddCommand(newStats())
	return root
}

// arguments wants one of each name.
func arguments(names ...string) cobra.PositionalArgs {
	return usage(func(_ *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		return fmt.Errorf("want %s, and got %s", strings.Join(names, " and "), count(int64(len(args)), "argument", "arguments"))
	})
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
