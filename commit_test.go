package idempotency_test

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
	"github.com/gorm-idempotency/idempotency/internal/faultproxy"
	"github.com/gorm-idempotency/idempotency/pipeline"
)

// Cases C28 and C29: a handler that swallows a database error has no effect, whatever it returns: its transaction is
// aborted, and a commit of it rolls back. One that guards the risky statement with a savepoint of its own succeeds.
func TestSwallowedErrorCommitsNothing(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	mustExec(t, db, "INSERT INTO orders (id, event) VALUES (1001, 'taken')")
	violate := func(tx *gorm.DB) error { return tx.Create(&order{ID: 1001, Event: "twice"}).Error }
	swallow := func(tx *gorm.DB) error {
		requireState(t, violate(tx), "23505")
		return nil
	}
	answer := func(tx *gorm.DB) error {
		_ = violate(tx)
		return idempotency.Respond(tx, 200, "done")
	}
	for name, handler := range map[string]func(*gorm.DB) error{"without an answer": swallow, "with an answer": answer} {
		result, err := idempotency.Do(db, "s", name, nil, handler)
		if result != nil {
			t.Errorf("%s: result %+v", name, result)
		}
		requireNoVerdict(t, err)
		requireNoKey(t, db, "s", name)
		execute(t, db, name)

		err = db.Transaction(func(tx *gorm.DB) error {
			_, err := idempotency.Do(tx, "joined", name, nil, handler)
			requireState(t, err, "25P02")
			return placeOrderWithoutAnswer(tx, "caller")
		})
		requireError(t, err, nil)
		requireNoKey(t, db, "joined", name)
	}
	requireEffects(t, db, "caller", 2)

	_, err := idempotency.Do(db, "s", "guarded", nil, func(tx *gorm.DB) error {
		requireState(t, tx.Transaction(violate), "23505")
		return placeOrder("guarded")(tx)
	})
	requireError(t, err, nil)
	requireReplay(t, db, "guarded")
	requireEffects(t, db, "guarded", 1)
}

// Case C29: what the database refuses at the commit is the call's error, and certain.
func TestConstraintThatFailsAtTheCommit(t *testing.T) {
	t.Parallel()
	told := &witness{}
	db := open(t, setup{config: idempotency.Config{Observe: told.observe}})
	mustExec(t, db, "CREATE TABLE items (order_id bigint REFERENCES orders DEFERRABLE INITIALLY DEFERRED)")
	result, err := idempotency.Do(db, "s", "evt", nil, func(tx *gorm.DB) error {
		mustExec(t, tx, "INSERT INTO items VALUES (1001)")
		return placeOrder("evt")(tx)
	})
	if result != nil {
		t.Errorf("result %+v", result)
	}
	requireState(t, err, "23503")
	requireNoVerdict(t, err)
	told.require(t, idempotency.Failed)
	requireNoKey(t, db, "s", "evt")
	execute(t, db, "evt")
	requireEffects(t, db, "evt", 1)
}

// Case C29: a connection that dies just before COMMIT leaves the outcome open as far as anybody here knows. Nothing is
// returned as final, and the next delivery finds out.
func TestBackendThatDiesBeforeTheCommit(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	told := &witness{}
	db, w := openWired(t, setup{dsn: dsn, config: idempotency.Config{Observe: told.observe}})
	admin := open(t, setup{dsn: dsn})
	w.at("commit", func(conn *pgx.Conn) { kill(t, admin, conn.PgConn().PID()) })
	result, err := idempotency.Do(db, "s", "evt", nil, placeOrder("evt"))
	if result != nil {
		t.Errorf("result %+v", result)
	}
	requireError(t, err, idempotency.ErrOutcomeUnknown)
	told.require(t, idempotency.OutcomeUnknown)
	requireNoKey(t, db, "s", "evt")
	execute(t, db, "evt")
	requireEffects(t, db, "evt", 1)
	requireIdle(t, db)
}

// A handler that ends the transaction itself has kept or lost its effect without the library. Nobody is told that it is
// final, and the next delivery goes by what is in the database.
func TestHandlerThatEndsItsTransaction(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	end := map[string]func(*gorm.DB) *gorm.DB{
		"Commit":   func(tx *gorm.DB) *gorm.DB { return tx.Commit() },
		"Rollback": func(tx *gorm.DB) *gorm.DB { return tx.Rollback() },
	}
	errHandler := errors.New("handler")
	for name, end := range end {
		for _, answers := range []bool{false, true} {
			for _, returns := range []error{nil, errHandler} {
				for _, joined := range []bool{false, true} {
					id := fmt.Sprintf("%s %t %v %t", name, answers, returns, joined)
					do := func(db *gorm.DB) (*idempotency.Result, error) {
						return idempotency.Do(db, "s", id, nil, func(tx *gorm.DB) error {
							requireError(t, placeOrderWithoutAnswer(tx, id), nil)
							if answers {
								requireError(t, idempotency.Respond(tx, 200, nil), nil)
							}
							requireError(t, end(tx).Error, nil)
							return returns
						})
					}
					var result *idempotency.Result
					var err error
					if joined {
						tx := db.Begin()
						result, err = do(tx)
						tx.Rollback()
					} else {
						result, err = do(db)
					}
					if result != nil {
						t.Errorf("%s: result %+v", id, result)
					}
					requireError(t, err, idempotency.ErrOutcomeUnknown)
					if returns != nil {
						requireError(t, err, errHandler)
					}
					committed := int64(0)
					if name == "Commit" {
						committed = 1
					}
					requireEffects(t, db, id, committed)
					again, err := idempotency.Do(db, "s", id, nil, placeOrder(id))
					if err != nil || again.Replayed != (committed == 1) {
						t.Errorf("%s: the next delivery: %+v, %v", id, again, err)
					}
					requireEffects(t, db, id, 1)
				}
			}
		}
	}
	requireIdle(t, db)
}

// Statements that would end the transaction, or begin one, are refused before they reach the server; savepoints of the
// handler's own are not.
func TestRawTransactionControlIsRefused(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	for i, statement := range []string{
		"COMMIT", "commit;", "/* now */ END", "ROLLBACK", "-- back\nrollback work", "ABORT", "BEGIN", "START TRANSACTION",
		"PREPARE TRANSACTION 'x'", "SELECT 1; COMMIT",
	} {
		for _, joined := range []bool{false, true} {
			id := fmt.Sprintf("evt%d %t", i, joined)
			do := func(db *gorm.DB) error {
				_, err := idempotency.Do(db, "s", id, nil, func(tx *gorm.DB) error {
					requireError(t, placeOrderWithoutAnswer(tx, id), nil)
					return tx.Exec(statement).Error
				})
				requireError(t, err, idempotency.ErrUnsupported)
				return nil
			}
			if joined {
				requireError(t, db.Transaction(do), nil)
			} else {
				requireError(t, do(db), nil)
			}
			requireEffects(t, db, id, 0)
			requireNoKey(t, db, "s", id)
		}
	}
	_, err := idempotency.Do(db, "s", "savepoints", nil, func(tx *gorm.DB) error {
		for _, statement := range []string{"SAVEPOINT a", "INSERT INTO orders (event) VALUES ('undone')", "ROLLBACK TO a", "RELEASE a"} {
			mustExec(t, tx, statement)
		}
		return placeOrder("savepoints")(tx)
	})
	requireError(t, err, nil)
	requireEffects(t, db, "undone", 0)
	requireEffects(t, db, "savepoints", 1)
}

// pools are the ways to open one: what is true of a COMMIT by itself is true of one that travels with the answer.
var pools = map[string]func(driver.Connector) *sql.DB{"plain": sql.OpenDB, "pipelined": pipeline.OpenDB}

// openThroughProxy opens a handle whose every transaction has a connection of its own, through a proxy that breaks it.
func openThroughProxy(t *testing.T, dsn string, mode pgx.QueryExecMode, pool func(driver.Connector) *sql.DB) (*gorm.DB, *faultproxy.Proxy) {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := faultproxy.Start(pgconn.NetworkAddress(config.Host, config.Port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	config.Host, config.Port, config.TLSConfig, config.Fallbacks = "127.0.0.1", proxy.Port(), nil, nil
	config.DefaultQueryExecMode = mode
	opened := pool(stdlib.GetConnector(*config))
	opened.SetMaxIdleConns(-1)
	return open(t, setup{driver: postgres.New(postgres.Config{Conn: opened})}), proxy
}

// Case C31, the product's whole promise: COMMIT was on its way when the connection broke. Whether the server made it or
// not, nobody is told that it did, nobody sends it again, and with the next delivery the effect has happened once.
func TestCommitWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	for name, pool := range pools {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testCommitWhoseAnswerIsLost(t, pool)
		})
	}
}

func testCommitWhoseAnswerIsLost(t *testing.T, pool func(driver.Connector) *sql.DB) {
	dsn := gormtest.DSN(t)
	db, proxy := openThroughProxy(t, dsn, pgx.QueryExecModeExec, pool) // prepares nothing: COMMIT is one request
	direct := open(t, setup{dsn: dsn})
	for name, test := range map[string]struct {
		fault     faultproxy.Fault
		committed bool
	}{
		"before the server sees it":   {faultproxy.CutBefore, false},
		"after the server carried it": {faultproxy.CutAfter, true},
	} {
		proxy.Follow(func(sql string) faultproxy.Fault {
			if sql == "commit" {
				return test.fault
			}
			return faultproxy.None
		})
		result, err := idempotency.Do(db, "s", name, nil, placeOrder(name))
		if result != nil {
			t.Errorf("%s: result %+v", name, result)
		}
		requireError(t, err, idempotency.ErrOutcomeUnknown)
		if !idempotency.Retryable(err) {
			t.Errorf("%s: not retryable", name)
		}
		again, err := idempotency.Do(direct, "s", name, nil, placeOrder(name), idempotency.WithWait(never))
		if err != nil || again.Replayed != test.committed || string(again.Body) != `{"order":"`+name+`"}` {
			t.Errorf("%s: the next delivery: %+v, %v", name, again, err)
		}
		requireEffects(t, direct, name, 1)
	}
}

// Case C48: the link breaks at each request of the protocol in turn, before the server has it or after, in standalone and
// in joined calls, of fresh events and of duplicates. What the call returned is true, and after the next delivery the
// effect has happened once.
func TestLinkThatBreaksAnywhere(t *testing.T) {
	t.Parallel()
	for name, pool := range pools {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testLinkThatBreaksAnywhere(t, pool)
		})
	}
}

func testLinkThatBreaksAnywhere(t *testing.T, pool func(driver.Connector) *sql.DB) {
	dsn := gormtest.DSN(t)
	direct := open(t, setup{dsn: dsn})
	for name, do := range map[string]func(db *gorm.DB, id string) error{
		"standalone": func(db *gorm.DB, id string) error {
			_, err := idempotency.Do(db, "s", id, nil, placeOrder(id), idempotency.WithWait(0))
			return err
		},
		"joined": func(db *gorm.DB, id string) error {
			return db.Transaction(func(tx *gorm.DB) error {
				_, err := idempotency.Do(tx, "s", id, nil, placeOrder(id))
				return err
			})
		},
	} {
		for _, known := range []bool{false, true} {
			db, proxy := openThroughProxy(t, dsn, pgx.QueryExecModeCacheStatement, pool)
			t.Run(fmt.Sprintf("%s, duplicate %t", name, known), func(t *testing.T) {
				t.Parallel()
				run := func(step int, fault faultproxy.Fault) (requests int) {
					id := fmt.Sprintf("%s %t %d %d", name, known, step, fault)
					if known {
						execute(t, direct, id)
					}
					var mu sync.Mutex
					proxy.Follow(func(string) faultproxy.Fault {
						mu.Lock()
						defer mu.Unlock()
						if requests++; requests == step {
							return fault
						}
						return faultproxy.None
					})
					err := do(db, id)
					happened := effects(t, direct, id) == 1
					switch {
					case err == nil && !happened:
						t.Errorf("request %d: reported, but there is no effect", step)
					case err != nil && happened && !known && name == "standalone" && !errors.Is(err, idempotency.ErrOutcomeUnknown):
						t.Errorf("request %d: there is an effect, and the error denies it: %v", step, err)
					}
					if _, err := idempotency.Do(direct, "s", id, nil, placeOrder(id), idempotency.WithWait(never)); err != nil {
						t.Errorf("request %d: the next delivery: %v", step, err)
					}
					requireEffects(t, direct, id, 1)
					mu.Lock()
					defer mu.Unlock()
					return requests
				}
				steps := run(0, faultproxy.None)
				if steps < 3 {
					t.Errorf("the protocol takes %d requests", steps)
				}
				for step := 1; step <= steps; step++ {
					run(step, faultproxy.CutBefore)
					run(step, faultproxy.CutAfter)
				}
				t.Logf("%d requests", steps)
			})
		}
	}
}
