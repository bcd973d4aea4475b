package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
	"gorm.io/gorm/utils/tests"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
)

// Case C21, and every other handle that no promise can be kept on: a clear error before any SQL, nothing written, and the
// handler does not run.
func TestUnusableHandlesAreRefusedBeforeAnySQL(t *testing.T) {
	t.Parallel()
	db, sent := openWired(t, setup{gorm: gorm.Config{SkipDefaultTransaction: true}})
	sticky := errors.New("from before")
	failed := db.Session(&gorm.Session{})
	_ = failed.AddError(sticky)
	plain, err := gorm.Open(postgres.New(postgres.Config{Conn: db.ConnPool}), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		t.Fatal(err)
	}
	another, err := gorm.Open(tests.DummyDialector{}, &gorm.Config{Logger: logger.Discard})
	if err != nil {
		t.Fatal(err)
	}
	noPool := db.Session(&gorm.Session{NewDB: true, Context: t.Context()})
	noPool.Statement.ConnPool = nil
	sent.take()
	for name, test := range map[string]struct {
		db   *gorm.DB
		want error
	}{
		"nil":                {nil, idempotency.ErrUnsupported},
		"zero":               {&gorm.DB{}, idempotency.ErrUnsupported},
		"zero configuration": {&gorm.DB{Config: &gorm.Config{}}, idempotency.ErrUnsupported},
		"not opened":         {&gorm.DB{Config: &gorm.Config{}, Statement: &gorm.Statement{}}, idempotency.ErrNotRegistered},
		"no plugin":          {plain, idempotency.ErrNotRegistered},
		"another dialect":    {another, idempotency.ErrNotRegistered},
		"with an error":      {failed, sticky},
		"dry run":            {db.Session(&gorm.Session{DryRun: true}), idempotency.ErrUnsupported},
		"no connection":      {noPool, idempotency.ErrUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			requireRefusedHandle(t, test.db, test.want)
			sent.requireSilent(t)
		})
	}
	db.ToSQL(func(tx *gorm.DB) *gorm.DB {
		requireRefusedHandle(t, tx, idempotency.ErrUnsupported)
		return tx
	})
	sent.requireSilent(t)
	requireNoKey(t, db, "s", "e")
	requireIdle(t, db)
	// And so are the same handles in a caller's transaction, which stays usable.
	err = db.Transaction(func(tx *gorm.DB) error {
		sent.take()
		requireRefusedHandle(t, tx.Session(&gorm.Session{DryRun: true}), idempotency.ErrUnsupported)
		broken := tx.Session(&gorm.Session{})
		_ = broken.AddError(sticky)
		requireRefusedHandle(t, broken, sticky)
		sent.requireSilent(t)
		return tx.Create(&order{Event: "afterwards"}).Error
	})
	if err != nil {
		t.Error(err)
	}
	requireEffects(t, db, "afterwards", 1)
}

// requireRefusedHandle fails unless every function that takes a handle returns want, and nothing beside it.
func requireRefusedHandle(t *testing.T, db *gorm.DB, want error) {
	t.Helper()
	result, err := idempotency.Do(db, "s", "e", nil, unreachable(t))
	wrapped, errOfWrapped := idempotency.Wrap(db).WithContext(t.Context()).Idempotent("s", "e", nil, unreachable(t))
	value, resultOfValue, errOfValue := idempotency.DoValue(db, "s", "e", nil, func(*gorm.DB) (int, error) {
		t.Error("the handler ran")
		return 1, nil
	})
	key, errOfLookup := idempotency.Lookup(t.Context(), db, "s", "e")
	if result != nil || wrapped != nil || resultOfValue != nil || value != 0 || key != nil {
		t.Error("a result beside the error")
	}
	for doing, err := range map[string]error{
		"Do": err, "Idempotent": errOfWrapped, "DoValue": errOfValue, "Lookup": errOfLookup,
		"Forget": idempotency.Forget(t.Context(), db, "s", "e"), "CheckSchema": idempotency.CheckSchema(t.Context(), db),
	} {
		if !errors.Is(err, want) {
			t.Errorf("%s gives %v, want %v", doing, err, want)
		}
		if err != nil && !strings.HasPrefix(err.Error(), "idempotency: ") {
			t.Errorf("%s gives %q, which does not say whose error it is", doing, err)
		}
		if errors.Is(want, idempotency.ErrUnsupported) {
			requireUnsupported(t, err)
		}
	}
}

// A nil handler is refused like a handle, and so is Respond on a handle that is none.
func TestNilHandlerIsRefusedBeforeAnySQL(t *testing.T) {
	t.Parallel()
	db, sent := openWired(t, setup{})
	err := db.Transaction(func(tx *gorm.DB) error {
		sent.take()
		for _, handle := range []*gorm.DB{db, tx} {
			_, err := idempotency.Do(handle, "s", "e", nil, nil)
			requireUnsupported(t, err)
			_, _, err = idempotency.DoValue[string](handle, "s", "e", nil, nil)
			requireUnsupported(t, err)
			_, err = idempotency.Wrap(handle).Idempotent("s", "e", nil, nil)
			requireUnsupported(t, err)
		}
		sent.requireSilent(t)
		return tx.Create(&order{Event: "afterwards"}).Error
	})
	if err != nil {
		t.Errorf("the caller's transaction is not usable: %v", err)
	}
	for _, handle := range []*gorm.DB{nil, {}, {Config: &gorm.Config{}}} {
		requireUnsupported(t, idempotency.Respond(handle, 200, nil))
		requireUnsupported(t, idempotency.RespondRaw(handle, 200, nil, nil))
		requireUnsupported(t, idempotency.AfterCommit(handle, func(context.Context) {}))
		if got := idempotency.Wrap(handle).WithContext(t.Context()).Unwrap(); got != handle {
			t.Errorf("a handle that is none became %v", got)
		}
	}
}

// Wrap is a handle with Do as a method, and gives back what it was given.
func TestWrap(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	keys := idempotency.Wrap(db)
	if keys.Unwrap() != db {
		t.Error("Unwrap gives another handle")
	}
	ctx := context.WithValue(t.Context(), marker{}, "mine")
	if got := keys.WithContext(ctx).Unwrap().Statement.Context; got != ctx {
		t.Error("WithContext does not")
	}
	for i := range 2 {
		result, err := keys.WithContext(ctx).Idempotent("s", "e", nil, func(tx *gorm.DB) error {
			if tx.Statement.Context.Value(marker{}) != "mine" {
				t.Error("the handler's context is not the call's")
			}
			return placeOrder("e")(tx)
		}, idempotency.WithWait(0))
		if err != nil || result.Replayed != (i == 1) {
			t.Errorf("got %+v, %v", result, err)
		}
	}
	requireEffects(t, db, "e", 1)
}

// Each typed error is its sentinel, and no other.
func TestTypedErrorsAreTheirSentinels(t *testing.T) {
	t.Parallel()
	sentinels := []error{idempotency.ErrDigestMismatch, idempotency.ErrInvalidKey, idempotency.ErrInvalidConfig, idempotency.ErrForeignWrite}
	for i, err := range []error{
		&idempotency.DigestMismatchError{}, &idempotency.InvalidKeyError{}, &idempotency.ConfigError{}, &idempotency.ForeignWriteError{},
	} {
		for j, sentinel := range sentinels {
			if errors.Is(fmt.Errorf("wrapped: %w", err), sentinel) != (i == j) {
				t.Errorf("%T is %v: %t", err, sentinel, i != j)
			}
		}
	}
	requireError(t, idempotency.ErrUnsupported, errors.ErrUnsupported)
}

const secret = "SECRET"

// leaky marshals to an error that quotes it.
type leaky struct{ Text string }

func (l leaky) MarshalJSON() ([]byte, error) { return nil, fmt.Errorf("cannot marshal %q", l.Text) }

func (l *leaky) UnmarshalJSON(text []byte) error { return fmt.Errorf("cannot unmarshal %s", text) }

// Case C18, for every failure there is: no error, no log line and no observation contains a payload or an answer.
func TestNothingSaysAPayloadOrAnAnswer(t *testing.T) {
	t.Parallel()
	log := &journal{}
	seen := &observations{}
	config := idempotency.Config{MaxResponseBytes: 1000, Observe: seen.add, Sources: map[string]idempotency.SourceConfig{"json": {Digest: idempotency.JSONDigest("/x")}}}
	dsn := gormtest.DSN(t)
	var said []string
	for mode, driver := range driverModes(dsn) {
		for _, translated := range []bool{false, true} {
			log := log
			db := open(t, setup{driver: driver, config: config, gorm: gorm.Config{Logger: log, TranslateError: translated}})
			event := 0
			fail := func(respond func(*gorm.DB) error) {
				event++
				id := fmt.Sprintf("%s %t %d", mode, translated, event)
				_, err := idempotency.Do(db, "s", id, []byte(secret), respond)
				said = append(said, fmt.Sprint(err), fmt.Sprintf("%v %+v %s %q", err, err, err, err))
				_ = db.Transaction(func(tx *gorm.DB) error {
					_, err := idempotency.Do(tx, "json", id, []byte(`{"`+secret+`":`), respond)
					said = append(said, fmt.Sprint(err))
					return nil
				})
			}
			value := func(returned any) {
				event++
				_, _, err := idempotency.DoValue(db, "s", fmt.Sprint(mode, translated, "value", event), []byte(secret), func(*gorm.DB) (any, error) { return returned, nil })
				said = append(said, fmt.Sprint(err))
			}
			for _, body := range []any{leaky{secret}, json.RawMessage(secret), []byte(secret), map[string]any{secret: func() {}}, []any{secret, make(chan int)}, json.Number(secret)} {
				fail(jsonAnswer(body))
				value(body)
			}
			fail(rawAnswer(200, map[string][]string{"A": {secret + "\n"}}, []byte(secret)))
			fail(rawAnswer(200, map[string][]string{secret + " ": {"v"}}, []byte(secret)))
			fail(rawAnswer(200, map[string][]string{"A": {secret + "\xff"}}, nil))
			fail(rawAnswer(999, nil, []byte(secret)))
			fail(rawAnswer(200, nil, []byte(strings.Repeat(secret, 1000))))
			fail(func(tx *gorm.DB) error { // an answer that fails in the database, and in each of its columns
				if err := idempotency.RespondRaw(tx, 200, map[string][]string{secret: {secret}}, []byte(`"`+secret+`"`)); err != nil {
					return err
				}
				return tx.Exec(`ALTER TABLE idempotency_keys ADD CONSTRAINT tiny CHECK (response_status IS NULL) NOT VALID`).Error
			})
			fail(func(tx *gorm.DB) error {
				if err := idempotency.RespondRaw(tx, 200, nil, []byte(secret)); err != nil {
					return err
				}
				return tx.Exec(`ALTER TABLE idempotency_keys RENAME COLUMN response_raw TO response_rare`).Error
			})
			fail(func(tx *gorm.DB) error {
				if err := idempotency.RespondRaw(tx, 200, nil, []byte(secret)); err != nil {
					return err
				}
				return tx.Exec(`ALTER TABLE idempotency_keys ALTER COLUMN response_raw TYPE int USING 1`).Error
			})
			fail(func(tx *gorm.DB) error { // swallowed: the completion meets an aborted transaction
				_ = idempotency.Respond(tx, 200, secret)
				tx.Exec("SELECT 1/0")
				return nil
			})
			id := fmt.Sprint(mode, translated, "stored")
			if _, err := idempotency.Do(db, "json", id, []byte(`{"`+secret+`":1}`), jsonAnswer(secret)); err != nil {
				t.Fatal(err)
			}
			_, err := idempotency.Do(db, "json", id, []byte(`{"`+secret+`":2}`), nothing)
			said = append(said, fmt.Sprint(err))
			_, _, err = idempotency.DoValue(db, "json", id, []byte(`{"`+secret+`":1}`), func(*gorm.DB) (int, error) { return 0, nil })
			said = append(said, fmt.Sprint(err))
			_, _, err = idempotency.DoValue(db, "json", id, []byte(`{"`+secret+`":1}`), func(*gorm.DB) (leaky, error) { return leaky{}, nil })
			said = append(said, fmt.Sprint(err))
			mustExec(t, db, `UPDATE idempotency_keys SET response_header = to_jsonb('`+"SEC'||'RET"+`'::text) WHERE event_id = ?`, id)
			_, err = idempotency.Do(db, "json", id, []byte(`{"`+secret+`":1}`), nothing)
			said = append(said, fmt.Sprint(err))
		}
	}
	if len(said) < 100 || slices.Contains(said, "<nil>") {
		t.Errorf("of %d errors, some did not happen: %q", len(said), said)
	}
	for _, observation := range seen.all {
		said = append(said, fmt.Sprintf("%+v", observation))
	}
	for _, line := range slices.Concat(said, log.of("info", "warn", "error", "trace")) {
		if strings.Contains(line, secret) || strings.Contains(line, fmt.Sprintf("%x", secret)) {
			t.Errorf("said: %.300s", line)
		}
	}
}
