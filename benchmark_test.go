package idempotency_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

// The arms do the same business write. They run in turns, a few deliveries each, so that a noisy machine hurts all alike,
// and a round's durations are divided by each other: the medians of these ratios are what is reported.

var benchmarkBody = []byte(`{"id":"evt_1","type":"order.paid","data":{"order":"o1","total":4200}}`)

var benchmarkAnswer = json.RawMessage(`{"order_id":"o1","status":"recorded"}`)

func bareDelivery(db *gorm.DB, event string) error {
	return db.Transaction(func(tx *gorm.DB) error { return tx.Create(&order{Event: event}).Error })
}

func freshDelivery(db *gorm.DB, event string) error {
	_, err := idempotency.Do(db, "bench", event, benchmarkBody, func(tx *gorm.DB) error {
		if err := tx.Create(&order{Event: event}).Error; err != nil {
			return err
		}
		return idempotency.Respond(tx, http.StatusOK, benchmarkAnswer)
	})
	return err
}

func freshDeliveryWithoutAnswer(db *gorm.DB, event string) error {
	_, err := idempotency.Do(db, "bench", event, benchmarkBody, func(tx *gorm.DB) error {
		return tx.Create(&order{Event: event}).Error
	})
	return err
}

func duplicateDelivery(db *gorm.DB, _ string) error {
	return freshDelivery(db, "the one that is always there")
}

// pageDelivery is the statements of the page that the project came from, as one writes them with GORM. Its table has the
// page's columns and indexes.
func pageDelivery(db *gorm.DB, event string) error {
	digest := idempotency.SHA256().Sum(benchmarkBody)
	return db.Transaction(func(tx *gorm.DB) error {
		var won []string
		err := tx.Raw(`INSERT INTO webhook_idempotency (source, event_id, payload_digest) VALUES ( ?, ?, ?)
			ON CONFLICT (source, event_id) DO NOTHING RETURNING event_id`, "bench", event, digest[:]).Scan(&won).Error
		if err != nil || len(won) == 0 {
			return err
		}
		if err := tx.Create(&order{Event: event}).Error; err != nil {
			return err
		}
		return tx.Exec(`UPDATE webhook_idempotency SET response_status = ?, response_body = ?, completed_at = now()
			WHERE source = ? AND event_id = ? AND completed_at IS NULL`, http.StatusOK, string(benchmarkAnswer), "bench", event).Error
	})
}

const pageTable = `
CREATE TABLE webhook_idempotency (
  source           TEXT        NOT NULL,
  event_id         TEXT        NOT NULL,
  payload_digest   BYTEA       NOT NULL,
  response_status  SMALLINT,
  response_body    JSONB,
  claimed_at       TIMESTAMPTZ NOT NULL DEFAULT now(),
  completed_at     TIMESTAMPTZ,
  PRIMARY KEY (source, event_id)
);
CREATE INDEX webhook_idempotency_claimed_idx ON webhook_idempotency USING BRIN (claimed_at);
CREATE INDEX webhook_idempotency_stuck_idx ON webhook_idempotency (claimed_at) WHERE completed_at IS NULL;`

// BenchmarkDelivery reports what a delivery takes, as multiples of the source page's statements through GORM and of the same
// write in a bare GORM transaction.
func BenchmarkDelivery(b *testing.B) {
	db := open(b, setup{})
	if err := db.Exec(pageTable).Error; err != nil {
		b.Fatal(err)
	}
	arms := []struct {
		name    string
		deliver func(*gorm.DB, string) error
	}{
		{"bare", bareDelivery}, {"page", pageDelivery}, {"answer", freshDelivery},
		{"no-answer", freshDeliveryWithoutAnswer}, {"duplicate", duplicateDelivery},
	}
	const deliveriesEach = 20
	took := make(map[string][]float64)
	for round := 0; b.Loop(); round++ {
		for i := range arms {
			arm := arms[(i+round)%len(arms)]
			began := time.Now()
			for n := range deliveriesEach {
				if err := arm.deliver(db, fmt.Sprintf("%s-%d-%d", arm.name, round, n)); err != nil {
					b.Fatal(err)
				}
			}
			took[arm.name] = append(took[arm.name], float64(time.Since(began)))
		}
	}
	b.ReportMetric(0, "ns/op") // a round's total says nothing
	for _, arm := range arms {
		b.ReportMetric(median(took[arm.name])/deliveriesEach/1000, arm.name+"-µs")
	}
	b.ReportMetric(medianRatio(took["answer"], took["page"]), "answer/page")
	b.ReportMetric(medianRatio(took["no-answer"], took["page"]), "no-answer/page")
	b.ReportMetric(medianRatio(took["duplicate"], took["bare"]), "duplicate/bare")
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

func medianRatio(of, to []float64) float64 {
	ratios := make([]float64, len(of))
	for i := range of {
		ratios[i] = of[i] / to[i]
	}
	return median(ratios)
}

// BenchmarkAllocations reports how many allocations a call adds to the same write in a bare GORM transaction.
func BenchmarkAllocations(b *testing.B) {
	db := open(b, setup{})
	event := 0
	allocations := func(deliver func(*gorm.DB, string) error) float64 {
		return testing.AllocsPerRun(500, func() {
			event++
			if err := deliver(db, fmt.Sprint(event)); err != nil {
				b.Fatal(err)
			}
		})
	}
	for b.Loop() {
		bare := allocations(bareDelivery)
		b.ReportMetric(allocations(freshDelivery)-bare, "added-with-answer")
		b.ReportMetric(allocations(freshDeliveryWithoutAnswer)-bare, "added-without-answer")
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkHOT fills a table with 100,000 answered keys, and reports which share of the updates stayed on their row's page
// without touching an index (case C35), and how large the table became.
//
// What decides is how much room a page keeps when several deliveries have claimed on it at once: a server that has no page
// with room left gives all of them the last one. So it takes several workers, and answers that do not compress.
func BenchmarkHOT(b *testing.B) {
	const keys, workers = 100_000, 8
	for _, size := range []int{40, 300, 900, 1500} {
		b.Run(fmt.Sprintf("answer=%dB", size), func(b *testing.B) {
			text := strings.NewReplacer(`"`, "q", `\`, "b").Replace(incompressible(size - 2))
			answer := json.RawMessage(`"` + text + `"`)
			for b.Loop() {
				db := open(b, setup{conns: workers})
				failed := make(chan error, workers)
				for worker := range workers {
					go func() {
						for n := worker; n < keys; n += workers {
							_, err := idempotency.Do(db, "bench", fmt.Sprint(n), nil, func(tx *gorm.DB) error {
								return idempotency.Respond(tx, http.StatusOK, answer)
							})
							if err != nil {
								failed <- err
								return
							}
						}
						failed <- nil
					}()
				}
				for range workers {
					if err := <-failed; err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(100*hotShare(b, db, keys), "%HOT")
				b.ReportMetric(float64(tableSize(b, db))/keys, "B/key")
			}
		})
	}
}

func tableSize(b *testing.B, db *gorm.DB) (bytes int64) {
	if err := db.Raw(`SELECT pg_relation_size('idempotency_keys')`).Scan(&bytes).Error; err != nil {
		b.Fatal(err)
	}
	return bytes
}

// BenchmarkSweepBatch reports what one batch of the sweep takes beside the source page's statement, in turns on the same data.
func BenchmarkSweepBatch(b *testing.B) {
	const page = `DELETE FROM idempotency_keys WHERE ctid IN (SELECT ctid FROM idempotency_keys
		WHERE claimed_at < now() - $1::double precision * interval '1 second' LIMIT $2::bigint)`
	statements := []string{pgsql.SweepBatch("idempotency_keys", pgsql.AllSources, 128), page}
	db := open(b, setup{conns: 1})
	pool, err := db.DB()
	requireError(b, err, nil)
	mustExec(b, db, "SET enable_seqscan = off") // as the sweeper does
	insertKeys(b, db, "s", 500_000, 60*day, 31*day)
	mustExec(b, db, "VACUUM ANALYZE idempotency_keys")
	for b.Loop() {
		took := make([][]float64, len(statements))
		for range 25 {
			for i, statement := range statements {
				began := time.Now()
				_, err := pool.Exec(statement, (30 * day).Seconds(), 5000)
				requireError(b, err, nil)
				took[i] = append(took[i], float64(time.Since(began)))
			}
		}
		b.ReportMetric(median(took[0])/1e6, "batch-ms")
		b.ReportMetric(medianRatio(took[0], took[1]), "batch/page")
	}
	b.ReportMetric(0, "ns/op")
}

// hotShare reads the server's counters, which backends report when they are idle: it waits until all updates are there.
func hotShare(b *testing.B, db *gorm.DB, updates int64) float64 {
	var counted struct{ Updated, Hot int64 }
	eventually(b, "the updates are counted", func() bool {
		err := db.Raw(`SELECT n_tup_upd AS updated, n_tup_hot_upd AS hot FROM pg_stat_user_tables WHERE relname = 'idempotency_keys'`).
			Scan(&counted).Error
		if err != nil {
			b.Fatal(err)
		}
		return counted.Updated >= updates
	})
	return float64(counted.Hot) / float64(counted.Updated)
}
