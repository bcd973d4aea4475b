package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gorm-idempotency/idempotency/bench/internal/wire"
)

// networkConnections are enough to keep both cores busy while others wait for the network.
const networkConnections = 8

func measureNetwork(ctx context.Context, r *session) ([]Group, error) {
	g := Group{Name: "network", Title: "A delivery across a network, 8 connections, synchronous_commit off", Unit: "ms",
		Axis: "ms of delay, both ways", Reference: nameBare}
	err := r.on(ctx, fast, func(d *database) error {
		for _, delay := range r.size.delays {
			if err := r.across(ctx, d, &g, delay); err != nil {
				return err
			}
		}
		return nil
	})
	return []Group{g}, err
}

// across measures on a network of a delay. That of none is the machine's own, with nothing in between.
func (r *session) across(ctx context.Context, d *database, g *Group, delay time.Duration) error {
	link, err := d.network(delay)
	if err != nil {
		return err
	}
	if link != nil {
		defer link.Close() //nolint:errcheck // nobody listens any more
	}
	h, err := d.open(ctx, networkConnections, link)
	if err != nil {
		return endedBy(ctx, err)
	}
	defer h.close()
	trip, err := roundTrip(ctx, d.dsn(link))
	if err != nil {
		return endedBy(ctx, err)
	}
	at := delay.Seconds() * 1000
	g.Notes = append(g.Notes, fmt.Sprintf("At %v ms a round trip with an empty statement took %.2f ms.", at, trip))
	return r.latencies(ctx, d, g, fmt.Sprintf("%v ms", at), at, r.comparison(networkConnections, h.chief()...))
}

func (d *database) network(delay time.Duration) (*wire.Link, error) {
	if delay == 0 {
		return nil, nil
	}
	network, address := d.server.address()
	return wire.Start(network, address, delay)
}

// roundTrip is the median time of an empty statement, in milliseconds.
func roundTrip(ctx context.Context, dsn string) (float64, error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return 0, fmt.Errorf("measure a round trip: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	took := make([]time.Duration, 101)
	for i := range took {
		began := time.Now()
		if _, err := conn.PgConn().Exec(ctx, ";").ReadAll(); err != nil {
			return 0, fmt.Errorf("measure a round trip: %w", err)
		}
		took[i] = time.Since(began)
	}
	return quantile(milliseconds(took), 0.5), nil
}
