package main

import (
	"context"
	"errors"
	"fmt"
)

// poolsOfConnections is how many pools the arms below have, with pgbench's connections.
const poolsOfConnections = 4

func measureConnections(ctx context.Context, r *session) ([]Group, error) {
	g := Group{Name: "connections", Title: "Throughput, synchronous_commit off", Unit: "deliveries/s", Axis: "connections", Reference: nameBare}
	err := r.on(ctx, fast, func(d *database) error {
		limit, err := newPgbench(d)
		switch {
		case errors.Is(err, errNoPgbench):
			g.Notes = append(g.Notes, err.Error()+".")
		case err != nil:
			return err
		default:
			defer limit.close()
		}
		for _, connections := range r.size.levels {
			if connections*poolsOfConnections > r.server.conns {
				g.Notes = append(g.Notes, fmt.Sprintf("Not measured on %d connections: the server has %d left for %d pools of them.",
					connections, r.server.conns, poolsOfConnections))
				continue
			}
			if err := r.throughput(ctx, d, &g, limit, connections); err != nil {
				return err
			}
		}
		return nil
	})
	return []Group{g}, err
}

func (r *session) throughput(ctx context.Context, d *database, g *Group, limit *pgbench, connections int) error {
	h, err := d.open(ctx, connections, nil)
	if err != nil {
		return endedBy(ctx, err)
	}
	defer h.close()
	c := r.comparison(connections, h.chief()...)
	if limit != nil {
		c.arms = append(c.arms, limit.arm())
	}
	c.deliveries = max(c.deliveries, connections*r.size.perConnection)
	c.rounds, c.limit = max(leastRounds, c.rounds/4), c.limit/3 // each takes long
	timings, err := c.run(ctx, d, r.progress.step)
	for i, a := range c.arms {
		g.add(a.name, count(connections, "connection"), float64(connections), timings[i].throughput)
	}
	return err
}

// count is a number with its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%s %ss", thousands(n), noun)
}
