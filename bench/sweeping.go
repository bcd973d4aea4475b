package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
)

// Claims come at a steady rate, as they do in production. As fast as they can they would measure who gets the cores.
const (
	claimers   = 8
	claimPause = 40 * time.Millisecond // of each
)

const nameHeap = "heap"

const (
	noSweep = "no sweep"
	inSweep = "during a sweep"
)

// measureSweeping makes claims with a sweep beside them and without, in turns, until the sweeps have deleted all there is.
// Each sweep is one of the Sweeper's own, of its default size and pace.
func measureSweeping(ctx context.Context, r *session) ([]Group, error) {
	p99 := Group{Name: "sweeping", Unit: "ms", Title: fmt.Sprintf("99th percentile of claims while %s expired keys are swept, 200 claims/s",
		thousands(r.size.expired))}
	memory := Group{Name: "memory", Unit: "kB", Axis: "keys swept", Title: "Live heap of the process that sweeps"}
	err := r.with(ctx, fast, claimers, func(d *database, h *handles) error {
		if err := d.expire(ctx, r.size.expired); err != nil {
			return endedBy(ctx, err)
		}
		sweeper, err := newSweeper(h.plain, r.size)
		if err != nil {
			return err
		}
		a := claimOnly("claims", h.plain)
		if _, err := claims(ctx, a, stopAfter(r.size.window)); err != nil { // warms up
			return endedBy(ctx, err)
		}
		var calm, swept []float64
		for window := range r.size.windows {
			memory.addHeap(window * r.size.expired / r.size.windows)
			alongside, took, err := sweepAlongside(ctx, a, sweeper)
			if err != nil {
				return endedBy(ctx, err)
			}
			alone, err := claims(ctx, a, stopAfter(took))
			if err != nil {
				return endedBy(ctx, err)
			}
			calm, swept = append(calm, quantile(alone, 0.99)), append(swept, quantile(alongside, 0.99))
			p99.set(a.name, calm, swept)
			r.progress.step()
		}
		memory.addHeap(r.size.expired)
		return d.checkSwept(ctx)
	})
	return []Group{p99, memory}, err
}

// set replaces what the group has by what there is so far.
func (g *Group) set(name string, calm, swept []float64) {
	g.Series = nil
	g.add(name, noSweep, 0, calm)
	g.add(name, inSweep, 1, swept)
}

// newSweeper sweeps a window's share in each run.
func newSweeper(db *gorm.DB, s size) (*idempotency.Sweeper, error) {
	const batch = 5000 // the default
	config := idempotency.SweeperConfig{MaxBatches: max(1, (s.expired+s.windows*batch-1)/(s.windows*batch))}
	if s.expired < s.windows*batch {
		config.BatchSize = max(1, (s.expired+s.windows-1)/s.windows)
	}
	return idempotency.NewSweeper(db, config)
}

// sweepAlongside returns the latencies of the claims during a sweep.
func sweepAlongside(ctx context.Context, a arm, sweeper *idempotency.Sweeper) (latencies []float64, took time.Duration, err error) {
	began := time.Now()
	ended := make(chan struct{})
	var failed error
	go func() {
		defer close(ended)
		_, failed = sweeper.Sweep(ctx)
	}()
	latencies, err = claims(ctx, a, ended)
	<-ended
	if err == nil {
		err = failed
	}
	return latencies, time.Since(began), err
}

func stopAfter(d time.Duration) <-chan struct{} {
	stop := make(chan struct{})
	time.AfterFunc(d, func() { close(stop) })
	return stop
}

// claims delivers at a steady rate until it is told to stop, and at least once, and returns the latencies in milliseconds.
func claims(ctx context.Context, a arm, stop <-chan struct{}) ([]float64, error) {
	var mu sync.Mutex
	var latencies []time.Duration
	var failed firstError
	var over atomic.Bool
	var working sync.WaitGroup
	for range claimers {
		working.Go(func() {
			for {
				event := newEvent()
				began := time.Now()
				err := a.deliver(ctx, event)
				took := time.Since(began)
				if err != nil {
					failed.note(err)
					return
				}
				mu.Lock()
				latencies = append(latencies, took)
				mu.Unlock()
				if over.Load() {
					return
				}
				time.Sleep(claimPause)
			}
		})
	}
	select {
	case <-stop:
	case <-ctx.Done():
	}
	over.Store(true)
	working.Wait()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return milliseconds(latencies), failed.err()
}

// addHeap notes what memory is in use once so many keys are swept.
func (g *Group) addHeap(keys int) {
	var stats runtime.MemStats
	runtime.GC()
	runtime.GC() // what pools hold survives the first one
	runtime.ReadMemStats(&stats)
	g.add(nameHeap, thousands(keys), float64(keys), []float64{float64(stats.HeapAlloc) / 1000})
}

// expire writes keys that are 31 to 60 days old.
func (d *database) expire(ctx context.Context, keys int) error {
	return d.insert(ctx, "idempotency_keys", keys, 60*day, 31*day)
}

func (d *database) checkSwept(ctx context.Context) error {
	pool := d.pool()
	defer pool.Close()
	var left int64
	err := pool.QueryRowContext(ctx, `SELECT count(*) FROM idempotency_keys WHERE claimed_at < now() - interval '30 days'`).Scan(&left)
	if err == nil && left > 0 {
		err = fmt.Errorf("the sweeps have left %d expired keys: their figures mean nothing", left)
	}
	return endedBy(ctx, err)
}
