package gormtest

import (
	"encoding/json"
	"errors"
	"testing"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-idempotency/idempotency"
)

func TestFixturesAreEvents(t *testing.T) {
	t.Parallel()
	db := openShop(t)
	for _, make := range []func(int) Fixture{func(n int) Fixture { return Stripe(n, 1) }, GitHub, Shopify} {
		for n := range 2 {
			for attempt := range 2 {
				f := make(n)
				if !json.Valid(f.Body) || f.Header.Get("Content-Type") != "application/json" {
					t.Errorf("fixture %s: %s", f.Body, f.Header)
				}
				result, err := idempotency.Do(db, f.Source, f.EventID, f.Body, nothing)
				if err != nil || result.Replayed != (attempt == 1) {
					t.Errorf("%s %s, attempt %d: %+v, %v", f.Source, f.EventID, attempt, result, err)
				}
			}
		}
	}
}

// Case C80: the sender's count of outstanding deliveries is no part of the event.
func TestStripesAttemptsDiffer(t *testing.T) {
	t.Parallel()
	if _, err := deliverTwice(t, idempotency.Config{}); !errors.Is(err, idempotency.ErrDigestMismatch) {
		t.Errorf("with the default digest: %v", err)
	}
	result, err := deliverTwice(t, idempotency.Config{Digest: idempotency.JSONDigest("/pending_webhooks")})
	RequireReplayed(t, result, err)
}

func deliverTwice(t *testing.T, config idempotency.Config) (*idempotency.Result, error) {
	t.Helper()
	db, err := gorm.Open(postgres.Open(DSN(t)), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		t.Fatal(err)
	}
	closeAfter(t, db)
	if err := db.Use(idempotency.New(config)); err != nil {
		t.Fatal(err)
	}
	first, second := Stripe(7, 1), Stripe(7, 2)
	if _, err := idempotency.Do(db, first.Source, first.EventID, first.Body, nothing); err != nil {
		t.Fatal(err)
	}
	return idempotency.Do(db, second.Source, second.EventID, second.Body, nothing)
}
