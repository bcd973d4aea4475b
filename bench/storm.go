package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
)

const (
	stormPool   = 8  // connections, for the storm and for the others
	stormOthers = 8  // goroutines that deliver other keys
	stormSize   = 64 // goroutines that deliver the one key
)

const (
	nameOurs          = "ours"
	nameOursPipelined = "ours, pipelined"
)

// store is a way to handle deliveries whose key and work one chooses. An answer that is not there yet is an error.
type store struct {
	name    string
	deliver func(ctx context.Context, event string, work func(tx *gorm.DB) error) error
}

// stores are what a key that many deliver at once makes a difference to.
func (h *handles) stores() []store {
	return []store{
		{nameOurs, ourStore(h.plain)},
		{nameOursPipelined, ourStore(h.pipelined)},
		{namePageGORM, pageStore(h.plain)},
		{nameLease, leaseStore(h.plain)},
	}
}

func ourStore(db *gorm.DB) func(context.Context, string, func(*gorm.DB) error) error {
	return func(ctx context.Context, event string, work func(*gorm.DB) error) error {
		_, err := idempotency.Do(db.WithContext(ctx), source, event, payload, func(tx *gorm.DB) error {
			if err := work(tx); err != nil {
				return err
			}
			return idempotency.Respond(tx, answerStatus, answer)
		})
		if errors.Is(err, idempotency.ErrInFlight) {
			return errInFlight
		}
		return err
	}
}

func pageStore(db *gorm.DB) func(context.Context, string, func(*gorm.DB) error) error {
	return func(ctx context.Context, event string, work func(*gorm.DB) error) error {
		return deliverPage(db.WithContext(ctx), event, answer, work)
	}
}

func leaseStore(db *gorm.DB) func(context.Context, string, func(*gorm.DB) error) error {
	return func(ctx context.Context, event string, work func(*gorm.DB) error) error {
		return deliverLease(db.WithContext(ctx), event, answer, work)
	}
}

// measureStorm delivers other keys for as long as a window, without a storm and with one, in turns. The storm's key is held
// for half of the window, and then it is a duplicate.
func measureStorm(ctx context.Context, r *session) ([]Group, error) {
	g := Group{Name: "storm", Unit: "deliveries/s",
		Title: fmt.Sprintf("Other keys' throughput, a pool of %d, %d at once deliver one key", stormPool, stormSize)}
	err := r.with(ctx, fast, stormPool, func(d *database, h *handles) error {
		stores := h.stores()
		calm, stormy := make([][]float64, len(stores)), make([][]float64, len(stores))
		for window := -1; window < r.size.windows; window++ { // the first one warms up
			for i, s := range stores {
				alone, err := s.others(ctx, r.size.window, 0)
				if err != nil {
					return endedBy(ctx, err)
				}
				beside, err := s.others(ctx, r.size.window, stormSize)
				if err != nil {
					return endedBy(ctx, err)
				}
				if window >= 0 {
					calm[i], stormy[i] = append(calm[i], alone), append(stormy[i], beside)
				}
			}
			r.progress.step()
		}
		for i, s := range stores {
			g.add(s.name, noStorm, 0, calm[i])
			g.add(s.name, inStorm, 1, stormy[i])
		}
		return d.eachOnce(ctx)
	})
	return []Group{g}, err
}

const (
	noStorm = "no storm"
	inStorm = "in a storm"
)

// others is how many deliveries of other keys a second there are, beside so many of one key.
func (s store) others(ctx context.Context, window time.Duration, storm int) (float64, error) {
	var over atomic.Bool
	var done atomic.Int64
	var failed firstError
	var working sync.WaitGroup
	until := func() bool { return over.Load() || failed.err() != nil || ctx.Err() != nil }

	hot := newEvent()
	for range storm {
		working.Go(func() {
			for !until() {
				err := s.deliver(ctx, hot, func(tx *gorm.DB) error {
					time.Sleep(window / 2)
					return place(tx, s.name, hot)
				})
				if errors.Is(err, errInFlight) {
					time.Sleep(holdPoll)
				} else if err != nil {
					failed.note(err)
				}
			}
		})
	}
	began := time.Now()
	for range stormOthers {
		working.Go(func() {
			for !until() {
				event := newEvent()
				if err := s.deliver(ctx, event, func(tx *gorm.DB) error { return place(tx, s.name, event) }); err != nil {
					failed.note(err)
				}
				if !over.Load() {
					done.Add(1)
				}
			}
		})
	}
	select {
	case <-time.After(window):
	case <-ctx.Done():
	}
	over.Store(true)
	elapsed := time.Since(began)
	working.Wait()
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if err := failed.err(); err != nil {
		return 0, fmt.Errorf("%s: %w", s.name, err)
	}
	return float64(done.Load()) / elapsed.Seconds(), nil
}

// holdPoll is how long a sender waits that was told that the event is in flight.
const holdPoll = 10 * time.Millisecond

// eachOnce makes sure that no event took effect twice.
func (d *database) eachOnce(ctx context.Context) error {
	counted, err := d.effects(ctx)
	if err != nil {
		return endedBy(ctx, err)
	}
	for arm, e := range counted {
		if e.orders != e.events {
			return fmt.Errorf("%s: %d events left %d orders: its figures mean nothing", arm, e.events, e.orders)
		}
	}
	return nil
}
