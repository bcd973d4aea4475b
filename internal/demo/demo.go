// Package demo shows what the library does: it delivers webhooks to a receiver as a storm of duplicates, and then counts
// in the database what came of it.
package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gorm-idempotency/idempotency"
)

// receiverWait is how long the receiver lets a duplicate wait. It is shorter than the library's default of 2 s, so that
// the demo's slow handler makes some deliveries give up waiting.
const receiverWait = time.Second

// stormLimit ends a storm on a database that is too slow for it.
const stormLimit = time.Minute

// Options are the choices of [Run].
type Options struct {
	// DSN names a database to use. If empty, a server is started from the programs on the machine.
	DSN string

	// Payloads is a folder of JSON files to deliver. If empty, the demo's own are.
	Payloads string

	// Listen is the receiver's address, which must be a loopback one. If empty, it is a free port.
	Listen string

	// Serve keeps the receiver up after the storm, until the context ends.
	Serve bool

	// JSON prints the report as JSON and nothing else.
	JSON bool

	// Seed makes the payloads and the plan of the storm. Which delivery of an event comes first, and how many requests they
	// take, is up to the machine.
	Seed uint64

	Screen Screen

	sabotage func(context.Context, *database) error // for tests: runs between the storm and the counting
}

// How [Run] ends when it does not end well.
var (
	ErrBroken      = errors.New("the promise was broken: see the report") // the counts are wrong
	ErrInterrupted = errors.New("interrupted: nothing is left of the demo")
)

// Run runs the demo. Whatever happens, nothing of it is left when it returns: no server, no receiver, no schema.
func Run(ctx context.Context, options Options) error {
	var cleanup stack
	err := run(ctx, options, &cleanup)
	if err != nil && ctx.Err() != nil {
		err = ErrInterrupted // whatever it looked like to those who were interrupted
	}
	if left := cleanup.unwind(); left != nil {
		return errors.Join(err, left)
	}
	return err
}

func run(ctx context.Context, options Options, cleanup *stack) error {
	events, err := loadEvents(options.Payloads, options.Seed)
	if err != nil {
		return err
	}
	listener, err := listen(ctx, options.Listen)
	if err != nil {
		return err
	}
	cleanup.push(func() error {
		_ = listener.Close() // the receiver has closed it, unless it did not come to that
		return nil
	})
	out := &printer{screen: options.Screen, quiet: options.JSON}
	out.intro()
	db := newDatabase()
	cleanup.push(db.close)
	label := "database"
	if options.DSN == "" {
		out.stepf(label, "starting PostgreSQL …")
		label = ""
	}
	if err := db.open(ctx, options.DSN, out.downloads()); err != nil {
		return db.explain(err)
	}
	out.stepf(label, "%s", db.describe())

	journal := newJournal()
	orm, err := openGORM(db, idempotency.Config{Wait: receiverWait, Observe: journal.observe})
	if err != nil {
		return err
	}
	receiver := startReceiver(listener, orm, troubles(events), journal)
	cleanup.push(receiver.stop)
	out.stepf("receiver", "%s/webhooks/{sender}, on loopback", receiver.url)

	report, err := runStorm(ctx, options, db, receiver, journal, events, out)
	if err != nil {
		return err
	}
	if err := out.finish(report, options.JSON); err != nil {
		return err
	}
	if !report.OK {
		return ErrBroken
	}
	if options.Serve {
		return serve(ctx, out, db, receiver, journal)
	}
	return nil
}

// stack holds what is to be undone, the last first.
type stack []func() error

func (s *stack) push(undo func() error) { *s = append(*s, undo) }

func (s *stack) unwind() error {
	var errs []error
	for _, undo := range slices.Backward(*s) {
		errs = append(errs, undo())
	}
	return errors.Join(errs...)
}

// runStorm delivers the events and judges by the database what became of them.
func runStorm(ctx context.Context, options Options, db *database, receiver *receiver, journal *journal, events []*event, out *printer) (*Report, error) {
	storm := newStorm(receiver.url, journal, events, options.Seed)
	out.stepf("storm", "%s in %s over HTTP, each sent again until it is settled (seed %d)",
		plural(len(events), "event"), deliveries(storm.planned), options.Seed)
	limited, cancel := context.WithTimeoutCause(ctx, stormLimit,
		fmt.Errorf("the storm did not end within %v: the database is too slow for it, so try one that is nearer", stormLimit))
	defer cancel()
	stopView := out.watch(storm)
	took, err := storm.run(limited)
	stopView()
	if err != nil {
		return nil, err
	}
	if options.sabotage != nil {
		if err := options.sabotage(ctx, db); err != nil {
			return nil, err
		}
	}
	counts, err := db.countEffects(ctx)
	if err != nil {
		return nil, err
	}
	report := newReport(events, journal, counts)
	report.Database, report.Seed, report.Seconds = db.describe(), options.Seed, took.Seconds()
	return report, report.tellStories(ctx, db)
}
