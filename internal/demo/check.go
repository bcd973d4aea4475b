package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// effects are an event's rows in the database.
type effects struct{ orders, payments, keys int }

const (
	ordersTable   = "orders"
	paymentsTable = "payments"
	keysTable     = "idempotency_keys"
)

// countEffects counts each event's rows with SQL of its own, since the library is what is being checked.
func (d *database) countEffects(ctx context.Context) (map[eventKey]effects, error) {
	counts := map[eventKey]effects{}
	for _, table := range []string{ordersTable, paymentsTable, keysTable} {
		if err := d.countTable(ctx, table, counts); err != nil {
			return nil, fmt.Errorf("count the rows of %s: %w", table, err)
		}
	}
	return counts, nil
}

func (d *database) countTable(ctx context.Context, table string, counts map[eventKey]effects) (err error) {
	rows, err := d.pool.QueryContext(ctx,
		`SELECT source, event_id, count(*) FROM `+d.table(table)+` GROUP BY source, event_id`) //nolint:gosec // names of ours
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var key eventKey
		var count int
		if err := rows.Scan(&key.source, &key.id, &count); err != nil {
			return err
		}
		e := counts[key]
		switch table {
		case ordersTable:
			e.orders = count
		case paymentsTable:
			e.payments = count
		case keysTable:
			e.keys = count
		}
		counts[key] = e
	}
	return rows.Err()
}

// judge says what is wrong with an event, or nothing.
func judge(e *event, got effects, requests []*request) []string {
	name := e.sender.name + " " + e.id
	if (got == effects{}) && !slices.ContainsFunc(requests, (*request).succeeded) {
		return []string{name + " was never answered with success, and its senders gave up"}
	}
	var wrong []string
	if got.orders > 1 || got.payments > 1 {
		wrong = append(wrong, fmt.Sprintf("%s took effect more than once: %s", name, got))
	}
	if got.orders < 1 || got.payments < 1 {
		wrong = append(wrong, fmt.Sprintf("%s lost its effect: %s", name, got))
	}
	if got.keys != 1 {
		wrong = append(wrong, fmt.Sprintf("%s has %d keys", name, got.keys))
	}
	if !identical(requests) {
		wrong = append(wrong, name+" was answered in different ways")
	}
	for _, r := range requests {
		if r.changed && r.succeeded() {
			wrong = append(wrong, name+" was accepted with a changed body")
			break
		}
	}
	return wrong
}

// strays says which rows belong to no event that was delivered.
func strays(events []*event, counts map[eventKey]effects) []string {
	delivered := map[eventKey]bool{}
	for _, e := range events {
		delivered[e.key()] = true
	}
	var wrong []string
	for key, got := range counts {
		if !delivered[key] {
			wrong = append(wrong, fmt.Sprintf("%s %s was never delivered and has %s", key.source, key.id, got))
		}
	}
	return wrong
}

func (e effects) String() string {
	return plural(e.orders, "order") + " and " + plural(e.payments, "payment")
}

func plural(n int, word string) string {
	if n != 1 {
		word += "s"
	}
	return fmt.Sprintf("%d %s", n, word)
}

func deliveries(n int) string {
	if n == 1 {
		return "1 delivery"
	}
	return fmt.Sprintf("%d deliveries", n)
}

// verdict is the whole result in a sentence.
func (r *Report) verdict() string {
	if !r.OK {
		return fmt.Sprintf("FAILED: %s.", strings.Join(r.Problems, "; "))
	}
	return fmt.Sprintf("PASSED: %s came in %s, which took %s, and each event took effect exactly once: the database "+
		"holds %s and %s, and all successful answers to an event are equal, byte for byte.",
		plural(len(r.Events), "event"), deliveries(r.Totals.Deliveries), plural(r.Totals.Requests, "request"),
		plural(r.Totals.Orders, "order"), plural(r.Totals.Payments, "payment"))
}
