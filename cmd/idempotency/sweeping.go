package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/gorm-idempotency/idempotency"
)

// sweeping is a sweep at work.
type sweeping struct {
	*sweep

	sweeper  *idempotency.Sweeper // of one batch a run, so that there is something to show after each
	messages io.Writer
	show     func() progress
	report   func(sweepResult) error
}

// errInterrupted is what is left of the context's end once the batch in progress is finished.
var errInterrupted = errors.New("interrupted")

// once sweeps until nothing is overdue, or the batches are used up, or ctx ends, and reports what it did, whatever its error.
func (w *sweeping) once(ctx context.Context) error {
	began := time.Now()
	shown := w.show()
	var result sweepResult
	err := w.batches(ctx, &result, shown)
	shown.end()
	result.Seconds = time.Since(began).Seconds()
	if result.Failed && result.Deleted == 0 {
		return err // which says it all
	}
	return cmp.Or(err, w.report(result))
}

func (w *sweeping) batches(ctx context.Context, result *sweepResult, shown progress) error {
	for ctx.Err() == nil {
		// Without the cancellation: the batch that an interrupt meets is finished.
		report, err := w.sweeper.Sweep(context.WithoutCancel(ctx))
		result.add(report)
		if err != nil {
			result.Failed = true
			return err
		}
		shown.update(*result)
		usedUp := w.maxBatches > 0 && result.Batches >= w.maxBatches
		if report.CaughtUp || report.Busy || usedUp {
			return nil
		}
		sleep(ctx, w.pause)
	}
	result.Interrupted = true
	return errInterrupted
}

// watch sweeps every interval until ctx ends. After an error it tries again soon, and then less and less soon, unless it is
// one that lasts: a table that is not one of keys.
func (w *sweeping) watch(ctx context.Context) error {
	retry := time.Second
	for ctx.Err() == nil {
		err := w.once(ctx)
		pause := w.interval
		switch {
		case err == nil, errors.Is(err, errInterrupted):
			retry = time.Second
		case errors.Is(err, idempotency.ErrSchema):
			return err
		default:
			pause, retry = retry, min(2*retry, w.interval)
			_, _ = fmt.Fprintf(w.messages, "%v; the next try is in about %v\n", err, pause)
		}
		sleep(ctx, pause-pause/20+rand.N(pause/10+1)) //nolint:gosec // jitter is no secret
	}
	return nil
}

func sleep(ctx context.Context, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// sweepResult is what a sweep did.
type sweepResult struct {
	Deleted     int64   `json:"deleted"` // keys
	Batches     int     `json:"batches"` // transactions that deleted any
	CaughtUp    bool    `json:"caught_up"`
	Busy        bool    `json:"busy"` // another sweeper is at work
	Interrupted bool    `json:"interrupted"`
	Failed      bool    `json:"failed"`
	Seconds     float64 `json:"seconds"`
}

func (r *sweepResult) add(report idempotency.SweepReport) {
	r.Deleted += report.Deleted
	r.Batches += report.Batches
	r.CaughtUp, r.Busy = report.CaughtUp, report.Busy
}

func (r *sweepResult) print(out io.Writer, asJSON bool) error {
	if asJSON {
		return printJSON(out, r)
	}
	_, err := fmt.Fprintf(out, "Deleted %s in %s, %.1f s: %s.\n",
		count(r.Deleted, "key", "keys"), count(int64(r.Batches), "batch", "batches"), r.Seconds, r.ending())
	return err
}

func (r *sweepResult) ending() string {
	switch {
	case r.Failed:
		return "then it failed"
	case r.Interrupted:
		return "interrupted, and more may be overdue"
	case r.Busy:
		return "another sweeper is at work on the table, and the rest is left to it"
	case r.CaughtUp:
		return "nothing is overdue any more"
	default:
		return "--max-batches are used up, and more may be overdue"
	}
}

// count is a number with its noun: "1 key", "12,345 keys".
func count(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return humanize.Comma(n) + " " + many
}
