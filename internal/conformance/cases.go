package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
)

// testCase is a behaviour.
type testCase struct {
	name string
	run  func(*scene)
	in   func(*suite) bool
}

// Where a case makes sense.
func everywhere(*suite) bool   { return true }
func standalone(s *suite) bool { return !s.Handle.Joined }
func onPool(s *suite) bool     { return s.Handle.Name == Pool.Name }

// With DisableNestedTransaction a caller inside a transaction cannot undo a part of it.
func whereNested(s *suite) bool { return !s.Gorm.DisableNestedTransaction || !s.Handle.Joined }

var cases = []testCase{
	{"a duplicate gets the first answer and no second effect", duplicate, everywhere},
	{"another payload is refused", mismatch, everywhere},
	{"a failed delivery leaves the key free", failure, everywhere},
	{"a joined call is provisional and leaves the caller's transaction usable", joined, everywhere},
	{"a caller who rolls back takes the effect and the key along", rolledBack, whereNested},
	{"answers are replayed byte for byte", answers, everywhere},
	{"values are replayed", values, everywhere},
	{"digests compare byte for byte", digests, everywhere},
	{"of two released together one runs and the others are replayed", race, onPool},
	{"a duplicate that does not wait is told in flight", inFlight, everywhere},
	{"a forgotten key runs again", forgotten, everywhere},
	{"whatever way a handler writes is in its transaction", ways, everywhere},
	{"the driver's SQLSTATE is reachable from a handler's error", states, everywhere},
	{"an error that the handler swallows fails the delivery", swallowed, everywhere},
	{"a commit that fails is an error and leaves no key", deferredViolation, standalone},
	{"a poisoned transaction is an error and not a panic", poisoned, standalone},
	{"an ended context is an error and not a panic", cancelled, standalone},
	{"a missing table is ErrSchema and not a panic", missingTable, onPool},
	{"migrating the model changes nothing", autoMigrate, onPool},
}

func duplicate(s *scene) {
	var first *idempotency.Result
	for delivery := range 3 {
		result, err := s.do("e", []byte("body"), func(tx *gorm.DB) error {
			if err := s.write(tx, "e"); err != nil {
				return err
			}
			return idempotency.Respond(tx, http.StatusCreated, map[string]int{"delivery": delivery})
		})
		if err != nil {
			s.Fatal(err)
		}
		if first == nil {
			first = result
		}
		if result.Replayed != (delivery > 0) || result.Provisional != s.Handle.Joined {
			s.Errorf("delivery %d: %+v", delivery, result)
		}
		s.requireSameAnswer(first, result)
	}
	s.requireEffects("e", 1)
	s.requireKey("e", true)
}

func mismatch(s *scene) {
	s.requireExecuted("e", []byte("body"), s.writing)
	result, err := s.do("e", []byte("other"), unwanted(s))
	var mismatch *idempotency.DigestMismatchError
	if result != nil || !errors.As(err, &mismatch) || !errors.Is(err, idempotency.ErrDigestMismatch) {
		s.Errorf("got %+v, %v; want a DigestMismatchError", result, err)
	}
	s.requireEffects("e", 1)
}

func failure(s *scene) {
	failed := errors.New("the handler's own")
	_, err := s.do("e", nil, func(tx *gorm.DB) error { return errors.Join(s.write(tx, "e"), failed) })
	if !errors.Is(err, failed) {
		s.Fatalf("error %v, want the handler's", err)
	}
	if _, err := idempotency.Lookup(s.Context(), s.db, s.source, "e"); !errors.Is(err, idempotency.ErrKeyNotFound) {
		s.Errorf("the key of a failed delivery: %v", err)
	}
	func() {
		defer func() {
			if recover() != "on purpose" {
				s.Error("the handler's panic got lost")
			}
		}()
		_, _ = s.do("e", nil, func(tx *gorm.DB) error {
			requireNil(s.T, s.write(tx, "e"))
			panic("on purpose")
		})
	}()
	s.requireExecuted("e", nil, s.writing)
	s.requireEffects("e", 1)
}

func joined(s *scene) {
	var inner []*idempotency.Result
	err := s.db.Transaction(func(tx *gorm.DB) error {
		result, err := s.on(tx, "e", nil, s.writing)
		requireNil(s.T, err)
		_, err = s.on(tx, "e", []byte("other"), unwanted(s))
		if !errors.Is(err, idempotency.ErrDigestMismatch) {
			s.Errorf("joined with another payload: %v", err)
		}
		_, err = s.on(tx, "broken", nil, func(tx *gorm.DB) error {
			return errors.Join(s.write(tx, "broken"), tx.Exec("SELECT 1/0").Error)
		})
		if s.State(err) != "22012" {
			s.Errorf("a broken handler's call: %v", err)
		}
		again, err := s.on(tx, "e", nil, unwanted(s))
		requireNil(s.T, err)
		inner = []*idempotency.Result{result, again}
		return s.write(tx, "caller")
	})
	if err != nil {
		s.Fatalf("the caller's transaction: %v", err)
	}
	for i, result := range inner {
		if result == nil || !result.Provisional || result.Replayed != (i == 1) {
			s.Errorf("joined, delivery %d: %+v", i, result)
		}
	}
	s.requireEffects("e", 1)
	s.requireEffects("caller", 1)
	s.requireEffects("broken", 0)
	s.requireKey("broken", false)
}

func rolledBack(s *scene) {
	failed := errors.New("the caller's own")
	err := s.db.Transaction(func(tx *gorm.DB) error {
		result, err := s.on(tx, "e", nil, s.writing)
		if err != nil || !result.Provisional {
			s.Errorf("joined: %+v, %v", result, err)
		}
		return failed
	})
	if !errors.Is(err, failed) {
		s.Errorf("the caller's transaction: %v", err)
	}
	s.requireEffects("e", 0)
	s.requireKey("e", false)
}

func answers(s *scene) {
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
			result, err := s.do(name, nil, respond)
			if err != nil {
				s.Errorf("%s: %v", name, err)
				break
			}
			if first == nil {
				first = result
				continue
			}
			if !result.Replayed {
				s.Errorf("%s: not replayed", name)
			}
			s.requireSameAnswer(first, result)
		}
	}
}

func values(s *scene) {
	type order struct {
		ID    int64
		Lines []string
	}
	for delivery := range 3 {
		value, result, err := idempotency.DoValue(s.db, s.source, "e", nil, func(tx *gorm.DB) (order, error) {
			return order{ID: 9007199254740993, Lines: []string{"a", "\x00"}}, s.write(tx, "e")
		})
		if err != nil || result.Replayed != (delivery > 0) {
			s.Fatalf("delivery %d: %+v, %v", delivery, result, err)
		}
		if value.ID != 9007199254740993 || !slices.Equal(value.Lines, []string{"a", "\x00"}) {
			s.Errorf("delivery %d: %+v", delivery, value)
		}
	}
	s.requireEffects("e", 1)
}

func digests(s *scene) {
	for n, body := range [][]byte{nil, {}, {0}, {0x5c}, []byte(`\x00`), []byte(strings.Repeat("\x00\x5c'", 99))} {
		id := fmt.Sprint(n)
		s.requireExecuted(id, body, func(*gorm.DB) error { return nil })
		s.requireReplayed(id, body)
		key, err := idempotency.Lookup(s.Context(), s.db, s.source, id)
		if sum := idempotency.SHA256().Sum(body); err != nil || !bytes.Equal(key.PayloadDigest, sum[:]) {
			s.Errorf("payload %q: stored digest %v, %v", body, key, err)
		}
	}
}

func race(s *scene) {
	const rounds, deliveries = 20, 4
	// Two of the deliveries meet in the gate of one process, and two in the database.
	pools := []*gorm.DB{s.db, s.other()}
	for round := range rounds {
		event := fmt.Sprint(round)
		var runs, replays atomic.Int32
		var together sync.WaitGroup
		start := make(chan struct{})
		for delivery := range deliveries {
			together.Go(func() {
				<-start
				ran := false
				result, err := s.on(pools[delivery%2], event, nil, func(tx *gorm.DB) error {
					ran = true
					return s.write(tx, event)
				}, idempotency.WithWait(never))
				switch {
				case err != nil:
					s.Errorf("round %d: %v", round, err)
				case result.Replayed:
					replays.Add(1)
				case ran:
					runs.Add(1)
				}
			})
		}
		close(start)
		together.Wait()
		if runs.Load() != 1 || replays.Load() != deliveries-1 {
			s.Errorf("round %d: %d runs and %d replays", round, runs.Load(), replays.Load())
		}
		s.requireEffects(event, 1)
	}
}

func inFlight(s *scene) {
	result, err := s.on(s.other(), "e", nil, func(tx *gorm.DB) error {
		for range 2 {
			result, err := s.do("e", nil, unwanted(s), idempotency.WithWait(0))
			if result != nil || !errors.Is(err, idempotency.ErrInFlight) {
				s.Errorf("the duplicate: %+v, %v; want ErrInFlight", result, err)
			}
		}
		return s.write(tx, "e")
	})
	if err != nil || result.Replayed {
		s.Fatalf("%+v, %v", result, err)
	}
	if s.Handle.Joined && s.Strict {
		return // the snapshot is older than the holder's commit: "isolation" shows what happens
	}
	s.requireReplayed("e", nil)
	s.requireEffects("e", 1)
}

func forgotten(s *scene) {
	s.requireExecuted("e", nil, s.writing)
	requireNil(s.T, idempotency.Forget(s.Context(), s.db, s.source, "e"))
	if err := idempotency.Forget(s.Context(), s.db, s.source, "e"); !errors.Is(err, idempotency.ErrKeyNotFound) {
		s.Errorf("forgotten twice: %v", err)
	}
	s.requireExecuted("e", nil, s.writing)
	s.requireReplayed("e", nil)
	s.requireEffects("e", 2)
}

func states(s *scene) {
	for _, state := range []string{"23505", "40P01", "55P03", "57014", "40001"} {
		attempts := 0
		_, err := s.do(state, nil, func(tx *gorm.DB) error {
			if attempts++; attempts > 1 {
				return errors.New("enough") // where a serialization failure is redelivered
			}
			return tx.Exec(`DO $$ BEGIN RAISE EXCEPTION 'on purpose' USING ERRCODE = '` + state + `'; END $$`).Error
		})
		if attempts > 1 {
			continue
		}
		// GORM's TranslateError leaves nothing of the driver's error, with some drivers. That is not ours to mend.
		translated := state == "23505" && errors.Is(err, gorm.ErrDuplicatedKey)
		if got := s.State(err); got != state && !translated {
			s.Errorf("SQLSTATE %q of %v, want %s", got, err, state)
		}
		if !idempotency.Retryable(err) || errors.Is(err, idempotency.ErrSchema) {
			s.Errorf("%s reads as %v", state, err)
		}
		s.requireNoVerdict(nil, err)
		s.requireKey(state, false)
	}
}

func swallowed(s *scene) {
	for name, respond := range map[string]func(*gorm.DB) error{
		"no answer": func(*gorm.DB) error { return nil },
		"answer":    func(tx *gorm.DB) error { return idempotency.Respond(tx, http.StatusOK, 1) },
	} {
		s.requireNoVerdict(s.do(name, nil, func(tx *gorm.DB) error {
			if err := s.write(tx, name); err != nil {
				return err
			}
			_ = tx.Exec("SELECT 1/0").Error
			return respond(tx)
		}))
		s.requireKey(name, false)
		s.requireEffects(name, 0)
	}
}

func deferredViolation(s *scene) {
	nowhere := uint(1 << 30)
	result, err := s.do("e", nil, func(tx *gorm.DB) error {
		return tx.Create(&effect{Event: s.name("e"), Ref: &nowhere}).Error
	})
	s.requireNoVerdict(result, err)
	if s.State(err) != "23503" {
		s.Errorf("got %v; want the commit's 23503", err)
	}
	s.requireKey("e", false)
	s.requireEffects("e", 0)
}

func poisoned(s *scene) {
	err := s.db.Transaction(func(tx *gorm.DB) error {
		_ = tx.Exec("SELECT 1/0").Error
		result, err := s.on(tx, "e", nil, unwanted(s))
		if result != nil || s.State(err) != "25P02" {
			s.Errorf("joined: %+v, %v; want 25P02", result, err)
		}
		return err
	})
	if err == nil {
		s.Error("the aborted transaction committed")
	}
}

func cancelled(s *scene) {
	ctx, cancel := context.WithCancel(s.Context())
	if onPool(s.suite) { // on a handle of one connection it would be the last statement
		_, err := s.on(s.db.WithContext(ctx), "during", nil, func(tx *gorm.DB) error {
			cancel()
			return tx.Exec("SELECT 1").Error
		})
		if !errors.Is(err, context.Canceled) {
			s.Errorf("during: %v, want context.Canceled", err)
		}
		s.requireKey("during", false)
	}
	cancel()
	_, err := s.on(s.db.WithContext(ctx), "before", nil, unwanted(s))
	if !errors.Is(err, context.Canceled) {
		s.Errorf("before: %v, want context.Canceled", err)
	}
	s.requireKey("before", false)
}

func missingTable(s *scene) {
	config := s.Config
	config.Table = "nowhere"
	db := s.open(s.T, config, s.Dialector(s.dsn))
	for name, do := range map[string]func() error{
		"a claim": func() error {
			_, err := s.on(db, "e", nil, unwanted(s))
			return err
		},
		"a lookup": func() error {
			_, err := idempotency.Lookup(s.Context(), db, s.source, "e")
			return err
		},
	} {
		if err := do(); !errors.Is(err, idempotency.ErrSchema) || s.State(err) != "42P01" {
			s.Errorf("%s without a table: %v, want ErrSchema", name, err)
		}
	}
	requireIdle(s.T, db)
}

// Case C24.
func autoMigrate(s *scene) {
	describe := func() (described string) {
		requireNil(s.T, s.db.Raw(`SELECT string_agg(line, E'\n' ORDER BY line) FROM (
			SELECT indexdef FROM pg_indexes WHERE tablename = 'idempotency_keys' UNION ALL
			SELECT attname || ' ' || format_type(atttypid, atttypmod) || ' ' || attnotnull || ' ' || attcollation || ' ' || attrelid
			FROM pg_attribute WHERE attrelid IN (SELECT oid FROM pg_class WHERE relname = 'idempotency_keys') AND attnum > 0) AS t (line)`).
			Scan(&described).Error)
		return described
	}
	if s.Config.Table == "" {
		before := describe()
		requireNil(s.T, s.db.AutoMigrate(&idempotency.IdempotencyKey{}))
		if after := describe(); after != before || before == "" {
			s.Errorf("AutoMigrate has changed\n%s\nto\n%s", before, after)
		}
	}
	requireNil(s.T, idempotency.CheckSchema(s.Context(), s.db))
	// The model reads the table that the statements write, whatever the naming strategy makes of names.
	s.requireExecuted("e", nil, s.writing)
	var keys []idempotency.IdempotencyKey
	requireNil(s.T, s.db.Where("source = ? AND event_id = ?", s.source, "e").Find(&keys).Error)
	if len(keys) != 1 {
		s.Errorf("the model finds %d rows, want 1", len(keys))
	}
}
