package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
)

const (
	nameClaim     = "ours, claim alone"
	namePageClaim = "source page, GORM, claim alone"
)

// measureTables measures in turns on databases that have so many keys.
func measureTables(ctx context.Context, r *session) (_ []Group, err error) {
	g := Group{Name: "tables", Title: "A claim and its transaction, one connection, synchronous_commit off", Unit: "ms",
		Axis: "keys in the table"}
	var all []arm
	var first *database
	for _, keys := range r.size.keys {
		d, err := r.server.create(ctx, fast)
		if err != nil {
			return []Group{g}, endedBy(ctx, err)
		}
		defer func() { err = errors.Join(err, d.drop()) }()
		if err := d.fill(ctx, keys); err != nil {
			return []Group{g}, endedBy(ctx, err)
		}
		h, err := d.open(ctx, 1, nil)
		if err != nil {
			return []Group{g}, endedBy(ctx, err)
		}
		defer h.close()
		all = append(all, claimOnly(nameClaim, h.plain), pageClaimOnly(namePageClaim, h.plain))
		first = cmp.Or(first, d)
		r.progress.step()
	}
	c := r.comparison(1, all...)
	timings, err := c.run(ctx, first, r.progress.step)
	for i, a := range all {
		keys := r.size.keys[i/2]
		g.add(a.name, count(keys, "key"), float64(keys), timings[i].latency)
	}
	return []Group{g}, err
}

// fill writes keys of the last thirty days into both tables, and leaves them as a table is that vacuum and the planner know.
// The keys of an index come in no order, so it is made when they are there.
func (d *database) fill(ctx context.Context, keys int) error {
	for _, statement := range []string{
		`ALTER TABLE idempotency_keys DROP CONSTRAINT idempotency_keys_pkey`,
		fmt.Sprintf(`INSERT INTO idempotency_keys (source, event_id, payload_digest, claimed_at, completed_at, response_status, response_raw, response_body)
			SELECT 'filler', 'evt_' || md5(n::text), sha256('x'), at, at, 200, '{"order_id":"o1"}', '{"order_id":"o1"}'
			FROM generate_series(1, %[1]d) AS n, LATERAL (SELECT now() - interval '30 days' * (1 - n / (%[1]d + 1.0))) AS age(at)`, keys),
		`ALTER TABLE idempotency_keys ADD PRIMARY KEY (source, event_id)`,
		`ALTER TABLE webhook_idempotency DROP CONSTRAINT webhook_idempotency_pkey`,
		`INSERT INTO webhook_idempotency (source, event_id, payload_digest, claimed_at, completed_at, response_status, response_body)
			SELECT source, event_id, payload_digest, claimed_at, completed_at, response_status, response_body FROM idempotency_keys`,
		`ALTER TABLE webhook_idempotency ADD PRIMARY KEY (source, event_id)`,
		`VACUUM ANALYZE idempotency_keys`, `VACUUM ANALYZE webhook_idempotency`,
	} {
		if err := d.execute(ctx, statement); err != nil {
			return fmt.Errorf("fill a table with %d keys: %w", keys, err)
		}
	}
	return nil
}
