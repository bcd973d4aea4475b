package main

import (
	"context"
	"fmt"

	"github.com/gorm-idempotency/idempotency/bench/internal/wire"
)

// measureRoundTrips counts at the server's side of the connection, once every statement is prepared.
func measureRoundTrips(ctx context.Context, r *session) ([]Group, error) {
	g := Group{Name: "roundtrips", Title: "Round trips of a delivery", Unit: "round trips", Reference: nameBare}
	err := r.on(ctx, fast, func(d *database) error {
		network, address := d.server.address()
		link, err := wire.Start(network, address, 0)
		if err != nil {
			return err
		}
		defer link.Close() //nolint:errcheck // nobody listens any more
		h, err := d.open(ctx, 1, link)
		if err != nil {
			return endedBy(ctx, err)
		}
		defer h.close()
		holder, err := d.open(ctx, 1, nil)
		if err != nil {
			return endedBy(ctx, err)
		}
		defer holder.close()
		for _, a := range h.every(holder) {
			trips, err := roundTrips(ctx, a, link)
			if err != nil {
				return endedBy(ctx, err)
			}
			g.add(a.name, "", 0, []float64{trips})
			r.progress.step()
		}
		return nil
	})
	return []Group{g}, err
}

func roundTrips(ctx context.Context, a arm, link *wire.Link) (float64, error) {
	if a.end != nil {
		defer a.end()
	}
	if a.prepare != nil {
		if err := a.prepare(ctx); err != nil {
			return 0, fmt.Errorf("prepare %s: %w", a.name, err)
		}
	}
	const warming, counted = 3, 10
	if _, err := a.run(ctx, 1, warming); err != nil {
		return 0, err
	}
	before := link.RoundTrips()
	if _, err := a.run(ctx, 1, counted); err != nil {
		return 0, err
	}
	return float64(link.RoundTrips()-before) / counted, nil
}
