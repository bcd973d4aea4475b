package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
)

// Case C1: under GORM's statement cache a statement that cannot be prepared is an error and no panic: in an aborted
// transaction, with an ended context, and without the table.
func TestStatementThatCannotBePreparedIsAnError(t *testing.T) {
	t.Parallel()
	db := open(t, setup{gorm: gorm.Config{PrepareStmt: true}})
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	do := func(db *gorm.DB) error {
		_, err := idempotency.Do(db, "s", "evt", nil, unwanted(t))
		return err
	}
	lookUp := func(db *gorm.DB) error {
		_, err := idempotency.Lookup(db.Statement.Context, db, "s", "evt")
		return err
	}
	for name, call := range map[string]func(*gorm.DB) error{"claim": do, "lookup": lookUp} {
		t.Run(name, func(t *testing.T) {
			tx := db.Begin()
			_ = tx.Exec("SELECT 1/0").Error
			requireState(t, call(tx), "25P02")
			tx.Rollback()

			requireError(t, call(db.WithContext(canceled)), context.Canceled)
			tx = db.Begin()
			requireError(t, call(tx.WithContext(canceled)), context.Canceled)
			tx.Rollback()
			requireIdle(t, db)
		})
	}
	mustExec(t, db, "DROP TABLE idempotency_keys")
	for _, call := range []func(*gorm.DB) error{do, lookUp} {
		err := call(db)
		requireError(t, err, idempotency.ErrSchema)
		requireState(t, err, "42P01")
	}
	err := db.Transaction(func(tx *gorm.DB) error {
		requireError(t, do(tx), idempotency.ErrSchema)
		return placeOrderWithoutAnswer(tx, "caller")
	})
	requireError(t, err, nil)
	requireEffects(t, db, "caller", 1)
	requireIdle(t, db)
}

// Case C5: a handle that carries an error keeps it, and takes no connection.
func TestHandleThatCarriesAnErrorTakesNoConnection(t *testing.T) {
	t.Parallel()
	db := open(t, setup{conns: 5})
	stale := db.Exec("SELECT nonsense")
	for range 50 {
		_, err := idempotency.Do(stale, "s", "evt", nil, unwanted(t))
		requireState(t, err, "42703")
		_, err = idempotency.Lookup(t.Context(), stale, "s", "evt")
		requireState(t, err, "42703")
	}
	requireIdle(t, db)
	execute(t, db, "evt")
}

// Case C8: whatever conditions, models or scopes the caller's handle carries, our statements are the same and the
// handler's handle is clean.
func TestHandleWithLeftoversIsClean(t *testing.T) {
	t.Parallel()
	db, w := openWired(t, setup{})
	mustExec(t, db, "INSERT INTO orders (id, event) VALUES (1001, 'before')")
	chained := db.Where("id = ?", 7)
	for name, handle := range map[string]*gorm.DB{
		"Where":                 db.Where("event = ?", "nothing"),
		"Model":                 db.Model(&idempotency.IdempotencyKey{}).Where("1 = 0"),
		"Table":                 db.Table("nonsense"),
		"Scopes":                db.Scopes(func(db *gorm.DB) *gorm.DB { return db.Where("1 = 0") }),
		"Unscoped":              db.Unscoped().Limit(0),
		"Select and Omit":       db.Select("id").Omit("event"),
		"Session":               db.Session(&gorm.Session{SkipHooks: true, QueryFields: true, AllowGlobalUpdate: true}),
		"Set":                   db.Set("gorm:query_option", "nonsense"),
		"one handle":            chained,
		"the same handle again": chained,
		"Debug":                 db.Where("1 = 0").Debug(),
	} {
		var before []order
		w.take()
		result, err := idempotency.Do(handle, "s", name, nil, func(tx *gorm.DB) error {
			if err := tx.Where("id = 1001").Find(&before).Error; err != nil {
				return err
			}
			return placeOrder(name)(tx)
		})
		if err != nil || result.Replayed {
			t.Errorf("%s: %+v, %v", name, result, err)
		}
		if len(before) != 1 || before[0].Event != "before" {
			t.Errorf("%s: the handler reads %v", name, before)
		}
		if steps := w.steps(); len(steps) != 6 || !slices.Equal(steps[3:], []string{"order", "complete", "commit"}) {
			t.Errorf("%s: statements %q", name, steps)
		}
		requireEffects(t, db, name, 1)
		result, err = idempotency.Do(handle, "s", name, nil, unwanted(t))
		if err != nil || !result.Replayed {
			t.Errorf("%s, again: %+v, %v", name, result, err)
		}
	}
	requireIdle(t, db)
}

// Case C8: a handle that carries leftovers is still in its transaction.
func TestHandleWithLeftoversStaysInItsTransaction(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	errCaller := errors.New("caller")
	err := db.Transaction(func(tx *gorm.DB) error {
		for i, handle := range []*gorm.DB{tx.Where("1 = 0"), tx.Session(&gorm.Session{NewDB: true}), tx.Session(&gorm.Session{PrepareStmt: true})} {
			if result := execute(t, handle, fmt.Sprintf("evt%d", i)); !result.Provisional {
				t.Errorf("handle %d has left the transaction", i)
			}
		}
		return errCaller
	})
	requireError(t, err, errCaller)
	if n := read[int](t, db, "SELECT (SELECT count(*) FROM orders) + (SELECT count(*) FROM idempotency_keys)"); n != 0 {
		t.Errorf("%d rows outlived the caller's rollback", n)
	}
}

// Case C21: in dry-run mode nothing can be decided: it is refused, and the handler does not run.
func TestDryRunIsRefused(t *testing.T) {
	t.Parallel()
	db, w := openWired(t, setup{})
	dry := db.Session(&gorm.Session{DryRun: true})
	requireRefused := func(db *gorm.DB) {
		t.Helper()
		_, err := idempotency.Do(db, "s", "evt", nil, unwanted(t))
		requireError(t, err, idempotency.ErrUnsupported)
		requireError(t, err, errors.ErrUnsupported)
		_, _, err = idempotency.DoValue(db, "s", "evt", nil, func(tx *gorm.DB) (int, error) { return 0, unwanted(t)(tx) })
		requireError(t, err, idempotency.ErrUnsupported)
		_, err = idempotency.Lookup(t.Context(), db, "s", "evt")
		requireError(t, err, idempotency.ErrUnsupported)
		requireError(t, idempotency.Forget(t.Context(), db, "s", "evt"), idempotency.ErrUnsupported)
	}
	requireRefused(dry)
	_ = db.ToSQL(func(tx *gorm.DB) *gorm.DB {
		requireRefused(tx)
		return tx
	})
	w.requireSilent(t)
}
