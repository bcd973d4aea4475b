package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
)

// Case C10: a handler that panics, or that runtime.Goexit ends as t.FailNow does, leaves nothing behind: no effect, no
// key, no lock and no connection. The panic goes on unchanged.
func TestAbandonedHandlerLeavesNothing(t *testing.T) {
	t.Parallel()
	type panicked struct{ value any }
	for name, leave := range map[string]func(){
		"panic":  func() { panic(panicked{"value"}) },
		"Goexit": runtime.Goexit,
	} {
		for _, depth := range []string{"standalone", "nested", "nested in GORM's", "joined"} {
			t.Run(name+" "+depth, func(t *testing.T) {
				t.Parallel()
				dsn := gormtest.DSN(t)
				told := &witness{}
				db := open(t, setup{dsn: dsn, config: idempotency.Config{Observe: told.observe}})
				other := open(t, setup{dsn: dsn})
				abandon := func(tx *gorm.DB) error {
					requireErrorIs(t, idempotency.AfterCommit(tx, func(context.Context) { t.Error("announced") }), nil)
					requireErrorIs(t, placeOrder("evt")(tx), nil)
					leave()
					return nil
				}
				do := func(db *gorm.DB, id string, fc func(*gorm.DB) error) {
					_, err := idempotency.Do(db, "s", id, nil, fc)
					t.Errorf("the call returned %v", err)
				}
				recovered, returned := make(chan any, 1), make(chan struct{})
				go func() {
					defer close(returned)
					defer func() { recovered <- recover() }()
					switch depth {
					case "standalone":
						do(db, "evt", abandon)
					case "nested":
						do(db, "outer", func(tx *gorm.DB) error { do(tx, "evt", abandon); return nil })
					case "nested in GORM's":
						do(db, "evt", func(tx *gorm.DB) error { return tx.Transaction(abandon) })
					case "joined":
						// Under a transaction of the caller's, AfterCommit is refused.
						_ = db.Transaction(func(tx *gorm.DB) error {
							do(tx, "evt", func(tx *gorm.DB) error {
								requireErrorIs(t, placeOrder("evt")(tx), nil)
								leave()
								return nil
							})
							return nil
						})
					}
				}()
				requireClosed(t, returned, "the goroutine ends")
				value := <-recovered
				if want := any(panicked{"value"}); name == "panic" && value != want || name != "panic" && value != nil {
					t.Errorf("recovered %v", value)
				}
				for _, kind := range told.take() {
					if kind != idempotency.Failed {
						t.Errorf("observed %s", kind)
					}
				}
				result, err := idempotency.Do(other, "s", "evt", nil, placeOrder("evt"), idempotency.WithWait(0))
				if err != nil || result.Replayed {
					t.Errorf("another connection: %+v, %v", result, err)
				}
				requireEffects(t, db, "evt", 1)
				requireNoKey(t, db, "s", "outer")
				requireIdle(t, db)
				requireReplay(t, db, "evt") // through the gate, which is open
			})
		}
	}
}

// A caller that recovers from the panic of a joined call finds their transaction usable, and free of the call's writes.
func TestCallerRecoversFromThePanicOfAJoinedCall(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	err := db.Transaction(func(tx *gorm.DB) error {
		func() {
			defer func() { _ = recover() }()
			_, _ = idempotency.Do(tx, "s", "evt", nil, func(tx *gorm.DB) error {
				requireError(t, placeOrder("evt")(tx), nil)
				_ = tx.Exec("SELECT 1/0").Error
				panic("handler")
			})
		}()
		return placeOrderWithoutAnswer(tx, "caller")
	})
	requireError(t, err, nil)
	requireEffects(t, db, "evt", 0)
	requireEffects(t, db, "caller", 1)
	requireNoKey(t, db, "s", "evt")
}

// Case C7: wherever a delivery is when its context is cancelled, it says so, and leaves nothing behind.
func TestCancelledDeliveryLeavesNothing(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	db, w := openWired(t, setup{dsn: dsn, conns: 4})
	other := open(t, setup{dsn: dsn})
	held := hold(t, other, "s", "held", nil)
	sameProcess := hold(t, db, "s", "held here", nil)
	foreign := other.Begin()
	defer foreign.Rollback()
	mustExec(t, foreign, "INSERT INTO idempotency_keys (source, event_id, payload_digest) VALUES ('s', 'blocked', 'x')")

	const places, rounds = 8, 8 * 200
	errGaveUp := errors.New("gave up")
	place := func(round int) (string, func(context.Context, context.CancelFunc) error) {
		id := fmt.Sprintf("evt%d", round)
		return id, func(ctx context.Context, cancel context.CancelFunc) error {
			db := db.WithContext(ctx)
			do := func(id string, fc func(*gorm.DB) error) error {
				_, err := idempotency.Do(db, "s", id, nil, fc, idempotency.WithWait(never))
				return err
			}
			soon := func() { time.AfterFunc(rand.N(3*time.Millisecond), cancel) }
			switch round % places {
			case 0:
				cancel()
				return do(id, unwanted(t))
			case 1: // waiting for another process
				soon()
				return do("held", unwanted(t))
			case 2: // in the gate
				soon()
				return do("held here", unwanted(t))
			case 3: // blocked in the server, by a holder that is not this library
				soon()
				return do("blocked", unwanted(t))
			case 4: // in the handler, which notices
				return do(id, func(tx *gorm.DB) error {
					cancel()
					return placeOrder(id)(tx)
				})
			case 5: // in the handler, which does not
				return do(id, func(tx *gorm.DB) error {
					err := placeOrder(id)(tx)
					cancel()
					return err
				})
			case 6: // in the handler, which has its own words for it
				return do(id, func(tx *gorm.DB) error {
					cancel()
					return errGaveUp
				})
			default: // in a caller's transaction, which has another context
				tx := other.Begin()
				defer func() { requireError(t, tx.Commit().Error, nil) }()
				_, err := idempotency.Do(tx.WithContext(ctx), "s", id, nil, func(tx *gorm.DB) error {
					err := placeOrder(id)(tx)
					cancel()
					return err
				})
				return err
			}
		}
	}
	for round := range rounds {
		ctx, cancel := context.WithCancel(t.Context())
		id, run := place(round)
		err := run(ctx, cancel)
		if !errors.Is(err, context.Canceled) || errors.Is(err, idempotency.ErrInFlight) {
			t.Errorf("round %d: error %v", round, err)
		}
		cancel()
		requireEffects(t, other, id, 0)
		requireNoKey(t, other, "s", id)
	}
	w.watch(nil)
	held.end(nil)
	sameProcess.end(nil)
	requireIdle(t, db)
}

// Case C7: a cancellation between the completion and the end of the commit leaves all or nothing. Only what was cancelled
// while COMMIT was on its way is unknown; before that it is certain.
func TestCancelAroundTheCommitIsAllOrNothing(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	completed := func() {}
	db, w := openWired(t, setup{dsn: dsn, gorm: gorm.Config{Logger: afterStatements{logger.Discard, func(step string) {
		if step == "complete" {
			completed()
		}
	}}}})
	other := open(t, setup{dsn: dsn})
	outcomes := map[string]int{}
	const rounds = 3 * 200
	for round := range rounds {
		id := fmt.Sprintf("evt%d", round)
		ctx, cancel := context.WithCancel(t.Context())
		completed = func() {}
		w.watch(nil)
		switch round % 3 {
		case 0:
			completed = cancel
		case 1:
			completed = func() { time.AfterFunc(rand.N(2*time.Millisecond), cancel) }
		case 2:
			w.at("commit", func(*pgx.Conn) { cancel() })
		}
		result, err := idempotency.Do(db.WithContext(ctx), "s", id, nil, placeOrder(id))
		cancel()
		// In one statement: the server may still be at the commit.
		there := read[bool](t, other, "SELECT EXISTS (SELECT FROM idempotency_keys WHERE event_id = ?)", id)
		if half := read[bool](t, other, `SELECT EXISTS (SELECT FROM idempotency_keys WHERE event_id = ?) <>
			EXISTS (SELECT FROM orders WHERE event = ?)`, id, id); half {
			t.Errorf("round %d: only one of key and effect is there", round)
		}
		switch {
		case err == nil:
			if !there || result == nil {
				t.Errorf("round %d: success, and the key is there: %t", round, there)
			}
			outcomes["committed"]++
		case !errors.Is(err, context.Canceled):
			t.Errorf("round %d: error %v", round, err)
		case errors.Is(err, idempotency.ErrOutcomeUnknown) && round%3 != 0:
			outcomes["unknown"]++
		case there || errors.Is(err, idempotency.ErrOutcomeUnknown):
			t.Errorf("round %d: the key is there: %t, and the error says %v", round, there, err)
		default:
			outcomes["rolled back"]++
		}
		if _, err := idempotency.Do(other, "s", id, nil, placeOrder(id), idempotency.WithWait(never)); err != nil {
			t.Errorf("round %d: the next delivery: %v", round, err)
		}
		requireEffects(t, other, id, 1)
	}
	t.Logf("outcomes: %v", outcomes)
	if outcomes["rolled back"] < rounds/3 {
		t.Errorf("outcomes %v: a third was cancelled before the commit", outcomes)
	}
	requireIdle(t, db)
}
