package gormtest

import (
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
)

func TestRequireKey(t *testing.T) {
	t.Parallel()
	db := openShop(t)
	RequireNoKey(t, db, "shop", "evt_0")
	if _, err := idempotency.Do(db, "shop", "evt_0", nil, pay(0)); err != nil {
		t.Fatal(err)
	}
	if key := RequireKey(t, db, "shop", "evt_0"); key.ResponseStatus == nil || *key.ResponseStatus != 201 {
		t.Errorf("key %+v", key)
	}
	requireFailure(t, func(test *fakeTest) { RequireKey(test, db, "shop", "evt_1") }, "shop evt_1 is free", "same source and id")
	requireFailure(t, func(test *fakeTest) { RequireNoKey(test, db, "shop", "evt_0") }, "shop evt_0 was claimed at")
	requireFailure(t, func(test *fakeTest) { RequireKey(test, db, "", "evt_1") }, "look for the key")
	requireFailure(t, func(test *fakeTest) { RequireNoKey(test, db, "", "evt_1") }, "look for the key")
}

func TestRequireReplayed(t *testing.T) {
	t.Parallel()
	db := openShop(t)
	deliver := func(test testing.TB) {
		result, err := idempotency.Do(db, "shop", "evt_0", nil, pay(0))
		RequireReplayed(test, result, err)
	}
	requireFailure(t, func(test *fakeTest) { deliver(test) }, "its handler ran")
	deliver(t)
	requireFailure(t, func(test *fakeTest) { RequireReplayed(test, nil, errTry) }, "failed: try again")
	requireFailure(t, func(test *fakeTest) { RequireReplayed(test, nil, nil) }, "no result")
}

func TestAgedKeysAreSwept(t *testing.T) {
	t.Parallel()
	db := openShop(t)
	sweeper, err := idempotency.NewSweeper(db, idempotency.SweeperConfig{})
	if err != nil {
		t.Fatal(err)
	}
	sweep := func(want int64) {
		t.Helper()
		if n, err := sweeper.SweepOnce(t.Context()); err != nil || n != want {
			t.Errorf("swept %d, %v, want %d", n, err, want)
		}
	}
	for event := range 3 {
		if _, err := idempotency.Do(db, "shop", eventID(event), nil, pay(event)); err != nil {
			t.Fatal(err)
		}
	}
	before := RequireKey(t, db, "shop", "evt_0")
	if n := AgeKeys(t, db.Where("1 = 0"), 29*24*time.Hour); n != 3 {
		t.Errorf("aged %d keys, want 3: conditions on the handle are none of it", n)
	}
	after := RequireKey(t, db, "shop", "evt_0")
	if got := before.ClaimedAt.Sub(after.ClaimedAt); got != 29*24*time.Hour || !after.CompletedAt.Equal(after.ClaimedAt) {
		t.Errorf("aged by %v, completed at %v", got, after.CompletedAt)
	}
	sweep(0)
	AgeKeys(t, db, 25*time.Hour)
	sweep(3)
	RequireNoKey(t, db, "shop", "evt_0")
	requireFailure(t, func(test *fakeTest) { AgeKeys(test, db, 0) }, "forwards")
	requireFailure(t, func(test *fakeTest) { AgeKeys(test, db, -time.Hour) }, "forwards")
	if err := db.Migrator().DropTable(&idempotency.IdempotencyKey{}); err != nil {
		t.Fatal(err)
	}
	requireFailure(t, func(test *fakeTest) { AgeKeys(test, db, time.Hour) }, "age the keys", "idempotency_keys")
}

func TestRequireSingleConn(t *testing.T) {
	t.Parallel()
	db := openShop(t)
	RequireSingleConn(t, db, func(db *gorm.DB) error {
		for range 2 {
			if _, err := idempotency.Do(db, "shop", "evt_0", nil, pay(0)); err != nil {
				return err
			}
		}
		return sell(db)
	})
	requireFailure(t, func(test *fakeTest) {
		RequireSingleConn(test, db, func(db *gorm.DB) error {
			_, err := idempotency.Do(db, "shop", "evt_1", nil, func(tx *gorm.DB) error {
				var p payment
				if err := db.First(&p).Error; err != nil {
					return err
				}
				return tx.Create(&payment{Event: "of " + p.Event}).Error
			})
			return err
		})
	}, `SELECT * FROM "payments"`, "require_test.go", "the transaction's handle")
	requireFailure(t, func(test *fakeTest) {
		RequireSingleConn(test, db, func(*gorm.DB) error { return errTry })
	}, "try again")
}

// requireFailure runs an assertion that must fail, once, with these words.
func requireFailure(t *testing.T, assertion func(*fakeTest), words ...string) {
	t.Helper()
	test := newFakeTest()
	test.run(func() { assertion(test) })
	requireFound(t, test, words)
	if len(test.errors) != 1 {
		t.Errorf("%d failures: %q", len(test.errors), test.errors)
	}
}
