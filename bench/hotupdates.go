package main

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
)

const nameHOT = "ours"

// hotWorkers claim at the same time: a page keeps room for the answers of all that have claimed on it at once.
const hotWorkers = 8

// measureHOT stores answers of a size that do not compress, and asks the server which share of the updates stayed on its
// row's page, without touching an index.
func measureHOT(ctx context.Context, r *session) ([]Group, error) {
	g := Group{Name: "hot", Unit: "%", Axis: "bytes of the answer", Title: fmt.Sprintf("Share of completions that are HOT updates, %s keys", thousands(r.size.updates))}
	for _, bytes := range []int{40, 300, 900, 1500} {
		text := answerOf(bytes)
		setting := thousands(bytes) + " B"
		for _, table := range []struct {
			name, table string
			arm         func(*handles) arm
			updates     int
		}{
			{nameHOT, "idempotency_keys", func(h *handles) arm {
				return arm{name: nameHOT, effects: never, deliver: func(ctx context.Context, event string) error {
					_, err := idempotency.Do(h.plain.WithContext(ctx), source, event, nil, func(tx *gorm.DB) error {
						return idempotency.Respond(tx, answerStatus, text)
					})
					return err
				}}
			}, r.size.updates},
			{namePageGORM, "webhook_idempotency", func(h *handles) arm {
				return arm{name: namePageGORM, effects: never, deliver: func(ctx context.Context, event string) error {
					return deliverPage(h.plain.WithContext(ctx), event, text, func(*gorm.DB) error { return nil })
				}}
			}, r.size.updates / 4}, // it is none of ours
		} {
			err := r.with(ctx, fast, hotWorkers, func(d *database, h *handles) error {
				if _, err := table.arm(h).run(ctx, hotWorkers, table.updates); err != nil {
					return endedBy(ctx, err)
				}
				h.close() // a backend that ends reports at once, and one that is idle after ten seconds
				share, err := d.hotShare(ctx, table.table, int64(table.updates))
				if err != nil {
					return endedBy(ctx, err)
				}
				g.add(table.name, setting, float64(bytes), []float64{share})
				return nil
			})
			if err != nil {
				return []Group{g}, err
			}
			r.progress.step()
		}
	}
	return []Group{g}, nil
}

// hotShare reads the server's counters, in percent. It waits until all updates are there.
func (d *database) hotShare(ctx context.Context, table string, updates int64) (float64, error) {
	pool := d.pool()
	defer pool.Close()
	const limit = 30 * time.Second
	var updated, hot int64
	for began := time.Now(); time.Since(began) < limit; time.Sleep(holdPoll) {
		err := pool.QueryRowContext(ctx, `SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = '`+table+`'`).Scan(&updated, &hot)
		if err != nil {
			return 0, fmt.Errorf("read the server's counters: %w", err)
		}
		if updated >= updates {
			return 100 * float64(hot) / float64(updated), nil
		}
	}
	return 0, fmt.Errorf("the server has counted %d of %d updates of %s after %v", updated, updates, table, limit)
}
