package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorm-idempotency/idempotency"
)

// sweep is the command's flags.
type sweep struct {
	database
	retention

	batchSize  int
	maxBatches int
	pause      time.Duration
	interval   time.Duration
	dryRun     bool
	watch      bool
	json       bool
}

func newSweep() *cobra.Command {
	var s sweep
	command := &cobra.Command{
		Use:   "sweep --retention AGE",
		Short: "Delete the keys whose retention is over",
		Long: `Delete the keys whose retention is over, by the database's clock, in batches that
are a short transaction each, until nothing is overdue.

A delivery of an event takes effect again once its key is deleted. So the
retention has no default here: this command does not know the application's
Config, and a shorter retention than its senders' retries would let effects
happen twice. Say the same as in Config, in --retention for Config.Retention and
in a --source for each of Config.Sources that has a retention of its own. An
application that runs a Sweeper itself needs none of this.

AGE is a number and a unit, 720h or 30d or 1d12h. With a HORIZON after it, which
is how long the sender keeps redelivering, a retention that does not exceed it
is refused.

--dry-run counts every key whose retention is over; doctor calls only those
overdue that a sweep should have deleted long since.

One sweeper works on a table at a time. If another one is at work, or gets its
turn in between, this one says so and leaves the rest to it, with exit status 0.
The status is 0 too when --max-batches have been used up before all was deleted.
A table that is not one of keys is refused before anything is deleted.

Ctrl-C, or SIGTERM, lets the batch in progress finish, and then says what was
deleted, with exit status 130. The second one ends the command at once, and the
database undoes that batch alone.

With --watch it goes on: it sweeps every --interval, give or take a twentieth,
tries again after errors, and ends with status 0 when it is told to. A table
that is not one of keys ends it with status 1.`,
		Example: `  # what would be deleted
  idempotency sweep --retention 30d --dry-run

  # in a CronJob, with DATABASE_URL set
  idempotency sweep --retention 30d

  # sources with another retention, one with its sender's retry horizon
  idempotency sweep --retention 30d --source stripe=45d/30d --source internal=48h

  # as a service
  idempotency sweep --retention 30d --watch --interval 10m

  # for a machine
  idempotency sweep --retention 30d --json | jq .deleted`,
		Args: usage(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			if err := s.validate(); err != nil {
				return usageError{err}
			}
			return s.run(command)
		},
	}
	s.database.addFlags(command)
	s.retention.addFlags(command)
	flags := command.Flags()
	flags.BoolVar(&s.dryRun, "dry-run", false, "count what would be deleted, and delete nothing; it reads all that is overdue")
	flags.BoolVar(&s.watch, "watch", false, "sweep every --interval, until Ctrl-C")
	flags.DurationVar(&s.interval, "interval", 5*time.Minute, "between two sweeps of --watch, `DURATION`")
	flags.IntVar(&s.batchSize, "batch-size", 5000, "keys that one transaction deletes at most, `N` up to 100,000")
	flags.IntVar(&s.maxBatches, "max-batches", 0, "end a sweep after `N` batches (0: when nothing is overdue)")
	flags.DurationVar(&s.pause, "pause", 200*time.Millisecond, "between two batches, for claims and vacuum to get ahead, `DURATION`")
	addJSONFlag(command, &s.json)
	nameValues(command, "interval", "batch-size", "max-batches", "pause")
	noFiles(command, "interval", "batch-size", "max-batches", "pause")
	return command
}

// validate refuses what the library would take for its default, a zero, and what it does not know of.
func (s *sweep) validate() error {
	switch {
	case !s.given():
		return errors.New("how long are keys kept? Say it with --retention, as the application's Config does: deleting a key " +
			"too early lets its event take effect again, so there is no default")
	case s.batchSize < 1:
		return fmt.Errorf("--batch-size is %d, and must be at least 1", s.batchSize)
	case s.maxBatches < 0:
		return fmt.Errorf("--max-batches is %d, and must not be negative", s.maxBatches)
	case s.pause < 0:
		return fmt.Errorf("--pause is %v, and must not be negative", s.pause)
	case s.interval < time.Second:
		return fmt.Errorf("--interval is %v, and must be at least a second", s.interval)
	case s.dryRun && s.watch:
		return errors.New("--dry-run counts once, so --watch cannot go with it")
	}
	return nil
}

func (s *sweep) run(command *cobra.Command) error {
	ctx, stdout, stderr := command.Context(), command.OutOrStdout(), command.ErrOrStderr()
	db, pool, err := s.handle(s.config(), stderr)
	if err != nil {
		return err
	}
	defer pool.Close()
	sweeper, err := idempotency.NewSweeper(db, idempotency.SweeperConfig{BatchSize: s.batchSize, MaxBatches: 1})
	if err != nil {
		return flagError(err)
	}
	if err := connect(ctx, pool); err != nil {
		return err
	}
	if s.dryRun {
		return s.count(ctx, pool, stdout)
	}
	w := &sweeping{
		sweep: s, sweeper: sweeper, messages: stderr,
		show:   func() progress { return s.progress(ctx, pool, stderr) },
		report: func(r sweepResult) error { return r.print(stdout, s.json) },
	}
	if s.watch {
		return w.watch(ctx)
	}
	return w.once(ctx)
}
