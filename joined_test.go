package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
)

// Case C9: on a pool, in a transaction that was begun by hand, inside Transaction, and where GORM nests no transactions,
// a call has the same outcomes. Each handle's transaction goes on after each of them.
func TestOutcomesAreTheSameOnEveryHandle(t *testing.T) {
	t.Parallel()
	errHandler := errors.New("handler")
	for name, within := range map[string]func(t *testing.T, db *gorm.DB, use func(*gorm.DB)){
		"pool": func(_ *testing.T, db *gorm.DB, use func(*gorm.DB)) { use(db) },
		"prepared session of a pool": func(_ *testing.T, db *gorm.DB, use func(*gorm.DB)) {
			use(db.Session(&gorm.Session{PrepareStmt: true}))
		},
		"one connection": func(t *testing.T, db *gorm.DB, use func(*gorm.DB)) {
			t.Helper()
			requireError(t, db.Connection(func(conn *gorm.DB) error { use(conn); return nil }), nil)
		},
		"Begin": func(t *testing.T, db *gorm.DB, use func(*gorm.DB)) {
			t.Helper()
			tx := db.Begin()
			use(tx)
			requireError(t, tx.Commit().Error, nil)
		},
		"Transaction": func(t *testing.T, db *gorm.DB, use func(*gorm.DB)) {
			t.Helper()
			requireError(t, db.Transaction(func(tx *gorm.DB) error { use(tx); return nil }), nil)
		},
		"nested Transaction": func(t *testing.T, db *gorm.DB, use func(*gorm.DB)) {
			t.Helper()
			requireError(t, db.Transaction(func(tx *gorm.DB) error {
				return tx.Transaction(func(tx *gorm.DB) error { use(tx); return nil })
			}), nil)
		},
		"prepared session of a transaction": func(t *testing.T, db *gorm.DB, use func(*gorm.DB)) {
			t.Helper()
			requireError(t, db.Transaction(func(tx *gorm.DB) error {
				use(tx.Session(&gorm.Session{PrepareStmt: true}))
				return nil
			}), nil)
		},
		"DisableNestedTransaction": func(t *testing.T, db *gorm.DB, use func(*gorm.DB)) {
			t.Helper()
			session := db.Session(&gorm.Session{DisableNestedTransaction: true})
			requireError(t, session.Transaction(func(tx *gorm.DB) error { use(tx); return nil }), nil)
		},
		"another handler": func(t *testing.T, db *gorm.DB, use func(*gorm.DB)) {
			t.Helper()
			_, err := idempotency.Do(db, "outer", "evt", nil, func(tx *gorm.DB) error { use(tx); return nil })
			requireError(t, err, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := gormtest.DSN(t)
			db, other := open(t, setup{dsn: dsn}), open(t, setup{dsn: dsn})
			holder := hold(t, other, "s", "held", nil)
			within(t, db, func(tx *gorm.DB) {
				result, err := idempotency.Do(tx, "s", "evt", nil, placeOrder("evt"))
				if err != nil || result.Replayed || result.Status != 201 {
					t.Errorf("fresh: %+v, %v", result, err)
				}
				if joined := name != "pool" && name != "prepared session of a pool" && name != "one connection"; result.Provisional != joined {
					t.Errorf("provisional is %t", result.Provisional)
				}
				first := result
				result, err = idempotency.Do(tx, "s", "evt", nil, unwanted(t))
				if err != nil || !result.Replayed || result.Status != 201 || string(result.Body) != string(first.Body) {
					t.Errorf("duplicate: %+v, %v", result, err)
				}
				_, err = idempotency.Do(tx, "s", "evt", []byte("changed"), unwanted(t))
				requireError(t, err, idempotency.ErrDigestMismatch)
				_, err = idempotency.Do(tx, "s", "held", nil, unwanted(t), idempotency.WithWait(0))
				requireError(t, err, idempotency.ErrInFlight)
				_, err = idempotency.Do(tx, "", "evt", nil, unwanted(t))
				requireError(t, err, idempotency.ErrInvalidKey)
				_, err = idempotency.Do(tx, "s", "failed", nil, func(tx *gorm.DB) error {
					return errors.Join(placeOrder("failed")(tx), errHandler)
				})
				requireError(t, err, errHandler)
				_, err = idempotency.Do(tx, "s", "swallowed", nil, func(tx *gorm.DB) error {
					_ = tx.Exec("SELECT 1/0").Error
					return placeOrder("swallowed")(tx)
				})
				requireState(t, err, "25P02")
				_, err = idempotency.Do(tx, "s", "begin", nil, func(tx *gorm.DB) error {
					_ = placeOrder("begin")(tx)
					return tx.Begin().Error
				})
				requireError(t, err, gorm.ErrInvalidTransaction)
				requireError(t, placeOrderWithoutAnswer(tx, "caller"), nil)
			})
			holder.end(nil)
			for event, want := range map[string]int64{"evt": 1, "held": 1, "caller": 1, "failed": 0, "swallowed": 0, "begin": 0} {
				requireEffects(t, other, event, want)
			}
			for _, id := range []string{"failed", "swallowed", "begin"} {
				requireNoKey(t, other, "s", id)
			}
			requireIdle(t, db)
		})
	}
}

// Case C4: a savepoint that cannot be made is an error, and the handler does not run. GORM's own would swallow it.
func TestAbortedTransactionIsAnError(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	tx := db.Begin()
	defer tx.Rollback()
	_ = tx.Exec("SELECT 1/0").Error
	_, err := idempotency.Do(tx, "s", "evt", nil, unwanted(t))
	requireState(t, err, "25P02")
	requireNoVerdict(t, err)
}

// Case C4: nor is it silent when the way back to the savepoint fails, whatever the call would have said otherwise.
func TestLostWayBackToTheSavepointIsAnError(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	told := &witness{}
	db, w := openWired(t, setup{dsn: dsn, config: idempotency.Config{Observe: told.observe}})
	admin := open(t, setup{dsn: dsn})
	execute(t, admin, "duplicate")
	holder := hold(t, admin, "s", "held", nil)
	errHandler := errors.New("handler")
	for _, id := range []string{"duplicate", "held", "failed"} {
		w.at("ROLLBACK TO SAVEPOINT idempotency_1", func(conn *pgx.Conn) { kill(t, admin, conn.PgConn().PID()) })
		err := db.Transaction(func(tx *gorm.DB) error {
			result, err := idempotency.Do(tx, "s", id, nil, func(*gorm.DB) error { return errHandler })
			if result != nil || err == nil || errors.Is(err, idempotency.ErrInFlight) {
				t.Errorf("%s: %+v, %v", id, result, err)
			}
			if id == "failed" {
				requireError(t, err, errHandler)
			}
			return nil
		})
		if err == nil {
			t.Errorf("%s: the caller's transaction was committed", id)
		}
		told.require(t, idempotency.Failed)
	}
	holder.end(nil)
}

// Case C30: two transactions that claim two keys in opposite order never wait for each other. Who comes second is in
// flight at once, can go on, and can ask again later.
func TestKeysClaimedInOppositeOrderDoNotDeadlock(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	config := idempotency.Config{Wait: never} // which a joined call never does
	db := open(t, setup{dsn: dsn, config: config})
	first, second := db.Begin(), db.Begin()
	defer first.Rollback()
	defer second.Rollback()
	claim := func(tx *gorm.DB, id string) error {
		_, err := idempotency.Do(tx, "s", id, nil, placeOrder(id), idempotency.WithWait(never))
		return err
	}
	requireError(t, claim(first, "a"), nil)
	requireError(t, claim(second, "b"), nil)
	requireError(t, claim(first, "b"), idempotency.ErrInFlight)
	requireError(t, claim(second, "a"), idempotency.ErrInFlight)
	requireError(t, placeOrderWithoutAnswer(first, "first"), nil)
	requireError(t, first.Commit().Error, nil)
	requireError(t, claim(second, "a"), nil)
	requireError(t, placeOrderWithoutAnswer(second, "second"), nil)
	requireError(t, second.Commit().Error, nil)
	for _, event := range []string{"a", "b", "first", "second"} {
		requireEffects(t, db, event, 1)
	}
}

// Case C30: a deadlock on rows of the handlers' own reaches one caller as the database tells it, and its handler does not
// run again.
func TestDeadlockBetweenHandlersIsTheirs(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	mustExec(t, db, "INSERT INTO orders (id, event) VALUES (1001, 'x'), (1002, 'x')")
	var both sync.WaitGroup
	both.Add(2)
	crosswise := func(id string, rows ...int) error {
		_, err := idempotency.Do(db, "s", id, nil, func(tx *gorm.DB) error {
			if err := tx.Exec("UPDATE orders SET event = ? WHERE id = ?", id, rows[0]).Error; err != nil {
				return err
			}
			both.Done() // twice in all: a second run would panic
			both.Wait()
			return tx.Exec("UPDATE orders SET event = ? WHERE id = ?", id, rows[1]).Error
		})
		return err
	}
	errs := make(chan error, 2)
	go func() { errs <- crosswise("a", 1001, 1002) }()
	go func() { errs <- crosswise("b", 1002, 1001) }()
	states := []string{state(<-errs), state(<-errs)}
	slices.Sort(states)
	if !slices.Equal(states, []string{"", "40P01"}) {
		t.Errorf("SQLSTATEs %q, want one deadlock", states)
	}
	if n := effects(t, db, "a") + effects(t, db, "b"); n != 2 {
		t.Errorf("%d rows were written by whoever survived, want 2", n)
	}
}

// Case C41: a claim is as old as the claim and not as the caller's transaction, so retention counts from it.
func TestClaimIsNotAsOldAsItsTransaction(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	tx := db.Begin()
	defer tx.Rollback()
	began := read[time.Time](t, tx, "SELECT now()")
	eventually(t, "the transaction is not new any more", func() bool {
		return read[time.Time](t, tx, "SELECT clock_timestamp()").After(began.Add(10 * time.Millisecond))
	})
	before := read[time.Time](t, tx, "SELECT clock_timestamp()")
	result, err := idempotency.Do(tx, "s", "evt", nil, placeOrder("evt"))
	requireError(t, err, nil)
	key, err := idempotency.Lookup(t.Context(), tx, "s", "evt")
	requireError(t, err, nil)
	if result.ClaimedAt.Before(before) || !key.ClaimedAt.Equal(result.ClaimedAt) {
		t.Errorf("claimed at %v, in the row %v, and it was %v before", result.ClaimedAt, key.ClaimedAt, before)
	}
	if key.CompletedAt == nil || !key.CompletedAt.Equal(key.ClaimedAt) {
		t.Errorf("completed at %v, claimed at %v", key.CompletedAt, key.ClaimedAt)
	}
}

// Case C44: the library sets no timeout, so it leaks none: not into the handler, not behind a joined call, not to the
// connection's next user.
func TestCallersTimeoutsStayTheirOwn(t *testing.T) {
	t.Parallel()
	dsn := withParameter(withParameter(gormtest.DSN(t), "lock_timeout", "34567"), "statement_timeout", "45678")
	db := open(t, setup{dsn: dsn, conns: 1})
	requireTimeouts := func(db *gorm.DB) {
		t.Helper()
		for name, want := range map[string]string{"lock_timeout": "34567ms", "statement_timeout": "45678ms"} {
			if got := read[string](t, db, "SHOW "+name); got != want {
				t.Errorf("%s is %s", name, got)
			}
		}
	}
	for range 2 {
		_, err := idempotency.Do(db, "s", "evt", nil, func(tx *gorm.DB) error {
			requireTimeouts(tx)
			_, err := idempotency.Do(tx, "s", "nested", nil, func(tx *gorm.DB) error {
				requireTimeouts(tx)
				return nil
			})
			requireTimeouts(tx)
			return err
		})
		requireError(t, err, nil)
		requireTimeouts(db)
	}
}

// Case C44: a timeout of the caller's that ends a statement of ours is that timeout, and no verdict about the key. It
// takes a holder that is not this library to make a claim wait inside the server at all.
func TestCallersTimeoutDuringAClaimIsTheirs(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	db, stranger := open(t, setup{dsn: dsn}), open(t, setup{dsn: dsn})
	foreign := stranger.Begin()
	defer foreign.Rollback()
	mustExec(t, foreign, `INSERT INTO idempotency_keys (source, event_id, payload_digest) VALUES ('s', 'evt', 'x')`)
	for setting, want := range map[string]string{"lock_timeout": "55P03", "statement_timeout": "57014"} {
		err := db.Transaction(func(tx *gorm.DB) error {
			mustExec(t, tx, "SET LOCAL "+setting+" = '20ms'")
			_, err := idempotency.Do(tx, "s", "evt", nil, unwanted(t))
			requireState(t, err, want)
			requireNoVerdict(t, err)
			mustExec(t, tx, "SET LOCAL "+setting+" = 0")
			return placeOrderWithoutAnswer(tx, want)
		})
		requireError(t, err, nil)
		requireEffects(t, db, want, 1)
	}
}

// Case C47: what a joined call returns and observes is provisional. If the caller rolls back, nothing has happened and the
// next delivery runs.
func TestJoinedSuccessIsProvisional(t *testing.T) {
	t.Parallel()
	told := &witness{}
	db := open(t, setup{config: idempotency.Config{Observe: told.observe}})
	tx := db.Begin()
	result, err := idempotency.Do(tx, "s", "evt", nil, func(tx *gorm.DB) error {
		requireError(t, idempotency.AfterCommit(tx, func(context.Context) { t.Error("announced") }), idempotency.ErrUnsupported)
		return placeOrder("evt")(tx)
	})
	if err != nil || !result.Provisional {
		t.Errorf("%+v, %v", result, err)
	}
	if result, err := idempotency.Do(tx, "s", "evt", nil, unwanted(t)); err != nil || !result.Provisional || !result.Replayed {
		t.Errorf("a replay of what may be undone: %+v, %v", result, err)
	}
	requireError(t, tx.Rollback().Error, nil)
	for _, o := range told.seen {
		if !o.Provisional {
			t.Errorf("observed as final: %+v", o)
		}
	}
	told.require(t, idempotency.Executed, idempotency.Replayed)
	requireNoKey(t, db, "s", "evt")
	requireEffects(t, db, "evt", 0)
	if result := execute(t, db, "evt"); result.Provisional {
		t.Error("a standalone call is provisional")
	}
	requireEffects(t, db, "evt", 1)
}

// Case C88: after a duplicate, a mismatch, an event in flight, an invalid key and a failed handler the caller's
// transaction can be written in and committed.
func TestCallersTransactionSurvivesEveryOutcome(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	db, other := open(t, setup{dsn: dsn}), open(t, setup{dsn: dsn})
	execute(t, db, "known")
	holder := hold(t, other, "s", "held", nil)
	errHandler := errors.New("handler")
	for name, test := range map[string]struct {
		id   string
		body []byte
		want error
	}{
		"duplicate":   {"known", nil, nil},
		"mismatch":    {"known", []byte("changed"), idempotency.ErrDigestMismatch},
		"in flight":   {"held", nil, idempotency.ErrInFlight},
		"invalid key": {"\x00", nil, idempotency.ErrInvalidKey},
		"failure":     {"new", nil, errHandler},
	} {
		err := db.Transaction(func(tx *gorm.DB) error {
			_, err := idempotency.Do(tx, "s", test.id, test.body, func(tx *gorm.DB) error {
				return errors.Join(tx.Exec("INSERT INTO nonsense VALUES (1)").Error, errHandler)
			})
			requireError(t, err, test.want)
			return placeOrderWithoutAnswer(tx, name)
		})
		requireError(t, err, nil)
		requireEffects(t, db, name, 1)
	}
	holder.end(nil)
}

// A handler that delivers the very key it holds is told so at once, on its transaction's handle and on the pool's, which
// would wait for itself. On the transaction the key would otherwise replay its own unfinished row.
func TestKeyInsideItsOwnHandlerIsReentrant(t *testing.T) {
	t.Parallel()
	db := open(t, setup{conns: 1})
	run := func(db *gorm.DB, id string, fc func(tx *gorm.DB)) {
		t.Helper()
		_, err := idempotency.Do(db, "s", id, nil, func(tx *gorm.DB) error {
			fc(tx)
			return placeOrder(id)(tx)
		})
		requireError(t, err, nil)
	}
	requireReentrant := func(db *gorm.DB, id string) {
		t.Helper()
		result, err := idempotency.Do(db, "s", id, nil, unwanted(t))
		if result != nil {
			t.Errorf("result %+v", result)
		}
		requireError(t, err, idempotency.ErrReentrant)
	}
	run(db, "evt", func(tx *gorm.DB) {
		requireReentrant(tx, "evt")
		requireReentrant(tx.WithContext(context.Background()), "evt")
		requireReentrant(tx.Session(&gorm.Session{NewDB: true, PrepareStmt: true}), "evt")
		requireReentrant(db.WithContext(tx.Statement.Context), "evt")
		requireError(t, tx.Transaction(func(tx *gorm.DB) error { requireReentrant(tx, "evt"); return nil }), nil)
		run(tx, "inner", func(tx *gorm.DB) {
			requireReentrant(tx, "evt")
			requireReentrant(tx, "inner")
			requireReentrant(db.WithContext(tx.Statement.Context), "evt")
		})
	})
	err := db.Transaction(func(tx *gorm.DB) error {
		run(tx, "joined", func(tx *gorm.DB) { requireReentrant(tx, "joined") })
		return nil
	})
	requireError(t, err, nil)
	for _, id := range []string{"evt", "inner", "joined"} {
		requireEffects(t, db, id, 1)
		requireReplay(t, db, id)
	}
}

// Inside a handler, other keys are joined calls, to any depth. One that fails takes its own effect with it, and what was
// nested in it.
func TestNestedCallsAreUndoneOnTheirOwn(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	errInner := errors.New("inner")
	result, err := idempotency.Do(db, "s", "outer", nil, func(tx *gorm.DB) error {
		inner, err := idempotency.Do(tx, "s", "kept", nil, placeOrder("kept"))
		if err != nil || !inner.Provisional {
			t.Errorf("the kept one: %+v, %v", inner, err)
		}
		_, err = idempotency.Do(tx, "s", "undone", nil, func(tx *gorm.DB) error {
			_, err := idempotency.Do(tx, "s", "nested", nil, placeOrder("nested"))
			return errors.Join(err, placeOrder("undone")(tx), errInner)
		})
		requireError(t, err, errInner)
		return placeOrder("outer")(tx)
	})
	if err != nil || result.Provisional || string(result.Body) != `{"order":"outer"}` {
		t.Errorf("the outer one: %+v, %v", result, err)
	}
	for id, want := range map[string]int64{"outer": 1, "kept": 1, "undone": 0, "nested": 0} {
		requireEffects(t, db, id, want)
		if want == 0 {
			requireNoKey(t, db, "s", id)
		} else if replay := requireReplay(t, db, id); string(replay.Body) != `{"order":"`+id+`"}` {
			t.Errorf("%s is replayed with %s", id, replay.Body)
		}
	}
}

// What inner calls want to do after the commit waits for the outermost one's, and is forgotten with the call that is
// undone.
func TestAfterCommitOfAnUndoneCallIsForgotten(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	var ran []string
	after := func(tx *gorm.DB, what string) {
		t.Helper()
		requireError(t, idempotency.AfterCommit(tx, func(context.Context) {
			if n := effects(t, db, "outer"); n != 1 {
				t.Errorf("%s before the commit", what)
			}
			ran = append(ran, what)
		}), nil)
	}
	errInner := errors.New("inner")
	outer := func(fail error) error {
		_, err := idempotency.Do(db, "s", "outer", nil, func(tx *gorm.DB) error {
			after(tx, "outer")
			_, err := idempotency.Do(tx, "s", "kept", nil, func(tx *gorm.DB) error {
				after(tx, "kept")
				return nil
			})
			requireError(t, err, nil)
			_, err = idempotency.Do(tx, "s", "undone", nil, func(tx *gorm.DB) error {
				after(tx, "undone")
				_, err := idempotency.Do(tx, "s", "nested", nil, func(tx *gorm.DB) error {
					after(tx, "nested")
					return nil
				})
				return errors.Join(err, errInner)
			})
			requireError(t, err, errInner)
			return errors.Join(placeOrder("outer")(tx), fail)
		})
		return err
	}
	errOuter := errors.New("outer")
	requireError(t, outer(errOuter), errOuter)
	if ran != nil {
		t.Errorf("after a rollback: %v", ran)
	}
	requireError(t, outer(nil), nil)
	if want := []string{"outer", "kept"}; !slices.Equal(ran, want) {
		t.Errorf("after the commit: %v, want %v", ran, want)
	}
	requireReplay(t, db, "outer")
	if len(ran) != 2 {
		t.Errorf("after a replay: %v", ran)
	}
}

// A batch of joined claims takes at most a thousand of the server's locks, and works all the same beyond. A duplicate of
// a claim without a lock waits in the server, as long as its context allows.
func TestBatchOfClaimsLeavesLocksForOthers(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	db, w := openWired(t, setup{dsn: dsn})
	other := open(t, setup{dsn: dsn})
	tx := db.Begin()
	defer tx.Rollback()
	claim := func(tx *gorm.DB, n int) {
		t.Helper()
		_, err := idempotency.Do(tx, "s", fmt.Sprintf("evt%d", n), nil, func(*gorm.DB) error { return nil })
		requireError(t, err, nil)
	}
	locks := func() int {
		return read[int](t, tx, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")
	}
	errUndone := errors.New("undone")
	for range 10 { // whose locks go with their savepoints
		_, err := idempotency.Do(tx, "s", "evt0", nil, func(*gorm.DB) error { return errUndone })
		requireError(t, err, errUndone)
	}
	for n := range 1000 {
		claim(tx, n)
	}
	if n := locks(); n != 1000 || w.seen("claim without lock") > 0 {
		t.Fatalf("%d locks after 1,000 claims, %d of them without", n, w.seen("claim without lock"))
	}
	for n := 1000; n < 1010; n++ {
		claim(tx, n)
	}
	if n := locks(); n != 1000 {
		t.Errorf("%d locks after 1,010 claims", n)
	}
	if n := w.seen("claim without lock"); n != 10 {
		t.Errorf("%d claims without a lock, want 10", n)
	}

	_, err := idempotency.Do(other, "s", "evt999", nil, unwanted(t), idempotency.WithWait(0))
	requireError(t, err, idempotency.ErrInFlight)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = idempotency.Do(other.WithContext(ctx), "s", "evt1009", nil, unwanted(t), idempotency.WithWait(0))
	requireError(t, err, context.DeadlineExceeded)

	requireError(t, tx.Commit().Error, nil)
	if n := read[int](t, db, "SELECT count(*) FROM idempotency_keys"); n != 1010 {
		t.Errorf("%d keys", n)
	}
	// Another transaction has its own share.
	w.take()
	requireError(t, db.Transaction(func(tx *gorm.DB) error { claim(tx, 2000); return nil }), nil)
	if w.seen("claim") != 1 {
		t.Error("the next transaction claims without a lock")
	}
}
