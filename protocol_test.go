package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
)

// Case C20: of many deliveries exactly one wins, decided by the returned row, in every mode of the driver.
func TestExactlyOneDeliveryWins(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		for _, prepare := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, PrepareStmt %t", mode, prepare), func(t *testing.T) {
				t.Parallel()
				db := open(t, setup{
					dsn:  withParameter(gormtest.DSN(t), "default_query_exec_mode", mode),
					gorm: gorm.Config{PrepareStmt: prepare}, conns: 10,
				})
				var deliveries []*delivery
				for range 10 {
					deliveries = append(deliveries, deliver(db, "evt", idempotency.WithWait(never)))
				}
				won := 0
				for _, d := range deliveries {
					result, err := d.end(t)
					requireError(t, err, nil)
					if !result.Replayed {
						won++
					}
					if result.Status != 201 || string(result.Body) != `{"order":"evt"}` {
						t.Errorf("answer %d %s", result.Status, result.Body)
					}
				}
				if won != 1 {
					t.Errorf("%d deliveries won", won)
				}
				requireEffects(t, db, "evt", 1)
				requireIdle(t, db)
			})
		}
	}
}

// Case C20: no row comes back from a claim that failed either, and that is no duplicate.
func TestFailedClaimIsNoDuplicate(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	mustExec(t, db, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused' USING ERRCODE = 'P0001'; END $$`)
	mustExec(t, db, `CREATE TRIGGER refuse BEFORE INSERT ON idempotency_keys FOR EACH ROW WHEN (NEW.event_id = 'refused') EXECUTE FUNCTION refuse()`)
	_, err := idempotency.Do(db, "s", "refused", nil, unwanted(t))
	requireState(t, err, "P0001")
	requireNoVerdict(t, err)
	err = db.Transaction(func(tx *gorm.DB) error {
		_, err := idempotency.Do(tx, "s", "refused", nil, unwanted(t))
		requireState(t, err, "P0001")
		requireNoVerdict(t, err)
		return placeOrderWithoutAnswer(tx, "caller")
	})
	requireError(t, err, nil)
	requireEffects(t, db, "caller", 1)
	requireIdle(t, db)
}

// placeOrderWithoutAnswer is what a caller writes outside of any handler.
func placeOrderWithoutAnswer(tx *gorm.DB, event string) error {
	return tx.Create(&order{Event: event}).Error
}

// Case C25: claim and lookup are two statements, so the loser of a race always learns who won.
func TestLoserOfARaceLearnsWhoWon(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	// Two pools, as of two processes: the gate of one would let nobody race.
	racers := []*gorm.DB{open(t, setup{dsn: dsn}), open(t, setup{dsn: dsn})}
	const rounds = 200
	for round := range rounds {
		id := fmt.Sprintf("evt%d", round)
		var start, end sync.WaitGroup
		start.Add(1)
		var won, cached, mismatch, inFlight atomic.Int32
		for i, db := range racers {
			body := make([]byte, i*(round%2)) // in every other round the payloads differ
			end.Go(func() {
				start.Wait()
				result, err := idempotency.Do(db, "s", id, body, placeOrder(id), idempotency.WithWait(0))
				switch {
				case errors.Is(err, idempotency.ErrInFlight):
					inFlight.Add(1)
				case errors.Is(err, idempotency.ErrDigestMismatch) && round%2 == 1:
					mismatch.Add(1)
				case err != nil:
					t.Errorf("round %d: %v", round, err)
				case result.Replayed && round%2 == 0:
					cached.Add(1)
				case !result.Replayed:
					won.Add(1)
				default:
					t.Errorf("round %d: another payload was replayed", round)
				}
			})
		}
		start.Done()
		end.Wait()
		if won.Load() != 1 || cached.Load()+mismatch.Load()+inFlight.Load() != 1 {
			t.Errorf("round %d: %d won, %d cached, %d mismatch, %d in flight",
				round, won.Load(), cached.Load(), mismatch.Load(), inFlight.Load())
		}
	}
	if n := read[int](t, racers[0], "SELECT count(*) FROM orders"); n != rounds {
		t.Errorf("%d effects in %d rounds", n, rounds)
	}
}

// Case C26: an expired key that is swept between the lost claim and the lookup is claimed again, at once and in the same
// transaction. "In flight" would make the sender come back for no reason.
func TestKeySweptBetweenClaimAndLookupIsClaimedAgain(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	db, w := openWired(t, setup{dsn: dsn})
	sweeper := open(t, setup{dsn: dsn})
	for name, run := range map[string]func(id string) (*idempotency.Result, error){
		"standalone": func(id string) (*idempotency.Result, error) {
			return idempotency.Do(db, "s", id, nil, placeOrder(id), idempotency.WithWait(0))
		},
		"joined": func(id string) (result *idempotency.Result, err error) {
			err = db.Transaction(func(tx *gorm.DB) error {
				result, err = idempotency.Do(tx, "s", id, nil, placeOrder(id))
				return err
			})
			return result, err
		},
	} {
		execute(t, db, name)
		w.at("look up", func(*pgx.Conn) {
			mustExec(t, sweeper, "DELETE FROM idempotency_keys WHERE event_id = ?", name)
		})
		w.take()
		result, err := run(name)
		requireError(t, err, nil)
		if result.Replayed {
			t.Errorf("%s: a swept key was replayed", name)
		}
		if steps := strings.Join(w.steps(), ", "); !strings.Contains(steps, "claim, look up, claim, order, complete") {
			t.Errorf("%s: statements %s", name, steps)
		}
		requireEffects(t, db, name, 2) // before the sweep, and after
		requireReplay(t, db, name)
	}
}

// Case C26 once more: a sweep whose delete has not committed keeps the claim waiting in the server, and the claim wins
// when it has.
func TestClaimWaitsForTheSweepOfItsKey(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	db, sweeper := open(t, setup{dsn: dsn}), open(t, setup{dsn: dsn})
	execute(t, db, "evt")
	sweep := sweeper.Begin()
	defer sweep.Rollback()
	mustExec(t, sweep, "DELETE FROM idempotency_keys")
	d := deliver(db, "evt")
	eventually(t, "the claim waits for the delete", func() bool {
		return read[int](t, sweep, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == 1
	})
	requireError(t, sweep.Commit().Error, nil)
	if result, err := d.end(t); err != nil || result.Replayed {
		t.Errorf("delivery after the sweep: %+v, %v", result, err)
	}
	requireEffects(t, db, "evt", 2)
}

// Case C66: what a delivery is told depends on what becomes of the one before it: that one's answer, its own turn after a
// failure, or in flight if it lasts longer than the wait. Deliveries meet in the database, or in the gate of one process.
func TestDuplicateIsToldWhatBecameOfTheWinner(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	db := open(t, setup{dsn: dsn})
	for name, duplicates := range map[string]*gorm.DB{"same process": db, "another process": open(t, setup{dsn: dsn})} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := func(what string) string { return name + what }

			winner := hold(t, db, "s", id("commits"), nil)
			d := deliver(duplicates, id("commits"), idempotency.WithWait(never))
			winner.end(nil)
			if result, err := d.end(t); err != nil || !result.Replayed || !result.ClaimedAt.Equal(winner.result.ClaimedAt) {
				t.Errorf("after a commit: %+v, %v", result, err)
			}
			requireEffects(t, db, id("commits"), 1)

			winner = hold(t, db, "s", id("fails"), nil)
			d = deliver(duplicates, id("fails"), idempotency.WithWait(never))
			winner.end(errors.New("failure"))
			if result, err := d.end(t); err != nil || result.Replayed {
				t.Errorf("after a failure: %+v, %v", result, err)
			}
			requireEffects(t, db, id("fails"), 1)

			winner = hold(t, db, "s", id("lasts"), nil)
			_, err := deliver(duplicates, id("lasts"), idempotency.WithWait(30*time.Millisecond)).end(t)
			requireError(t, err, idempotency.ErrInFlight)
			winner.end(nil)
			requireReplay(t, duplicates, id("lasts"))
			requireEffects(t, db, id("lasts"), 1)
		})
	}
}

// Case C71: nothing here takes a key over because of its age, however long its handler runs.
func TestLongHandlerIsNeverOverrun(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	config := idempotency.Config{Wait: time.Millisecond, Retention: time.Second}
	db, other := open(t, setup{dsn: dsn, config: config}), open(t, setup{dsn: dsn, config: config})
	holder := hold(t, db, "s", "evt", nil)
	// Past the wait, and past the retention.
	began := read[time.Time](t, db, "SELECT clock_timestamp()")
	eventually(t, "the retention is over", func() bool {
		for _, duplicates := range []*gorm.DB{db, other} {
			_, err := idempotency.Do(duplicates, "s", "evt", nil, unwanted(t))
			requireError(t, err, idempotency.ErrInFlight)
		}
		return read[time.Time](t, db, "SELECT clock_timestamp()").After(began.Add(1100 * time.Millisecond))
	})
	holder.end(nil)
	requireError(t, holder.err, nil)
	requireReplay(t, other, "evt")
	requireEffects(t, db, "evt", 1)
}

// Case C77: the work is undone if its answer cannot be stored, whatever the reason.
func TestEffectIsUndoneIfTheAnswerCannotBeStored(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		trigger string // of the completion, in PL/pgSQL
		handler string // what the handler does to its own key
		state   string
	}{
		"a trigger fails":                   {trigger: `RAISE 'no' USING ERRCODE = '42501'`, state: "42501"},
		"a trigger skips":                   {trigger: `RETURN NULL`},
		"the handler has deleted its key":   {handler: `DELETE FROM idempotency_keys`},
		"the handler has answered its key":  {handler: `UPDATE idempotency_keys SET response_status = 200`},
		"the handler has renamed its event": {handler: `UPDATE idempotency_keys SET event_id = 'else'`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t, setup{})
			if test.trigger != "" {
				mustExec(t, db, `CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN `+test.trigger+`; END $$`)
				mustExec(t, db, `CREATE TRIGGER spoil BEFORE UPDATE ON idempotency_keys FOR EACH ROW EXECUTE FUNCTION spoil()`)
			}
			handler := func(tx *gorm.DB) error {
				if test.handler != "" {
					// Past the guard, as code on a *sql.Tx goes.
					if _, err := tx.Statement.ConnPool.ExecContext(tx.Statement.Context, test.handler); err != nil {
						t.Error(err)
					}
				}
				return placeOrder("evt")(tx)
			}
			requireSpoiled := func(result *idempotency.Result, err error) {
				t.Helper()
				if err == nil || result != nil {
					t.Errorf("got %+v, %v", result, err)
				}
				requireNoVerdict(t, err)
				requireState(t, err, test.state)
			}
			requireSpoiled(idempotency.Do(db, "s", "evt", nil, handler))
			err := db.Transaction(func(tx *gorm.DB) error {
				requireSpoiled(idempotency.Do(tx, "s", "evt", nil, handler))
				return placeOrderWithoutAnswer(tx, "caller")
			})
			requireError(t, err, nil)
			requireEffects(t, db, "evt", 0)
			requireEffects(t, db, "caller", 1)
			requireNoKey(t, db, "s", "evt")
		})
	}
}

// Case C77: so it is if the role may not store it.
func TestEffectIsUndoneIfTheRoleMayNotStoreTheAnswer(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	db := open(t, setup{dsn: dsn})
	role := fmt.Sprintf("claimer_%d", time.Now().UnixNano())
	mustExec(t, db, "CREATE ROLE "+role)
	t.Cleanup(func() { mustExec(t, db.WithContext(context.Background()), "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	mustExec(t, db, "GRANT SELECT, INSERT ON idempotency_keys TO "+role)
	mustExec(t, db, "GRANT ALL ON orders, orders_id_seq TO "+role)
	mine := open(t, setup{dsn: dsn, conns: 1})
	mustExec(t, mine, "SET ROLE "+role)
	result, err := idempotency.Do(mine, "s", "evt", nil, placeOrder("evt"))
	if result != nil {
		t.Errorf("got %+v", result)
	}
	requireState(t, err, "42501")
	requireEffects(t, db, "evt", 0)
	requireNoKey(t, db, "s", "evt")
}

// Case C88: a delivery that failed has not been seen: the next one runs.
func TestFailedDeliveryIsNotRemembered(t *testing.T) {
	t.Parallel()
	told := &witness{}
	db := open(t, setup{config: idempotency.Config{Observe: told.observe}})
	errHandler := errors.New("handler")
	for range 3 {
		_, err := idempotency.Do(db, "s", "evt", nil, func(tx *gorm.DB) error {
			return errors.Join(placeOrder("evt")(tx), errHandler)
		})
		requireError(t, err, errHandler)
		requireNoKey(t, db, "s", "evt")
	}
	execute(t, db, "evt")
	requireReplay(t, db, "evt")
	requireEffects(t, db, "evt", 1)
	told.require(t, idempotency.Failed, idempotency.Failed, idempotency.Failed, idempotency.Executed, idempotency.Replayed)
}

// The table of one name in two schemas is two tables, and their keys have nothing to do with each other: not even their
// advisory locks.
func TestSearchPathsKeepTheirKeysApart(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	public := open(t, setup{dsn: dsn})
	mustExec(t, public, "CREATE SCHEMA app")
	mustExec(t, public, "CREATE TABLE app.idempotency_keys (LIKE idempotency_keys INCLUDING ALL)")
	app := open(t, setup{dsn: withParameter(dsn, "search_path", "app")})
	holder := hold(t, public, "s", "evt", nil)
	result, err := idempotency.Do(app, "s", "evt", nil, placeOrder("evt"), idempotency.WithWait(0))
	if err != nil || result.Replayed {
		t.Errorf("the same key under another search path: %+v, %v", result, err)
	}
	holder.end(nil)
	requireError(t, holder.err, nil)
	requireEffects(t, public, "evt", 1)
	requireEffects(t, app, "evt", 1)
}

// Many events, each delivered many times by several processes' pools, some of whose handlers fail: each takes effect once.
func TestStormTakesEffectOnce(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	pools := []*gorm.DB{open(t, setup{dsn: dsn, conns: 4}), open(t, setup{dsn: dsn, conns: 4}), open(t, setup{dsn: dsn, conns: 4})}
	const events, copies = 40, 9
	var failures [events]atomic.Int32
	var storm sync.WaitGroup
	queue := rand.Perm(events * copies)
	errOnce := errors.New("the first attempt of every third event fails")
	for worker := range 12 {
		storm.Go(func() {
			for i := worker; i < len(queue); i += 12 {
				event := queue[i] % events
				id := fmt.Sprintf("evt%d", event)
				_, err := idempotency.Do(pools[i%len(pools)], "s", id, nil, func(tx *gorm.DB) error {
					if event%3 == 0 && failures[event].Add(1) == 1 {
						return errors.Join(placeOrder(id)(tx), errOnce)
					}
					return placeOrder(id)(tx)
				}, idempotency.WithWait(never))
				if err != nil && !errors.Is(err, errOnce) {
					t.Error(err)
				}
			}
		})
	}
	storm.Wait()
	type count struct {
		Event string
		N     int
	}
	var counts []count
	if err := pools[0].Raw("SELECT event, count(*) AS n FROM orders GROUP BY event").Scan(&counts).Error; err != nil {
		t.Fatal(err)
	}
	if len(counts) != events {
		t.Errorf("%d events took effect, want %d", len(counts), events)
	}
	for _, c := range counts {
		if c.N != 1 {
			t.Errorf("%s took effect %d times", c.Event, c.N)
		}
	}
}
