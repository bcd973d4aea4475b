package main

import (
	"context"
	"fmt"
	"runtime"
)

// measureAllocations counts what one goroutine allocates, with all that GORM and the driver do for it.
func measureAllocations(ctx context.Context, r *session) ([]Group, error) {
	g := Group{Name: "allocations", Title: "Allocations of a delivery", Unit: "allocations", Reference: nameBare}
	err := r.with(ctx, fast, 1, func(d *database, h *handles) error {
		arms := h.chief()
		counts := make([][]float64, len(arms))
		for round := range leastRounds {
			for i, a := range arms {
				if round == 0 && a.prepare != nil {
					if err := a.prepare(ctx); err != nil {
						return endedBy(ctx, fmt.Errorf("prepare %s: %w", a.name, err))
					}
				}
				each, err := allocations(ctx, a, r.size.deliveries)
				if err != nil {
					return endedBy(ctx, err)
				}
				counts[i] = append(counts[i], each)
			}
			r.progress.step()
		}
		for i, a := range arms {
			g.add(a.name, "", 0, counts[i])
		}
		return nil
	})
	return []Group{g}, err
}

func allocations(ctx context.Context, a arm, deliveries int) (float64, error) {
	events := make([]string, deliveries)
	for i := range events {
		events[i] = newEvent()
	}
	if err := a.deliver(ctx, newEvent()); err != nil { // connects, and prepares the statements
		return 0, fmt.Errorf("%s: %w", a.name, err)
	}
	var before, after runtime.MemStats
	runtime.GC() // or a collection in between would empty the pools of everyone
	runtime.ReadMemStats(&before)
	for _, event := range events {
		if err := a.deliver(ctx, event); err != nil {
			return 0, fmt.Errorf("%s: %w", a.name, err)
		}
	}
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / float64(deliveries), nil
}
