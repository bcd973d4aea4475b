package idempotency_test

import (
	"context"
	"fmt"

	"github.com/gorm-idempotency/idempotency"
)

// An operator asks what is wrong with the table, and gets a sentence and a remedy for each thing. This one has lost an index,
// and holds a key that should have been swept ten days ago.
func ExampleInspect() {
	db, done := openDB()
	defer done()
	for _, statement := range []string{
		`DROP INDEX idx_idempotency_keys_incomplete`,
		`INSERT INTO idempotency_keys (source, event_id, payload_digest, claimed_at, completed_at)
		 SELECT 'shop', 'evt_1', sha256('{}'), old, old FROM (SELECT now() - interval '40 days' AS old) AS age`,
	} {
		if err := db.Exec(statement).Error; err != nil {
			panic(err)
		}
	}

	report, err := idempotency.Inspect(context.Background(), db)
	if err != nil {
		panic(err)
	}
	for _, finding := range report.Findings {
		fmt.Printf("%v %s\n  %s\n", finding.Severity, finding.Check, finding.Message)
	}
	for _, skipped := range report.Skipped {
		fmt.Printf("not checked: %s, since %s\n", skipped.Check, skipped.Reason)
	}
	fmt.Println("healthy:", report.Healthy(), "keys:", report.Keys, "overdue:", report.Overdue)
	// Output:
	// warning missing-index
	//   The table lacks an index of incomplete claims on public.idempotency_keys.
	// warning overdue-keys
	//   1 key is overdue, mostly by a retention of 30 days: sweeps have stalled, or do not keep up. The oldest that was seen is 40 days old.
	// not checked: incomplete-claims, since it goes by the index of incomplete claims, which is missing or invalid
	// healthy: false keys: 1 overdue: 1
}

// A probe that an alert goes by: the checks that need somebody.
func ExampleReport_Healthy() {
	db, done := openDB()
	defer done()

	report, err := idempotency.Inspect(context.Background(), db)
	if err != nil {
		panic(err)
	}
	if !report.Healthy() {
		fmt.Println("call somebody")
	}
	fmt.Println(len(report.Findings), "findings")
	// Output:
	// 0 findings
}
