package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
)

// Lookup gives the row of a key, committed or in the handle's own transaction, and nobody else's.
func TestLookupGivesTheRow(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	result, err := idempotency.Do(db, "s", "raw", []byte("x"), rawAnswer(418, map[string][]string{"A": {"b"}}, []byte(`{"b": 1,"a":2}`)))
	if err != nil {
		t.Fatal(err)
	}
	key, err := idempotency.Lookup(t.Context(), db, "s", "raw")
	if err != nil {
		t.Fatal(err)
	}
	if key.Source != "s" || key.EventID != "raw" || *key.ResponseStatus != 418 || string(key.ResponseHeader) != `{"A": ["b"]}` ||
		string(key.ResponseBody) != `{"a": 2, "b": 1}` || string(key.ResponseRaw) != `{"b": 1,"a":2}` || len(key.PayloadDigest) != 32 ||
		!key.ClaimedAt.Equal(result.ClaimedAt) || !key.CompletedAt.Equal(result.ClaimedAt) {
		t.Errorf("got %+v", key)
	}
	if _, err := idempotency.Do(db, "s", "none", nil, nothing); err != nil {
		t.Fatal(err)
	}
	key, err = idempotency.Lookup(t.Context(), db, "s", "none")
	if err != nil || key.ResponseStatus != nil || key.ResponseHeader != nil || key.ResponseBody != nil || key.ResponseRaw != nil || key.CompletedAt == nil {
		t.Errorf("got %+v, %v; want a row without an answer", key, err)
	}
	_, err = idempotency.Do(db, "s", "claiming", nil, func(tx *gorm.DB) error {
		requireNoKey(t, db, "s", "claiming")
		_, err := idempotency.Lookup(t.Context(), tx, "s", "claiming")
		return err
	})
	if err != nil {
		t.Errorf("a handler does not see its own claim: %v", err)
	}
	requireNoKey(t, db, "s", "missing")
	requireNoKey(t, db, "S", "raw")
}

// Forget lets the next delivery take effect again, in the handle's transaction if it is in one.
func TestForgetLetsTheEventTakeEffectAgain(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	ctx := t.Context()
	for range 2 {
		if _, err := idempotency.Do(db, "s", "e", nil, placeOrder("e")); err != nil {
			t.Fatal(err)
		}
		if err := idempotency.Forget(ctx, db, "s", "e"); err != nil {
			t.Fatal(err)
		}
		requireNoKey(t, db, "s", "e")
	}
	requireEffects(t, db, "e", 2)
	requireError(t, idempotency.Forget(ctx, db, "s", "e"), idempotency.ErrKeyNotFound)

	if _, err := idempotency.Do(db, "s", "e", nil, placeOrder("e")); err != nil {
		t.Fatal(err)
	}
	failure := errors.New("undone")
	err := db.Transaction(func(tx *gorm.DB) error { return errors.Join(idempotency.Forget(ctx, tx, "s", "e"), failure) })
	requireError(t, err, failure)
	if _, err := idempotency.Lookup(ctx, db, "s", "e"); err != nil {
		t.Errorf("the key is gone though the transaction was rolled back: %v", err)
	}
	// A handler may forget another event, but not the one that it is working on, by whatever handle.
	_, err = idempotency.Do(db, "s", "f", nil, func(tx *gorm.DB) error {
		inside := tx.Statement.Context
		requireError(t, idempotency.Forget(ctx, tx, "s", "f"), idempotency.ErrReentrant)
		requireError(t, idempotency.Forget(inside, db, "s", "f"), idempotency.ErrReentrant)
		requireError(t, idempotency.Forget(inside, db, "s", "e"), idempotency.ErrForeignWrite)
		_, err := idempotency.Do(tx, "s", "g", nil, func(tx *gorm.DB) error {
			requireError(t, idempotency.Forget(ctx, tx, "s", "f"), idempotency.ErrReentrant)
			return nil
		})
		return errors.Join(err, idempotency.Forget(ctx, tx, "s", "e"))
	})
	if err != nil {
		t.Error(err)
	}
	requireNoKey(t, db, "s", "e")
}

// A context that has ended is the error of everything that takes one.
func TestEndedContextIsTheError(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := idempotency.Lookup(ctx, db, "s", "e")
	for _, err := range []error{err, idempotency.Forget(ctx, db, "s", "e"), idempotency.CheckSchema(ctx, db)} {
		requireError(t, err, context.Canceled)
		if errors.Is(err, idempotency.ErrKeyNotFound) || errors.Is(err, idempotency.ErrSchema) {
			t.Errorf("%v claims to know", err)
		}
	}
	requireIdle(t, db)
}

// A table that is missing or unusable is ErrSchema, by the probe and by every call, and says what to run. A caller's
// transaction stays usable.
func TestWrongTablesAreErrSchema(t *testing.T) {
	t.Parallel()
	const create = `CREATE TABLE idempotency_keys (LIKE old INCLUDING ALL EXCLUDING INDEXES)`
	for name, test := range map[string]struct {
		change string
		says   string // what CheckSchema says
		claims bool   // claims work nonetheless, and so are CheckSchema's alone to refuse
	}{
		"missing":            {change: `SELECT 1`, says: "migrations.Up"},
		"no unique key":      {change: create, says: "ADD PRIMARY KEY (source, event_id)"},
		"partial unique key": {change: create + `; CREATE UNIQUE INDEX k ON idempotency_keys (source, event_id) WHERE claimed_at > '2020-01-01'`, says: "partial"},
		"deferrable key":     {change: create + `; ALTER TABLE idempotency_keys ADD PRIMARY KEY (source, event_id) DEFERRABLE`, says: "deferrable"},
		"widened key":        {change: create + `; ALTER TABLE idempotency_keys ADD PRIMARY KEY (source, event_id, claimed_at)`, says: "claimed_at"},
		"missing column":     {change: create + `; ALTER TABLE idempotency_keys ADD PRIMARY KEY (source, event_id), DROP COLUMN response_raw`, says: "response_raw", claims: true},
		"no claim's column":  {change: create + `; ALTER TABLE idempotency_keys ADD PRIMARY KEY (source, event_id), DROP COLUMN completed_at`, says: "completed_at"},
		"a view":             {change: `CREATE VIEW idempotency_keys AS SELECT * FROM old`, says: "a view", claims: true},
		"row-level security": {change: create + `; ALTER TABLE idempotency_keys ADD PRIMARY KEY (source, event_id), ENABLE ROW LEVEL SECURITY`, says: "ROW LEVEL SECURITY", claims: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t, setup{})
			mustExec(t, db, `ALTER TABLE idempotency_keys RENAME TO old`)
			mustExec(t, db, test.change)
			err := idempotency.CheckSchema(t.Context(), db)
			requireError(t, err, idempotency.ErrSchema)
			if !strings.Contains(err.Error(), test.says) || !strings.HasPrefix(err.Error(), "idempotency: ") {
				t.Errorf("%q does not say %q", err, test.says)
			}
			if !idempotency.Retryable(err) {
				t.Error("a migration mends it, so a redelivery has a chance")
			}
			if test.claims {
				return
			}
			run := func(handle *gorm.DB) error {
				result, err := idempotency.Do(handle, "s", "e", nil, unreachable(t))
				if result != nil {
					t.Errorf("got %+v beside the error", result)
				}
				return err
			}
			err = db.Transaction(func(tx *gorm.DB) error {
				requireSchemaError(t, run(tx))
				return tx.Create(&order{Event: "afterwards"}).Error
			})
			if err != nil {
				t.Errorf("the caller's transaction is not usable: %v", err)
			}
			requireSchemaError(t, run(db))
			requireEffects(t, db, "afterwards", 1)
			requireIdle(t, db)
		})
	}
}

func requireSchemaError(t *testing.T, err error) {
	t.Helper()
	requireError(t, err, idempotency.ErrSchema)
	for _, word := range []string{"run the migrations", "CheckSchema", "SQLSTATE"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not say %s", err, word)
		}
	}
}

// A table that only Lookup and Forget miss is ErrSchema for them too.
func TestKeysWithoutATableAreErrSchema(t *testing.T) {
	t.Parallel()
	db := open(t, setup{config: idempotency.Config{Table: "nowhere.keys"}})
	_, err := idempotency.Lookup(t.Context(), db, "s", "e")
	for _, err := range []error{err, idempotency.Forget(t.Context(), db, "s", "e"), idempotency.CheckSchema(t.Context(), db)} {
		requireError(t, err, idempotency.ErrSchema)
		if !strings.Contains(err.Error(), "nowhere") {
			t.Errorf("%q does not name the table", err)
		}
	}
}

// CheckSchema passes what the migrations make, on every kind of handle.
func TestCheckSchemaPassesTheMigrations(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	for name, driver := range driverModes(dsn) {
		db := open(t, setup{driver: driver, gorm: gorm.Config{PrepareStmt: name == "default"}})
		err := db.Transaction(func(tx *gorm.DB) error {
			return errors.Join(idempotency.CheckSchema(t.Context(), tx), idempotency.CheckSchema(t.Context(), db))
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Retryable tells a consumer what may go better next time.
func TestRetryable(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]bool{
		nil:                                false,
		errors.New("the handler's"):        true,
		context.Canceled:                   true,
		context.DeadlineExceeded:           true,
		idempotency.ErrInFlight:            true,
		idempotency.ErrOutcomeUnknown:      true,
		idempotency.ErrSchema:              true,
		idempotency.ErrDigestMismatch:      false,
		&idempotency.DigestMismatchError{}: false,
		&idempotency.InvalidKeyError{}:     false,
		&idempotency.ConfigError{}:         true,
		&idempotency.ForeignWriteError{}:   true,
		idempotency.ErrInvalidKey:          false,
		idempotency.ErrInvalidConfig:       true,
		idempotency.ErrInvalidResponse:     false,
		idempotency.ErrResponseTooLarge:    false,
		idempotency.ErrAlreadyResponded:    true,
		idempotency.ErrForeignWrite:        true,
		idempotency.ErrReentrant:           true,
		idempotency.ErrNoScope:             true,
		idempotency.ErrNotRegistered:       true,
		idempotency.ErrUnsupported:         true,
	} {
		if idempotency.Retryable(err) != want {
			t.Errorf("Retryable(%v) is %t", err, !want)
		}
		if err != nil && idempotency.Retryable(fmt.Errorf("wrapped: %w", err)) != want {
			t.Errorf("Retryable of a wrapped %v is %t", err, !want)
		}
	}
}
