package idempotency_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
)

// observations keeps what Config.Observe is told.
type observations struct {
	mu  sync.Mutex
	all []idempotency.Observation
}

func (o *observations) add(_ context.Context, observation idempotency.Observation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, observation)
}

func (o *observations) of(kind idempotency.Kind) (found []idempotency.Observation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, observation := range o.all {
		if observation.Kind == kind {
			found = append(found, observation)
		}
	}
	return found
}

// take returns the only observation since the last take.
func (o *observations) take(t *testing.T) idempotency.Observation {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	taken := o.all
	o.all = nil
	if len(taken) != 1 {
		t.Fatalf("%d observations, want one: %+v", len(taken), taken)
	}
	return taken[0]
}

// Every call is observed once, with what became of it.
func TestEveryCallIsObservedOnce(t *testing.T) {
	t.Parallel()
	seen := &observations{}
	db := open(t, setup{config: idempotency.Config{Observe: seen.add}})
	failure := errors.New("not today")
	held := hold(t, db, "s", "held", nil)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	mustExec(t, db, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END'`)
	mustExec(t, db, `CREATE CONSTRAINT TRIGGER late AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW WHEN (NEW.event = 'fails to commit') EXECUTE FUNCTION refuse()`)
	joined := func(db *gorm.DB, id string, fc func(*gorm.DB) error) error {
		return db.Transaction(func(tx *gorm.DB) error {
			_, err := idempotency.Do(tx, "s", id, nil, fc)
			return err
		})
	}
	for _, test := range []struct {
		name string
		kind idempotency.Kind
		id   string
		err  error
		call func(id string) error
	}{
		{"fresh", idempotency.Executed, "e", nil, func(id string) error { _, err := idempotency.Do(db, "s", id, nil, placeOrder(id)); return err }},
		{"duplicate", idempotency.Replayed, "e", nil, func(id string) error { _, err := idempotency.Do(db, "s", id, nil, unreachable(t)); return err }},
		{"another payload", idempotency.Mismatch, "e", idempotency.ErrDigestMismatch, func(id string) error {
			_, err := idempotency.Do(db, "s", id, []byte("x"), unreachable(t))
			return err
		}},
		{"in flight here", idempotency.InFlight, "held", idempotency.ErrInFlight, func(id string) error {
			_, err := idempotency.Do(db, "s", id, nil, unreachable(t), idempotency.WithWait(0))
			return err
		}},
		{"in flight, waiting", idempotency.InFlight, "held", idempotency.ErrInFlight, func(id string) error {
			_, err := idempotency.Do(db, "s", id, nil, unreachable(t), idempotency.WithWait(20*time.Millisecond))
			return err
		}},
		{"in flight, joined", idempotency.InFlight, "held", idempotency.ErrInFlight, func(id string) error { return joined(db, id, unreachable(t)) }},
		{"failed", idempotency.Failed, "f", failure, func(id string) error {
			_, err := idempotency.Do(db, "s", id, nil, func(*gorm.DB) error { return failure })
			return err
		}},
		{"cancelled", idempotency.Failed, "f", context.Canceled, func(id string) error {
			_, err := idempotency.Do(db.WithContext(ended), "s", id, nil, unreachable(t))
			return err
		}},
		{"panic", idempotency.Failed, "f", nil, func(id string) error {
			defer func() { _ = recover() }()
			_, err := idempotency.Do(db, "s", id, nil, func(*gorm.DB) error { panic("SECRET") })
			return err
		}},
		{"commit fails", idempotency.Failed, "fails to commit", nil, func(id string) error {
			_, err := idempotency.Do(db, "s", id, nil, placeOrder(id))
			return err
		}},
		{"handler commits", idempotency.OutcomeUnknown, "u", idempotency.ErrOutcomeUnknown, func(id string) error {
			_, err := idempotency.Do(db, "s", id, nil, func(tx *gorm.DB) error { return tx.Commit().Error })
			return err
		}},
		{"joined", idempotency.Executed, "j", nil, func(id string) error { return joined(db, id, placeOrder(id)) }},
		{"joined duplicate", idempotency.Replayed, "j", nil, func(id string) error { return joined(db, id, unreachable(t)) }},
		{"joined failure", idempotency.Failed, "k", failure, func(id string) error { return joined(db, id, func(*gorm.DB) error { return failure }) }},
		{"value", idempotency.Executed, "v", nil, func(id string) error {
			_, _, err := idempotency.DoValue(db, "s", id, nil, func(*gorm.DB) (int, error) { return 1, nil })
			return err
		}},
		{"value of another shape", idempotency.Replayed, "v", nil, func(id string) error {
			_, _, err := idempotency.DoValue(db, "s", id, nil, func(*gorm.DB) (string, error) { return "", nil })
			if err == nil {
				t.Error("1 was read as a string")
			}
			return nil
		}},
	} {
		began := time.Now()
		err := test.call(test.id)
		took := time.Since(began)
		got := seen.take(t)
		if got.Kind != test.kind || got.Source != "s" || got.EventID != test.id || got.Provisional != strings.Contains(test.name, "joined") {
			t.Errorf("%s: observed %+v", test.name, got)
		}
		if test.err != nil && (!errors.Is(got.Err, test.err) || !errors.Is(err, test.err)) {
			t.Errorf("%s: returned %v, observed %v, want %v", test.name, err, got.Err, test.err)
		}
		if (err != nil) != (got.Err != nil) && test.name != "panic" || test.name == "panic" && got.Err == nil {
			t.Errorf("%s: returned %v, observed %v", test.name, err, got.Err)
		}
		if got.Duration <= 0 || got.Duration > took || got.Waited < 0 || got.Waited > got.Duration {
			t.Errorf("%s: observed %v, of which waiting %v, of %v", test.name, got.Duration, got.Waited, took)
		}
		if test.name == "in flight, waiting" && got.Waited < 10*time.Millisecond {
			t.Errorf("waited %v, and the caller was ready to wait 20ms", got.Waited)
		}
		if got.Count != 0 {
			t.Errorf("%s: counts %d", test.name, got.Count)
		}
	}
	held.end(nil)
	if got := seen.take(t); got.Kind != idempotency.Executed || got.EventID != "held" {
		t.Errorf("the holder is observed as %+v", got)
	}
	// A call that has no key is not observed.
	if _, err := idempotency.Do(db, "", "e", nil, nothing); !errors.Is(err, idempotency.ErrInvalidKey) || len(seen.all) > 0 {
		t.Errorf("got %v and %+v", err, seen.all)
	}
}

// Observe runs once the transaction has ended: the effect it is told of can be seen, and its connection is free.
func TestObserveRunsAfterTheTransaction(t *testing.T) {
	t.Parallel()
	var db *gorm.DB
	calls := 0
	db = open(t, setup{conns: 1, config: idempotency.Config{Observe: func(ctx context.Context, o idempotency.Observation) {
		calls++
		if ctx.Value(marker{}) != "mine" {
			t.Error("the context is not the call's")
		}
		if got := effects(t, db, o.EventID); (got == 1) != (o.Kind == idempotency.Executed) {
			t.Errorf("%s: %d effects can be seen", o.Kind, got)
		}
		if err := db.WithContext(ctx).Create(&order{Event: "observed"}).Error; err != nil {
			t.Errorf("a write in Observe: %v", err)
		}
	}}})
	ctx := context.WithValue(t.Context(), marker{}, "mine")
	if _, err := idempotency.Do(db.WithContext(ctx), "s", "e", nil, placeOrder("e")); err != nil {
		t.Error(err)
	}
	failure := errors.New("undone")
	_, err := idempotency.Do(db.WithContext(ctx), "s", "f", nil, func(*gorm.DB) error { return failure })
	requireError(t, err, failure)
	if calls != 2 {
		t.Errorf("observed %d calls, want 2", calls)
	}
}

type marker struct{}

// Observe may write, also about a foreign write: with the context that it is given, that is no foreign write itself.
func TestObserveMayWrite(t *testing.T) {
	t.Parallel()
	for policy, want := range map[idempotency.ForeignWritePolicy]error{
		idempotency.RejectForeignWrites: idempotency.ErrForeignWrite, idempotency.WarnForeignWrites: nil,
	} {
		var db *gorm.DB
		db = open(t, setup{config: idempotency.Config{ForeignWrites: policy, Observe: func(ctx context.Context, o idempotency.Observation) {
			if err := db.WithContext(ctx).Create(&order{Event: string(o.Kind)}).Error; err != nil {
				t.Errorf("%s: %v", o.Kind, err)
			}
		}}})
		_, err := idempotency.Do(db, "s", "e", nil, func(tx *gorm.DB) error {
			if _, err := idempotency.Do(tx, "s", "inner", nil, nothing); err != nil {
				return err
			}
			return db.WithContext(tx.Statement.Context).Create(&order{Event: "foreign"}).Error
		})
		if !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
		requireEffects(t, db, "foreign_write", 1)
		if got := effects(t, db, "executed") + effects(t, db, "failed"); got != 2 {
			t.Errorf("%d calls were observed, want 2", got)
		}
	}
}

// A panic in Observe is logged, without its text, and changes nothing.
func TestPanicInObserveIsHarmless(t *testing.T) {
	t.Parallel()
	log := &journal{}
	db := open(t, setup{gorm: gorm.Config{Logger: log}, config: idempotency.Config{
		Observe: func(context.Context, idempotency.Observation) { panic(errors.New("SECRET")) },
	}})
	deliverTwice(t, db, "s", "e", placeOrder("e"))
	_, err := idempotency.Do(db, "s", "f", nil, func(tx *gorm.DB) error {
		return db.WithContext(tx.Statement.Context).Create(&order{Event: "f"}).Error
	})
	requireError(t, err, idempotency.ErrForeignWrite)
	lines := log.of("error")
	if len(lines) != 4 { // fresh, duplicate, the foreign write and its call
		t.Errorf("the log has %q, want a line for each of 4 panics", lines)
	}
	for _, line := range lines {
		if !strings.Contains(line, "Config.Observe") || !strings.Contains(line, "*errors.errorString") || strings.Contains(line, "SECRET") {
			t.Errorf("the log says %q", line)
		}
	}
}
