// Package conformance is the behaviour that every driver, mode and setting has to show, written once and run over all of
// them: the root module runs it with pgx, and the module internal/compat with what only compatibility needs.
package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
)

// Cell is a way of running GORM on PostgreSQL.
type Cell struct {
	// Open gives a handle on a migrated database of the test's own, with the plugin registered.
	Open func(t *testing.T) *gorm.DB

	// State extracts the driver's own SQLSTATE by errors.As on the driver's own type, to show that the original error
	// is reachable.
	State func(error) string
}

// effect is what the handlers write. Nothing but the library keeps it from happening twice.
type effect struct {
	ID    uint `gorm:"primaryKey"`
	Event string
	Ref   *uint // a deferred foreign key to another effect
}

// Run runs every case in a cell.
func Run(t *testing.T, cell Cell) {
	t.Helper()
	for _, c := range []struct {
		name string
		run  func(*testing.T, Cell, *gorm.DB)
	}{
		{"a duplicate gets the first answer and no second effect", duplicate},
		{"another payload is refused", mismatch},
		{"a failed delivery leaves the key free", failure},
		{"a joined call is provisional and leaves the caller's transaction usable", joined},
		{"answers are replayed byte for byte", answers},
		{"digests compare byte for byte", digests},
		{"of two released together one runs and the other is replayed", race},
		{"a duplicate that does not wait is told in flight", inFlight},
		{"the driver's SQLSTATE is reachable from a handler's error", states},
		{"an error that the handler swallows fails the delivery", swallowed},
		{"a commit that fails is an error and leaves no key", deferredViolation},
		{"a poisoned transaction is an error and not a panic", poisoned},
		{"an ended context is an error and not a panic", cancelled},
		{"a missing table is ErrSchema and not a panic", missingTable},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := cell.Open(t)
			create := `CREATE TABLE effects (id bigserial PRIMARY KEY, event text NOT NULL,
				ref bigint REFERENCES effects DEFERRABLE INITIALLY DEFERRED)`
			if err := db.Exec(create).Error; err != nil {
				t.Fatal(err)
			}
			c.run(t, cell, db)
			requireIdle(t, db)
		})
	}
}

func write(tx *gorm.DB, event string) error { return tx.Create(&effect{Event: event}).Error }

func requireEffects(t *testing.T, db *gorm.DB, event string, want int64) {
	t.Helper()
	var count int64
	if err := db.Model(&effect{}).Where("event = ?", event).Count(&count).Error; err != nil {
		t.Fatal(err)
	}
	if count != want {
		t.Errorf("%s took effect %d times, want %d", event, count, want)
	}
}

func requireKey(t *testing.T, db *gorm.DB, event string, want bool) {
	t.Helper()
	_, err := idempotency.Lookup(context.Background(), db, "s", event)
	if want && err != nil || !want && !errors.Is(err, idempotency.ErrKeyNotFound) {
		t.Errorf("key %s: error %v, and it should be there: %t", event, err, want)
	}
}

// requireIdle fails unless the pool's connections have come back. database/sql returns a cancelled transaction's in a
// goroutine of its own, which closing the pool would not wait for: so this asks for one that only then is free.
func requireIdle(t *testing.T, db *gorm.DB) {
	t.Helper()
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	pool.SetMaxOpenConns(1)
	if err := pool.PingContext(t.Context()); err != nil {
		t.Errorf("the pool has no connection left: %v", err)
	}
	if used := pool.Stats().InUse; used > 0 {
		t.Errorf("%d connections were not given back", used)
	}
}

func duplicate(t *testing.T, _ Cell, db *gorm.DB) {
	var first *idempotency.Result
	for delivery := range 3 {
		result, err := idempotency.Do(db, "s", "e", []byte("body"), func(tx *gorm.DB) error {
			if err := write(tx, "e"); err != nil {
				return err
			}
			return idempotency.Respond(tx, http.StatusCreated, map[string]int{"delivery": delivery})
		})
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = result
		}
		if result.Replayed != (delivery > 0) || result.Provisional {
			t.Errorf("delivery %d: %+v", delivery, result)
		}
		requireSameAnswer(t, first, result)
	}
	requireEffects(t, db, "e", 1)
}

func requireSameAnswer(t *testing.T, first, later *idempotency.Result) {
	t.Helper()
	same := first.Status == later.Status && bytes.Equal(first.Body, later.Body) && (first.Body == nil) == (later.Body == nil) &&
		maps.EqualFunc(first.Header, later.Header, slices.Equal) && first.ClaimedAt.Equal(later.ClaimedAt)
	if !same {
		t.Errorf("the answers differ: %+v and then %+v", first, later)
	}
}

func mismatch(t *testing.T, _ Cell, db *gorm.DB) {
	handler := func(tx *gorm.DB) error { return write(tx, "e") }
	if _, err := idempotency.Do(db, "s", "e", []byte("body"), handler); err != nil {
		t.Fatal(err)
	}
	result, err := idempotency.Do(db, "s", "e", []byte("other"), handler)
	var mismatch *idempotency.DigestMismatchError
	if result != nil || !errors.As(err, &mismatch) || !errors.Is(err, idempotency.ErrDigestMismatch) {
		t.Errorf("got %+v, %v; want a DigestMismatchError", result, err)
	}
	requireEffects(t, db, "e", 1)
}

func failure(t *testing.T, _ Cell, db *gorm.DB) {
	failed := errors.New("the handler's own")
	_, err := idempotency.Do(db, "s", "e", nil, func(tx *gorm.DB) error {
		return errors.Join(write(tx, "e"), failed)
	})
	if !errors.Is(err, failed) {
		t.Fatalf("error %v, want the handler's", err)
	}
	requireKey(t, db, "e", false)
	requireEffects(t, db, "e", 0)
	result, err := idempotency.Do(db, "s", "e", nil, func(tx *gorm.DB) error { return write(tx, "e") })
	if err != nil || result.Replayed {
		t.Fatalf("the next delivery: %+v, %v", result, err)
	}
	requireEffects(t, db, "e", 1)
}

func joined(t *testing.T, _ Cell, db *gorm.DB) {
	handler := func(tx *gorm.DB) error { return write(tx, "e") }
	err := db.Transaction(func(tx *gorm.DB) error {
		result, err := idempotency.Do(tx, "s", "e", nil, handler)
		if err != nil || !result.Provisional || result.Replayed {
			t.Errorf("joined: %+v, %v", result, err)
		}
		_, err = idempotency.Do(tx, "s", "e", []byte("other"), handler)
		if !errors.Is(err, idempotency.ErrDigestMismatch) {
			t.Errorf("joined with another payload: %v", err)
		}
		_, err = idempotency.Do(tx, "s", "broken", nil, func(tx *gorm.DB) error {
			return errors.Join(write(tx, "broken"), tx.Exec("SELECT 1/0").Error)
		})
		if err == nil {
			t.Error("a broken handler's call returned nil")
		}
		result, err = idempotency.Do(tx, "s", "e", nil, handler)
		if err != nil || !result.Replayed {
			t.Errorf("joined again: %+v, %v", result, err)
		}
		return write(tx, "caller")
	})
	if err != nil {
		t.Fatalf("the caller's transaction: %v", err)
	}
	requireEffects(t, db, "e", 1)
	requireEffects(t, db, "caller", 1)
	requireEffects(t, db, "broken", 0)
	requireKey(t, db, "broken", false)
}

func answers(t *testing.T, _ Cell, db *gorm.DB) {
	raw := func(header map[string][]string, body []byte) func(*gorm.DB) error {
		return func(tx *gorm.DB) error { return idempotency.RespondRaw(tx, http.StatusOK, header, body) }
	}
	text := func(text string) func(*gorm.DB) error {
		return func(tx *gorm.DB) error { return idempotency.Respond(tx, http.StatusOK, json.RawMessage(text)) }
	}
	for name, respond := range map[string]func(*gorm.DB) error{
		"none":            func(*gorm.DB) error { return nil },
		"nil":             func(tx *gorm.DB) error { return idempotency.Respond(tx, http.StatusNoContent, nil) },
		"null":            text(`null`),
		"empty string":    text(`""`),
		"zero":            text(`0`),
		"object":          text(`{}`),
		"array":           text(`[]`),
		"names":           text(`{"b" : 1, "a":2, "b":3}`),
		"numbers":         text(`[1.0, 1e2, 9007199254740993, 1e400000, 0.10]`),
		"NUL":             text(`"\u0000"`),
		"escaped literal": text(`"\\u0000"`),
		"half a pair":     text(`"\ud800"`),
		"deep":            text(strings.Repeat("[", 5000) + strings.Repeat("]", 5000)),
		"not UTF-8":       text("\"\xff\""),
		"no bytes":        raw(nil, []byte{}),
		"bytes":           raw(nil, []byte{0, 0x5c, 0xff, '\'', '"'}),
		"JSON by hand":    raw(map[string][]string{"Content-Type": {"application/problem+json"}}, []byte(`{"a": 1}`)),
		"headers":         raw(map[string][]string{"Location": {"/o/1"}, "Set-Cookie": {"a=\"1\"", "b=ü"}, "X": {}}, nil),
	} {
		var first *idempotency.Result
		for range 3 {
			result, err := idempotency.Do(db, "s", name, nil, respond)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				break
			}
			if first == nil {
				first = result
				continue
			}
			if !result.Replayed {
				t.Errorf("%s: not replayed", name)
			}
			requireSameAnswer(t, first, result)
		}
	}
}

func digests(t *testing.T, _ Cell, db *gorm.DB) {
	handler := func(*gorm.DB) error { return nil }
	for n, body := range [][]byte{nil, {}, {0}, {0x5c}, []byte(`\x00`), []byte(strings.Repeat("\x00\x5c'", 99))} {
		id := fmt.Sprint(n)
		for delivery := range 2 {
			result, err := idempotency.Do(db, "s", id, body, handler)
			if err != nil || result.Replayed != (delivery > 0) {
				t.Errorf("payload %q, delivery %d: %+v, %v", body, delivery, result, err)
			}
		}
		key, err := idempotency.Lookup(t.Context(), db, "s", id)
		if sum := idempotency.SHA256().Sum(body); err != nil || !bytes.Equal(key.PayloadDigest, sum[:]) {
			t.Errorf("payload %q: stored digest %v, %v", body, key, err)
		}
	}
}

func race(t *testing.T, _ Cell, db *gorm.DB) {
	const rounds, deliveries = 30, 4
	for round := range rounds {
		event := fmt.Sprint(round)
		var runs, replays atomic.Int32
		var together sync.WaitGroup
		start := make(chan struct{})
		for range deliveries {
			together.Go(func() {
				<-start
				result, err := idempotency.Do(db, "s", event, nil, func(tx *gorm.DB) error {
					runs.Add(1)
					return write(tx, event)
				})
				if err != nil {
					t.Errorf("round %d: %v", round, err)
				} else if result.Replayed {
					replays.Add(1)
				}
			})
		}
		close(start)
		together.Wait()
		if runs.Load() != 1 || replays.Load() != deliveries-1 {
			t.Errorf("round %d: %d runs and %d replays", round, runs.Load(), replays.Load())
		}
		requireEffects(t, db, event, 1)
	}
}

func inFlight(t *testing.T, _ Cell, db *gorm.DB) {
	result, err := idempotency.Do(db, "s", "e", nil, func(tx *gorm.DB) error {
		// Another process's delivery: its handle has another pool, and a context from elsewhere.
		_, err := idempotency.Do(db.WithContext(context.Background()), "s", "e", nil,
			func(*gorm.DB) error { return errors.New("a second run") }, idempotency.WithWait(0))
		if !errors.Is(err, idempotency.ErrInFlight) {
			t.Errorf("the duplicate: %v, want ErrInFlight", err)
		}
		return write(tx, "e")
	})
	if err != nil || result.Replayed {
		t.Fatalf("%+v, %v", result, err)
	}
	requireEffects(t, db, "e", 1)
}

func states(t *testing.T, cell Cell, db *gorm.DB) {
	for _, state := range []string{"23505", "40001", "40P01", "55P03", "57014"} {
		_, err := idempotency.Do(db, "s", state, nil, func(tx *gorm.DB) error {
			return tx.Exec(`DO $$ BEGIN RAISE EXCEPTION 'on purpose' USING ERRCODE = '` + state + `'; END $$`).Error
		})
		// GORM's TranslateError leaves nothing of the driver's error, with some drivers. That is not ours to mend.
		translated := state == "23505" && errors.Is(err, gorm.ErrDuplicatedKey)
		if got := cell.State(err); got != state && !translated {
			t.Errorf("SQLSTATE %q of %v, want %s", got, err, state)
		}
		if !idempotency.Retryable(err) {
			t.Errorf("%s is not retryable", state)
		}
		for _, wrong := range []error{idempotency.ErrInFlight, idempotency.ErrDigestMismatch, idempotency.ErrSchema, idempotency.ErrOutcomeUnknown} {
			if errors.Is(err, wrong) {
				t.Errorf("%s reads as %v", state, wrong)
			}
		}
		requireKey(t, db, state, false)
	}
}

func swallowed(t *testing.T, _ Cell, db *gorm.DB) {
	for name, respond := range map[string]func(*gorm.DB) error{
		"no answer": func(*gorm.DB) error { return nil },
		"answer":    func(tx *gorm.DB) error { return idempotency.Respond(tx, http.StatusOK, 1) },
	} {
		result, err := idempotency.Do(db, "s", name, nil, func(tx *gorm.DB) error {
			if err := write(tx, name); err != nil {
				return err
			}
			_ = tx.Exec("SELECT 1/0").Error
			return respond(tx)
		})
		if err == nil || result != nil || errors.Is(err, idempotency.ErrOutcomeUnknown) {
			t.Errorf("%s: %+v, %v; want an error that is certain", name, result, err)
		}
		requireKey(t, db, name, false)
		requireEffects(t, db, name, 0)
	}
}

func deferredViolation(t *testing.T, cell Cell, db *gorm.DB) {
	nowhere := uint(1 << 30)
	result, err := idempotency.Do(db, "s", "e", nil, func(tx *gorm.DB) error {
		return tx.Create(&effect{Event: "e", Ref: &nowhere}).Error
	})
	if result != nil || cell.State(err) != "23503" || errors.Is(err, idempotency.ErrOutcomeUnknown) {
		t.Errorf("got %+v, %v; want the commit's 23503", result, err)
	}
	requireKey(t, db, "e", false)
	requireEffects(t, db, "e", 0)
}

func poisoned(t *testing.T, cell Cell, db *gorm.DB) {
	err := db.Transaction(func(tx *gorm.DB) error {
		_ = tx.Exec("SELECT 1/0").Error
		result, err := idempotency.Do(tx, "s", "e", nil, func(*gorm.DB) error {
			t.Error("the handler ran in an aborted transaction")
			return nil
		})
		if result != nil || cell.State(err) != "25P02" {
			t.Errorf("joined: %+v, %v; want 25P02", result, err)
		}
		return err
	})
	if err == nil {
		t.Error("the aborted transaction committed")
	}
}

func cancelled(t *testing.T, _ Cell, db *gorm.DB) {
	ctx, cancel := context.WithCancel(t.Context())
	_, err := idempotency.Do(db.WithContext(ctx), "s", "during", nil, func(tx *gorm.DB) error {
		cancel()
		return tx.Exec("SELECT 1").Error
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("during: %v, want context.Canceled", err)
	}
	_, err = idempotency.Do(db.WithContext(ctx), "s", "before", nil, func(*gorm.DB) error {
		t.Error("the handler ran although the context had ended")
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("before: %v, want context.Canceled", err)
	}
	requireKey(t, db, "during", false)
	requireKey(t, db, "before", false)
}

func missingTable(t *testing.T, cell Cell, db *gorm.DB) {
	if err := db.Exec("DROP TABLE idempotency_keys").Error; err != nil {
		t.Fatal(err)
	}
	for name, do := range map[string]func() error{
		"a claim": func() error {
			_, err := idempotency.Do(db, "s", "e", nil, func(*gorm.DB) error { return nil })
			return err
		},
		"a lookup": func() error {
			_, err := idempotency.Lookup(t.Context(), db, "s", "e")
			return err
		},
	} {
		if err := do(); !errors.Is(err, idempotency.ErrSchema) || cell.State(err) != "42P01" {
			t.Errorf("%s without a table: %v, want ErrSchema", name, err)
		}
	}
}
