package compat_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
	"github.com/gorm-idempotency/idempotency/internal/conformance"
)

// A connection prepares each statement once, whatever the keys: 10,000 calls later it has as many as after the first of
// each kind.
func TestPreparedStatementsStayConstant(t *testing.T) {
	t.Parallel()
	const calls = 10_000
	for _, d := range []pgDriver{drivers[0], drivers[5]} {
		db := open(t, d.dialector(gormtest.DSN(t)), gorm.Config{PrepareStmt: true})
		requireNil(t, db.Use(idempotency.New(idempotency.Config{})))
		requireNil(t, db.Exec(createOrders).Error)
		pool, err := db.DB()
		requireNil(t, err)
		pool.SetMaxOpenConns(1)
		deliver := func(n int) {
			var err error
			key := fmt.Sprint(n / 2) // every other call is a duplicate
			switch n / 2 % 10 {
			case 0:
				_, err = idempotency.Do(db, "s"+key, key, []byte(key), placeOrder(key))
			case 1:
				err = db.Transaction(func(tx *gorm.DB) error {
					_, err := idempotency.Do(tx, "s"+key, key, []byte(key), placeOrder(key))
					return err
				})
			default:
				_, err = idempotency.Do(db, "s"+key, key, []byte(key), func(*gorm.DB) error { return nil })
			}
			if err != nil {
				t.Error(err)
			}
		}
		// On the only connection, and by a statement that is none of GORM's.
		count := func() string { return query(t, pool, "SELECT count(*) FROM pg_prepared_statements") }
		total := calls
		if d.libpq {
			total = calls / 10 // it prepares none of ours
		}
		for n := range 40 {
			deliver(n)
		}
		before := count()
		for n := 40; n < total; n++ {
			deliver(n)
		}
		if after := count(); after != before {
			t.Errorf("%s: %s prepared statements after 40 calls, and %s after %d", d.name, before, after, total)
		}
		conformance.Note(t, "Figures", "server-side prepared statements, "+d.name, fmt.Sprintf("the same number after 40 calls and %d", total))
	}
}

// BenchmarkPrepareStmt reports what the library adds to a bare GORM transaction with GORM's statement cache on, as a
// multiple of what it adds with it off: at most 1.15. The arms run in turns, so that a noisy machine hurts all alike.
func BenchmarkPrepareStmt(b *testing.B) {
	dsn := gormtest.DSN(b)
	type arm struct {
		db      *gorm.DB
		deliver func(*gorm.DB, string) error
	}
	bare := func(db *gorm.DB, event string) error {
		return db.Transaction(func(tx *gorm.DB) error { return tx.Create(&order{Event: event}).Error })
	}
	ours := func(db *gorm.DB, event string) error {
		_, err := idempotency.Do(db, "bench", event, nil, placeOrder(event))
		return err
	}
	var arms []arm
	for _, prepared := range []bool{false, true} {
		db := open(b, postgres.Open(dsn), gorm.Config{PrepareStmt: prepared})
		requireNil(b, errors.Join(db.Use(idempotency.New(idempotency.Config{})), db.Exec(createOrders).Error))
		arms = append(arms, arm{db, bare}, arm{db, ours})
	}
	const deliveriesEach = 20
	took := make([][]float64, len(arms))
	for round := 0; b.Loop(); round++ {
		for i := range arms {
			i = (i + round) % len(arms)
			began := time.Now()
			for n := range deliveriesEach {
				requireNil(b, arms[i].deliver(arms[i].db, fmt.Sprintf("%d-%d-%d", i, round, n)))
			}
			took[i] = append(took[i], float64(time.Since(began))/deliveriesEach/1000)
		}
	}
	median := func(values []float64) float64 { return slices.Sorted(slices.Values(values))[len(values)/2] }
	off, on := median(took[1])-median(took[0]), median(took[3])-median(took[2])
	b.ReportMetric(0, "ns/op") // a round's total says nothing
	b.ReportMetric(off, "added-off-µs")
	b.ReportMetric(on, "added-on-µs")
	b.ReportMetric(on/off, "on/off")
}
