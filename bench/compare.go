package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// comparison runs arms in turns, round by round, so that a noisy machine hurts all alike.
type comparison struct {
	arms       []arm
	workers    int // deliveries at a time, of one arm
	deliveries int // of each arm in each round
	rounds     int
	limit      time.Duration // after which no round begins, once there are three
}

// leastRounds is what a median takes.
const leastRounds = 3

// timing is what an arm took, a value a round.
type timing struct {
	latency    []float64 // the median of the round's deliveries, in milliseconds
	throughput []float64 // deliveries a second
	deliveries int64     // all of them, with those that warmed up
}

// run measures until the rounds are done, the limit is over, or ctx ends, which is no error: what was measured by then is
// what there is. It then counts in the database whether each arm did what it says.
func (c comparison) run(ctx context.Context, d *database, step func()) (timings []timing, err error) {
	timings = make([]timing, len(c.arms))
	if err := d.forgetEffects(ctx); err != nil {
		return timings, endedBy(ctx, err)
	}
	for _, a := range c.arms {
		if a.end != nil {
			defer a.end()
		}
		if a.prepare == nil {
			continue
		}
		if err := a.prepare(ctx); err != nil {
			return timings, endedBy(ctx, fmt.Errorf("prepare %s: %w", a.name, err))
		}
	}
	began := time.Now()
	for round := -1; round < c.rounds; round++ { // the one before the first warms up: connections, statements, pages
		if round >= leastRounds && time.Since(began) > c.limit {
			break
		}
		batches := make([]batch, len(c.arms))
		for i := range c.arms {
			at := (i + round + 1) % len(c.arms)
			if batches[at], err = c.arms[at].run(ctx, c.workers, c.deliveries); err != nil {
				return timings, endedBy(ctx, err)
			}
		}
		for i, b := range batches {
			timings[i].note(b, round >= 0)
		}
		step()
	}
	return timings, c.check(ctx, d, timings)
}

func (t *timing) note(b batch, counts bool) {
	t.deliveries += b.deliveries
	if !counts {
		return
	}
	t.throughput = append(t.throughput, b.perSecond())
	if b.latencies != nil {
		t.latency = append(t.latency, quantile(milliseconds(b.latencies), 0.5))
	}
}

// endedBy is no error where the user wanted an end: what is left over of a round is not counted.
func endedBy(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(ctx.Err(), context.Canceled) {
		return nil
	}
	return err
}

// check counts the effects. An arm that is fast because it does something else is no arm.
func (c comparison) check(ctx context.Context, d *database, timings []timing) error {
	counted, err := d.effects(ctx)
	if err != nil {
		return endedBy(ctx, err)
	}
	for i, a := range c.arms {
		want := a.effects(timings[i].deliveries)
		if got := counted[a.name]; got.orders != want || got.events != want {
			return fmt.Errorf("%s: %d deliveries left %d orders of %d events, want %d of each: its figures mean nothing",
				a.name, timings[i].deliveries, got.orders, got.events, want)
		}
	}
	return nil
}

func (d *database) forgetEffects(ctx context.Context) error {
	if err := d.execute(ctx, `TRUNCATE orders`); err != nil {
		return fmt.Errorf("empty the table of effects: %w", err)
	}
	return nil
}

// effect is what there is of an arm.
type effect struct{ orders, events int64 }

func (d *database) effects(ctx context.Context) (map[string]effect, error) {
	pool := d.pool()
	defer pool.Close()
	rows, err := pool.QueryContext(ctx, `SELECT arm, count(*), count(DISTINCT event) FROM orders GROUP BY arm`)
	if err != nil {
		return nil, fmt.Errorf("count the effects: %w", err)
	}
	defer rows.Close()
	counted := make(map[string]effect)
	for rows.Next() {
		var arm string
		var e effect
		if err := rows.Scan(&arm, &e.orders, &e.events); err != nil {
			return nil, fmt.Errorf("count the effects: %w", err)
		}
		counted[arm] = e
	}
	return counted, rows.Err()
}
