package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

const (
	day = 24 * time.Hour

	month       = 30 * day // the retention
	cyclesSwept = 3
	sweepBatch  = 5000 // keys, of the library's sweeper and of the page's
)

const (
	nameOurSweep  = "ours, Sweeper"
	namePageSweep = "source page, DELETE"
)

// measureCycles lets both tables live through months: in each of them keys are inserted, those of the month before are
// swept, and vacuum gives their pages to the next. Time is made by how old the keys of a month are, and how long the
// retention of its sweep is.
func measureCycles(ctx context.Context, r *session) ([]Group, error) {
	pages := Group{Name: "idle-sweep", Unit: "buffers", Title: fmt.Sprintf("A sweep with nothing to do, after %d cycles of %s keys",
		cyclesSwept, thousands(r.size.month))}
	batches := Group{Name: "sweep-batch", Unit: "ms", Title: fmt.Sprintf("A batch of the sweep of %s keys, all it does divided by its batches",
		thousands(r.size.month))}
	err := r.with(ctx, fast, 1, func(d *database, h *handles) error {
		pool, err := h.plain.DB()
		if err != nil {
			return err
		}
		size := min(sweepBatch, max(1, r.size.month/3)) // of a short run
		var ours, theirs []float64
		for cycle := range cyclesSwept + 1 {
			if err := d.insertMonth(ctx, cycle, r.size.month); err != nil {
				return endedBy(ctx, err)
			}
			retention := time.Duration(cyclesSwept+1-cycle) * month
			ms, err := sweepOurs(ctx, d, retention, size)
			if err != nil {
				return endedBy(ctx, err)
			}
			pageMs, err := sweepTheirs(ctx, pool, retention, size)
			if err != nil {
				return endedBy(ctx, err)
			}
			if cycle > 0 { // in the first month there is nothing to sweep
				ours, theirs = append(ours, ms), append(theirs, pageMs)
			}
			if err := d.vacuum(ctx); err != nil {
				return endedBy(ctx, err)
			}
			r.progress.step()
		}
		batches.add(nameOurSweep, "", 0, ours)
		batches.add(namePageSweep, "", 0, theirs)
		return endedBy(ctx, r.idle(ctx, pool, &pages, size))
	})
	return []Group{pages, batches}, err
}

// insertMonth writes a cycle's keys to both tables, the oldest first.
func (d *database) insertMonth(ctx context.Context, cycle, keys int) error {
	oldest := time.Duration(cyclesSwept+1-cycle) * month
	for _, table := range []string{"idempotency_keys", "webhook_idempotency"} {
		if err := d.insert(ctx, table, keys, oldest, oldest-month); err != nil {
			return err
		}
	}
	return nil
}

// insert writes answered keys whose ages are spread evenly between two ages, the oldest first.
func (d *database) insert(ctx context.Context, table string, keys int, oldest, youngest time.Duration) error {
	raw, value := "", ""
	if table == "idempotency_keys" {
		raw, value = ", response_raw", `, '{"order_id":"o1","status":"recorded"}'`
	}
	err := d.execute(ctx, fmt.Sprintf(`INSERT INTO %s (source, event_id, payload_digest, claimed_at, completed_at, response_status, response_body%s)
		SELECT 'filler', 'evt_' || md5(random()::text || n), sha256('x'), at, at, 200, '{"order_id":"o1","status":"recorded"}'%s
		FROM generate_series(1, %[4]d) AS n, LATERAL (SELECT now() - interval '1 second' * (%[5]f - %[6]f * n / (%[4]d + 1))) AS age(at)`,
		table, raw, value, keys, oldest.Seconds(), (oldest-youngest).Seconds()))
	if err != nil {
		return fmt.Errorf("insert keys: %w", err)
	}
	return nil
}

func (d *database) vacuum(ctx context.Context) error {
	return errors.Join(d.execute(ctx, `VACUUM ANALYZE idempotency_keys`), d.execute(ctx, `VACUUM ANALYZE webhook_idempotency`))
}

// sweepOurs is a run of the library's Sweeper, with its checks of the table and its care for the index. It returns how many
// milliseconds each of its batches took of it.
func sweepOurs(ctx context.Context, d *database, retention time.Duration, size int) (float64, error) {
	h, err := open(ctx, d.dsn(nil), 1, idempotency.Config{Retention: retention})
	if err != nil {
		return 0, err
	}
	defer h.close()
	sweeper, err := idempotency.NewSweeper(h.plain, idempotency.SweeperConfig{BatchSize: size, Pause: time.Nanosecond})
	if err != nil {
		return 0, err
	}
	report, err := sweeper.Sweep(ctx)
	if err != nil {
		return 0, err
	}
	return report.Duration.Seconds() * 1000 / max(1, float64(report.Batches)), nil
}

// pageSweep is the source page's statement.
const pageSweep = `DELETE FROM webhook_idempotency
WHERE ctid IN (
    SELECT ctid FROM webhook_idempotency
    WHERE claimed_at < now() - $1::interval
    LIMIT $2
)`

// sweepTheirs is a run of the source page's sweeper, without its pauses.
func sweepTheirs(ctx context.Context, pool *sql.DB, retention time.Duration, size int) (float64, error) {
	began := time.Now()
	for batches := 0; ; batches++ {
		var deleted int64
		err := inTransaction(ctx, pool, func(tx *sql.Tx) error {
			result, err := tx.ExecContext(ctx, pageSweep, interval(retention), size)
			if err != nil {
				return err
			}
			deleted, err = result.RowsAffected()
			return err
		})
		if err != nil {
			return 0, fmt.Errorf("sweep with the source page's statement: %w", err)
		}
		if deleted < int64(size) {
			return time.Since(began).Seconds() * 1000 / max(1, float64(batches)), nil
		}
	}
}

func interval(d time.Duration) string { return fmt.Sprintf("%d seconds", int64(d.Seconds())) }

// idle has the server explain a sweep that finds nothing: ours as the sweeper runs it, and the page's.
func (r *session) idle(ctx context.Context, pool *sql.DB, g *Group, size int) error {
	table := pgsql.Table{Name: pgsql.DefaultTable}
	leaves, err := pgsql.Leaves(ctx, pool, table)
	if err != nil {
		return err
	}
	retention := month + time.Hour // all of the last month's keys are younger
	for _, sweep := range []struct {
		name, before, statement string
		args                    []any
	}{
		{nameOurSweep, pgsql.SweepLock, pgsql.SweepBatch(leaves[0].Relation, pgsql.AllSources, leaves[0].Range), []any{retention.Seconds(), size}},
		{namePageSweep, `SELECT $1::text`, pageSweep, []any{interval(retention), size}},
	} {
		buffers, err := explain(ctx, pool, table, sweep.before, sweep.statement, sweep.args)
		if err != nil {
			return fmt.Errorf("explain an idle sweep, %s: %w", sweep.name, err)
		}
		g.add(sweep.name, "", 0, []float64{buffers})
	}
	var page int64
	err = pool.QueryRowContext(ctx, `SELECT pg_relation_size('webhook_idempotency') / current_setting('block_size')::bigint`).Scan(&page)
	if err != nil {
		return fmt.Errorf("ask for the table's size: %w", err)
	}
	g.Notes = append(g.Notes, fmt.Sprintf("The library's table has %s pages then, and the source page's %s.",
		thousands(int(leaves[0].Pages)), thousands(int(page))))
	return nil
}

// explain counts the buffers of a statement that it rolls back, in a transaction that begins with another statement on the
// table's name.
func explain(ctx context.Context, pool *sql.DB, table pgsql.Table, before, statement string, args []any) (float64, error) {
	var buffers float64
	err := inTransaction(ctx, pool, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, before, table.Quoted()); err != nil {
			return err
		}
		var text string
		if err := tx.QueryRowContext(ctx, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+statement, args...).Scan(&text); err != nil {
			return err
		}
		var plans []struct {
			Plan struct {
				Hit  float64 `json:"Shared Hit Blocks"`
				Read float64 `json:"Shared Read Blocks"`
			} `json:"Plan"`
		}
		if err := json.NewDecoder(strings.NewReader(text)).Decode(&plans); err != nil || len(plans) != 1 {
			return fmt.Errorf("read the plan: %w", err)
		}
		buffers = plans[0].Plan.Hit + plans[0].Plan.Read
		return errRollBack
	})
	if errors.Is(err, errRollBack) {
		return buffers, nil
	}
	return 0, err
}

var errRollBack = errors.New("roll back")

func inTransaction(ctx context.Context, pool *sql.DB, work func(*sql.Tx) error) error {
	tx, err := pool.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if err := work(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}
