package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// arm is one way to handle a delivery. All of them do the same business write.
type arm struct {
	name    string
	deliver func(ctx context.Context, event string) error

	// effects is how many orders of its name there must be after so many deliveries.
	effects func(deliveries int64) int64

	// prepare, if not nil, makes what the deliveries need to find; end, if not nil, ends what it began.
	prepare func(ctx context.Context) error
	end     func()

	// elsewhere, if not nil, runs the deliveries in place of this process.
	elsewhere func(ctx context.Context, workers, deliveries int) (batch, error)
}

// What the deliveries of an arm leave behind.
func onceEach(deliveries int64) int64 { return deliveries }
func never(int64) int64               { return 0 }

func times(n int64) func(int64) int64 { return func(int64) int64 { return n } }

// batch is what an arm did in one round.
type batch struct {
	latencies  []time.Duration // of each delivery; nil where only the whole is known
	elapsed    time.Duration
	deliveries int64
}

func (b batch) perSecond() float64 { return float64(b.deliveries) / b.elapsed.Seconds() }

// run makes deliveries of new events, as many at a time as there are workers. It ends early with ctx.
func (a arm) run(ctx context.Context, workers, deliveries int) (batch, error) {
	if a.elsewhere != nil {
		return a.elsewhere(ctx, workers, deliveries)
	}
	events := make([]string, deliveries)
	for i := range events {
		events[i] = newEvent()
	}
	done := batch{latencies: make([]time.Duration, deliveries), deliveries: int64(deliveries)}
	var next atomic.Int64
	var failed firstError
	var working sync.WaitGroup
	began := time.Now()
	for range min(workers, deliveries) {
		working.Go(func() {
			for failed.err() == nil && ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= deliveries {
					return
				}
				started := time.Now()
				if err := a.deliver(ctx, events[i]); err != nil {
					failed.note(err)
				}
				done.latencies[i] = time.Since(started)
			}
		})
	}
	working.Wait()
	done.elapsed = time.Since(began)
	if err := ctx.Err(); err != nil {
		return batch{}, err // whatever else was noted came of it
	}
	if err := failed.err(); err != nil {
		return batch{}, fmt.Errorf("%s: %w", a.name, err)
	}
	return done, nil
}

// firstError is what ends the work of several goroutines.
type firstError struct{ noted atomic.Pointer[error] }

func (f *firstError) note(err error) { f.noted.CompareAndSwap(nil, &err) }

func (f *firstError) err() error {
	if noted := f.noted.Load(); noted != nil {
		return *noted
	}
	return nil
}
