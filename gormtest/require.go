package gormtest

import (
	"context"
	"errors"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
)

// RequireKey returns a key's row, and fails the test if the key has not been claimed, or its claim is not committed. db may
// be in a transaction, whose own claims it sees.
func RequireKey(t testing.TB, db *gorm.DB, source, id string) *idempotency.IdempotencyKey {
	t.Helper()
	key, err := lookup(t, db, source, id)
	switch {
	case errors.Is(err, idempotency.ErrKeyNotFound):
		t.Fatalf("gormtest: the key %s %s is free: no delivery has claimed it and committed; does the handler take the same source and id?", source, id)
	case err != nil:
		t.Fatalf("gormtest: look for the key %s %s: %v", source, id, err)
	}
	return key
}

// RequireNoKey fails the test unless a key is free: nobody has claimed it, or whoever did has not committed, or was rolled
// back.
func RequireNoKey(t testing.TB, db *gorm.DB, source, id string) {
	t.Helper()
	key, err := lookup(t, db, source, id)
	switch {
	case err == nil:
		t.Fatalf("gormtest: the key %s %s was claimed at %v: a handler returned nil where it should have failed, or was not to run",
			source, id, key.ClaimedAt.Format(time.RFC3339Nano))
	case !errors.Is(err, idempotency.ErrKeyNotFound):
		t.Fatalf("gormtest: look for the key %s %s: %v", source, id, err)
	}
}

func lookup(t testingT, db *gorm.DB, source, id string) (*idempotency.IdempotencyKey, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), setupTimeout)
	defer cancel()
	return idempotency.Lookup(ctx, db, source, id)
}

// RequireReplayed fails the test unless a call of Do was answered from the stored row, without running its handler. It takes
// what the call returned:
//
//	result, err := idempotency.Do(…)
//	gormtest.RequireReplayed(t, result, err)
func RequireReplayed(t testing.TB, result *idempotency.Result, err error) {
	t.Helper()
	switch {
	case err != nil:
		t.Fatalf("gormtest: the delivery should have been a replay, and failed: %v", err)
	case result == nil:
		t.Fatalf("gormtest: the delivery should have been a replay, and there is no result: give what the call returned")
	case !result.Replayed:
		t.Fatalf("gormtest: the delivery should have been a replay, and its handler ran: its key, source and id, is not that of the first delivery, " +
			"or the first one failed, or the key was deleted meanwhile")
	}
}

// AgeKeys makes every key older by age, as if that much time had passed since its claim, for tests of what happens after the
// retention. It returns how many keys there are. On a handle in a transaction it is part of that. An age of 0 or less fails
// the test.
func AgeKeys(t testing.TB, db *gorm.DB, age time.Duration) int64 {
	t.Helper()
	if age <= 0 {
		t.Fatalf("gormtest: AgeKeys by %v: time passes forwards", age)
	}
	ctx, cancel := context.WithTimeout(t.Context(), setupTimeout)
	defer cancel()
	earlier := func(column string) any { return gorm.Expr(column+" - make_interval(secs => ?)", age.Seconds()) }
	aged := db.Session(&gorm.Session{NewDB: true, Context: ctx, AllowGlobalUpdate: true}).
		Model(&idempotency.IdempotencyKey{}).
		UpdateColumns(map[string]any{"claimed_at": earlier("claimed_at"), "completed_at": earlier("completed_at")})
	if aged.Error != nil {
		t.Fatalf("gormtest: age the keys: %v", aged.Error)
	}
	return aged.RowsAffected
}
