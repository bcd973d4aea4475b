package main

import (
	"context"
	"fmt"
)

// The names of the arms that figures are made of.
const (
	nameBare              = "bare GORM transaction"
	namePageGORM          = "source page, GORM"
	namePagePgx           = "source page, pgx"
	nameLease             = "lease, commits its claim first"
	nameAnswer            = "ours, with an answer"
	nameNoAnswer          = "ours, no answer"
	nameDuplicate         = "ours, duplicate"
	namePipelined         = "ours, pipelined, with an answer"
	namePipelinedNoAnswer = "ours, pipelined, no answer"
	namePipelinedDup      = "ours, pipelined, duplicate"
)

// every is all arms, on handles of one connection. holder is for the key that is in flight.
func (h *handles) every(holder *handles) []arm {
	return []arm{
		bare(nameBare, h.plain),
		bare("bare, PrepareStmt", h.prepared),
		bare("bare, lib/pq", h.pq),
		pageGORM(namePageGORM, h.plain, answer),
		pageGORM("source page, GORM, PrepareStmt", h.prepared, answer),
		pagePgx(namePagePgx, h.raw, answer),
		lease(nameLease, h.plain, answer),
		known("answer known in advance, by hand", h.plain),
		fresh(nameAnswer, h.plain, answer),
		fresh(nameNoAnswer, h.plain, nil),
		typed("ours, DoValue", h.plain),
		joined("ours, joined", h.plain),
		fresh("ours, PrepareStmt, with an answer", h.prepared, answer),
		fresh("ours, lib/pq, with an answer", h.pq, answer),
		fresh(namePipelined, h.pipelined, answer),
		fresh(namePipelinedNoAnswer, h.pipelined, nil),
		again(pageGORM("source page, GORM, duplicate", h.plain, answer)),
		duplicate(nameDuplicate, h.plain, answer),
		duplicate(namePipelinedDup, h.pipelined, answer),
		failing("ours, failing handler", h.plain),
		failing("ours, pipelined, failing handler", h.pipelined),
		refused("ours, in flight", h.plain, holder.plain),
	}
}

// chief are the arms that most questions are about.
func (h *handles) chief() []arm {
	return []arm{
		bare(nameBare, h.plain),
		pageGORM(namePageGORM, h.plain, answer),
		pagePgx(namePagePgx, h.raw, answer),
		lease(nameLease, h.plain, answer),
		fresh(nameAnswer, h.plain, answer),
		fresh(nameNoAnswer, h.plain, nil),
		duplicate(nameDuplicate, h.plain, answer),
		fresh(namePipelined, h.pipelined, answer),
		fresh(namePipelinedNoAnswer, h.pipelined, nil),
		duplicate(namePipelinedDup, h.pipelined, answer),
	}
}

func measureDelivery(ctx context.Context, r *session) ([]Group, error) {
	g := Group{Name: "delivery", Title: "A delivery, one connection, synchronous_commit off", Unit: "ms", Reference: nameBare}
	err := r.with(ctx, fast, 1, func(d *database, h *handles) error {
		holder, err := d.open(ctx, 1, nil)
		if err != nil {
			return endedBy(ctx, err)
		}
		defer holder.close()
		return r.latencies(ctx, d, &g, "", 0, r.comparison(1, h.every(holder)...))
	})
	return []Group{g}, err
}

func measureCommit(ctx context.Context, r *session) ([]Group, error) {
	g := Group{Name: "commit", Title: "A delivery, synchronous_commit on", Unit: "ms", Axis: "connections", Reference: nameBare}
	for _, connections := range []int{1, 8} {
		err := r.with(ctx, durable, connections, func(d *database, h *handles) error {
			c := r.comparison(connections, h.chief()...)
			c.rounds, c.limit = max(leastRounds, c.rounds/2), c.limit/2 // the disk is slow
			return r.latencies(ctx, d, &g, count(connections, "connection"), float64(connections), c)
		})
		if err != nil {
			return []Group{g}, err
		}
	}
	return []Group{g}, nil
}

// measureAnalysed has tables as they are in production, where autovacuum has come by: some keys are there, and the planner
// knows of them.
func measureAnalysed(ctx context.Context, r *session) ([]Group, error) {
	g := Group{Name: "analysed", Unit: "ms", Reference: nameBare,
		Title: fmt.Sprintf("A delivery, %s keys that have been analysed, one connection, synchronous_commit off", thousands(r.size.analysed))}
	err := r.with(ctx, fast, 1, func(d *database, h *handles) error {
		if err := d.fill(ctx, r.size.analysed); err != nil {
			return endedBy(ctx, err)
		}
		if err := d.execute(ctx, `ALTER TABLE webhook_idempotency RESET (autovacuum_enabled)`); err != nil {
			return endedBy(ctx, err)
		}
		return r.latencies(ctx, d, &g, "", 0, r.comparison(1, h.chief()...))
	})
	return []Group{g}, err
}

// latencies runs a comparison, and adds what its arms took to a group.
func (r *session) latencies(ctx context.Context, d *database, g *Group, setting string, at float64, c comparison) error {
	timings, err := c.run(ctx, d, r.progress.step)
	for i, a := range c.arms {
		g.add(a.name, setting, at, timings[i].latency)
	}
	return err
}
