// Command bench measures what idempotency costs, beside other ways to have it: see go run . --help.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

const (
	exitFailed      = 1
	exitInterrupted = 130 // what shells expect of a program that an interrupt has ended
)

var errInterrupted = errors.New("interrupted: what was measured by then is what there is")

func main() { os.Exit(run()) }

// run returns the exit status.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // the second one ends the process at once
	if dsn := os.Getenv(senderVariable); dsn != "" {
		return status(send(ctx, dsn, os.Stdin, os.Stdout), os.Stderr)
	}
	return status(newCommand().ExecuteContext(ctx), os.Stderr)
}

func status(err error, stderr io.Writer) int {
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "bench: %v\n", err)
	if errors.Is(err, errInterrupted) || errors.Is(err, context.Canceled) {
		return exitInterrupted
	}
	return exitFailed
}

// dsnVariable names a server for the benchmark, as --dsn does.
const dsnVariable = "IDEMPOTENCY_BENCH_DSN"

// options are the command's flags.
type options struct {
	dsn      string
	only     []string
	out      string
	document string
	short    bool
	large    bool
}

func newCommand() *cobra.Command {
	var o options
	command := &cobra.Command{
		Use:   "bench",
		Short: "Measure what idempotency costs, beside other ways to have it",
		Long: `Measure what idempotency costs, beside other ways to have it.

Every arm makes the same business write: in a bare GORM transaction, which is
the floor; with the library, in each way to use it; with the four statements of
the page that the project came from, by hand, through GORM and on pgx; and with
a store that commits its claim first. The arms run in turns, round by round, so
that a noisy machine hurts all alike. What is printed are medians and, in
brackets, quartiles: of the rounds' values, and of the ratios of two arms in
the same round. An arm that does not leave exactly the effects that it should
fails the run.

The server is a PostgreSQL that the benchmark starts with the programs that are
installed on this machine, or downloads once, in a temporary folder that is gone
afterwards. With --dsn, or the environment variable ` + dsnVariable + `,
it is yours: on this machine, without TLS, and with a role that may create
databases. They are called idempotency_bench_… and dropped afterwards.

A full run takes about 15 minutes, and wants a machine that does nothing else.
Ctrl-C ends it, and keeps what was measured.

Groups:
` + listGroups(),
		Example: `  # everything
  go run .

  # is it all there? in seconds; the figures mean little
  go run . --short

  # two of the groups, on a server of yours
  go run . --only delivery,network --dsn postgres://user@localhost:5432/postgres

  # also a table of 10 million keys
  go run . --only tables --large

  # as docs/performance.md has it
  go run . --large --out ../docs/performance --document ../docs/performance.md`,
		Args:          cobra.NoArgs,
		SilenceErrors: true, // status prints them
		SilenceUsage:  true,
		RunE: func(command *cobra.Command, _ []string) error {
			o.dsn = cmp.Or(o.dsn, os.Getenv(dsnVariable))
			return o.run(command.Context(), command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	flags := command.Flags()
	flags.SortFlags = false
	flags.StringVar(&o.dsn, "dsn", "", "use this server, and not one of the benchmark's own")
	flags.StringSliceVar(&o.only, "only", nil, "measure these `GROUPS` alone, with commas in between")
	flags.BoolVar(&o.short, "short", false, "measure little, to see that everything works")
	flags.BoolVar(&o.large, "large", false, "add a table ten times as large: 10 million keys, and 5 GB of disk")
	flags.StringVar(&o.out, "out", "results", "write results.json and the plots to this `FOLDER`")
	flags.StringVar(&o.document, "document", "", "put the tables into the places of this Markdown `FILE`")
	return command
}

func listGroups() string {
	var text strings.Builder
	for _, g := range groups {
		fmt.Fprintf(&text, "  %-12s %s\n", g.name, g.about)
	}
	return text.String()
}

func (o options) run(ctx context.Context, stdout, stderr io.Writer) error {
	chosen, err := choose(o.only)
	if err != nil {
		return err
	}
	results, failed := o.measure(ctx, chosen, stderr)
	if results == nil {
		return failed
	}
	for _, t := range results.tables() {
		t.print(stdout)
	}
	if err := results.write(o.out); err != nil {
		return errors.Join(failed, err)
	}
	fmt.Fprintf(stderr, "\nThe results and their plots are in the folder %s.\n", o.out)
	if o.document != "" && failed == nil {
		failed = results.updateDocument(o.document)
	}
	return failed
}

func choose(only []string) ([]group, error) {
	if len(only) == 0 {
		return groups, nil
	}
	var chosen []group
	for _, name := range only {
		i := slices.IndexFunc(groups, func(g group) bool { return g.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no group %q; there are:\n%s", name, strings.TrimSuffix(listGroups(), "\n"))
		}
		chosen = append(chosen, groups[i])
	}
	return chosen, nil
}

func (o options) size() size {
	s := full
	if o.short {
		s = short
	}
	if o.large {
		s = s.large()
	}
	return s
}

// measure returns what was measured, also beside an error: nil if that is nothing.
func (o options) measure(ctx context.Context, chosen []group, stderr io.Writer) (_ *Results, err error) {
	size := o.size()
	s, err := startServer(ctx, o.dsn, size.settings, announce(stderr))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()

	began := time.Now()
	r := &session{server: s, size: size, progress: progressOn(stderr)}
	results := &Results{Began: began.UTC().Truncate(time.Second), Size: r.size.name, Machine: thisMachine(s)}
	for i, g := range chosen {
		r.progress.begin(i+1, len(chosen), g)
		var measured []Group
		measured, err = g.measure(ctx, r)
		r.progress.end()
		for _, one := range measured {
			if len(one.Series) > 0 {
				results.Groups = append(results.Groups, one)
			}
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", g.name, err)
			break
		}
		if ctx.Err() != nil {
			results.Interrupted, err = true, errInterrupted
			break
		}
	}
	results.Seconds = time.Since(began).Seconds()
	results.Figures = judge(results)
	if len(results.Groups) == 0 {
		return nil, err
	}
	return results, err
}
