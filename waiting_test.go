package idempotency_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
)

// While a duplicate waits for another process, the only connection of its pool is free for others.
func TestWaitingHoldsNoConnection(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	db, w := openWired(t, setup{dsn: dsn, conns: 1})
	holder := hold(t, open(t, setup{dsn: dsn}), "s", "evt", nil)
	duplicate := deliver(db, "evt", idempotency.WithWait(never))
	for rounds := 1; rounds <= 5; rounds++ {
		eventually(t, "the duplicate asks again", func() bool { return w.seen("rollback") >= rounds })
		pool, err := db.DB()
		requireError(t, err, nil)
		conn, err := pool.Conn(t.Context()) // the pool's only one, for a moment
		requireError(t, err, nil)
		requireError(t, conn.PingContext(t.Context()), nil)
		requireError(t, conn.Close(), nil)
	}
	if duplicate.ended() {
		t.Error("the duplicate has not waited")
	}
	holder.end(nil)
	if result, err := duplicate.end(t); err != nil || !result.Replayed {
		t.Errorf("%+v, %v", result, err)
	}
}

// A storm of duplicates queues in memory: it takes one connection, however large it is, and none beside its holder's if
// that is in the same process.
func TestStormOnOneKeyTakesOneConnection(t *testing.T) {
	t.Parallel()
	for name, sameProcess := range map[string]bool{"holder in this process": true, "holder in another": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := gormtest.DSN(t)
			db, w := openWired(t, setup{dsn: dsn})
			var mu sync.Mutex
			busy, most := map[uint32]bool{}, 0 // the connections that are in a transaction
			w.watch(func(conn *pgx.Conn, text string) {
				mu.Lock()
				defer mu.Unlock()
				switch stepOf(text) {
				case "begin":
					busy[conn.PgConn().PID()] = true
					most = max(most, len(busy))
				case "commit", "rollback":
					delete(busy, conn.PgConn().PID())
				}
			})
			holding := db
			if !sameProcess {
				holding = open(t, setup{dsn: dsn})
			}
			holder := hold(t, holding, "s", "evt", nil)
			var storm []*delivery
			for range 100 {
				storm = append(storm, deliver(db, "evt", idempotency.WithWait(never)))
			}
			if !sameProcess {
				eventually(t, "one of them asks a few times", func() bool { return w.seen("rollback") >= 5 })
			}
			holder.end(nil)
			for _, d := range storm {
				if result, err := d.end(t); err != nil || !result.Replayed {
					t.Errorf("%+v, %v", result, err)
				}
			}
			w.watch(nil)
			if most != 1 {
				t.Errorf("%d connections at once, want 1", most)
			}
			requireEffects(t, db, "evt", 1)
		})
	}
}

// A call that does not wait is told from memory that the event is in flight, once the key is won. An occupant of the gate
// that itself waits for another process proves nothing: then the database is asked.
func TestCallThatDoesNotWaitIsToldAtOnce(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	db, w := openWired(t, setup{dsn: dsn})
	holder := hold(t, db, "s", "evt", nil)
	w.take()
	_, err := idempotency.Do(db, "s", "evt", nil, unwanted(t), idempotency.WithWait(0))
	requireError(t, err, idempotency.ErrInFlight)
	w.requireSilent(t)
	holder.end(nil)

	foreign := hold(t, open(t, setup{dsn: dsn}), "s", "evt2", nil)
	waiting := deliver(db, "evt2", idempotency.WithWait(never))
	eventually(t, "it waits for the other process", func() bool { return w.seen("rollback") >= 1 })
	asked := make(chan struct{})
	w.at("claim", func(*pgx.Conn) { close(asked) })
	_, err = idempotency.Do(db, "s", "evt2", nil, unwanted(t), idempotency.WithWait(0))
	requireError(t, err, idempotency.ErrInFlight)
	requireClosed(t, asked, "the database is asked")
	foreign.end(nil)
	if result, err := waiting.end(t); err != nil || !result.Replayed {
		t.Errorf("%+v, %v", result, err)
	}
}

// The gate opens before the work that follows the commit, which may be slow, or deliver the same event again.
func TestGateOpensBeforeAfterCommit(t *testing.T) {
	t.Parallel()
	db := open(t, setup{conns: 1})
	replayed := false
	_, err := idempotency.Do(db, "s", "evt", nil, func(tx *gorm.DB) error {
		return idempotency.AfterCommit(tx, func(ctx context.Context) {
			result, err := idempotency.Do(db.WithContext(ctx), "s", "evt", nil, unwanted(t), idempotency.WithWait(0))
			replayed = err == nil && result.Replayed
		})
	})
	requireError(t, err, nil)
	if !replayed {
		t.Error("the event was not delivered again after its commit")
	}
}

// Case C45: those that wait hold no connection, so that the one that works gets all it needs.
func TestWaitersDoNotStarveTheHolder(t *testing.T) {
	t.Parallel()
	const conns = 3
	db := open(t, setup{conns: conns})
	holder := hold(t, db, "s", "evt", nil)
	var duplicates []*delivery
	for range conns + 10 {
		duplicates = append(duplicates, deliver(db, "evt", idempotency.WithWait(never)))
	}
	// Unrelated queries get a connection, all that are left even.
	for range 20 {
		var queries sync.WaitGroup
		for range conns - 1 {
			queries.Go(func() { effects(t, db, "evt") })
		}
		queries.Wait()
	}
	for _, d := range duplicates {
		if d.ended() {
			t.Errorf("a duplicate has not waited: %v", d.err)
		}
	}
	holder.end(nil)
	for _, d := range duplicates {
		if result, err := d.end(t); err != nil || !result.Replayed {
			t.Errorf("%+v, %v", result, err)
		}
	}
	requireEffects(t, db, "evt", 1)
	requireIdle(t, db)
}

// Case C45: handlers that wrongly use the outer handle, while each connection of the pool is one of theirs, fail at once
// and say what to use instead, as long as the context tells where they come from.
func TestHandlersOnTheOuterHandleFailInsteadOfHanging(t *testing.T) {
	t.Parallel()
	const conns = 2
	db := open(t, setup{conns: conns})
	var all, calls sync.WaitGroup
	all.Add(conns)
	for i := range conns {
		calls.Go(func() {
			_, err := idempotency.Do(db, "s", fmt.Sprintf("evt%d", i), nil, func(tx *gorm.DB) error {
				all.Done()
				all.Wait() // the pool is empty now
				return db.WithContext(tx.Statement.Context).Create(&order{Event: "foreign"}).Error
			})
			requireErrorIs(t, err, idempotency.ErrForeignWrite)
		})
	}
	calls.Wait()
	requireEffects(t, db, "foreign", 0)
	requireIdle(t, db)
}

// Case C2: GORM's statement cache makes callers wait for whoever prepares first. With duplicates that held connections that
// would be a deadlock; they hold none, and our own statements are not in the cache.
func TestStatementCacheOfASmallPoolDoesNotDeadlock(t *testing.T) {
	t.Parallel()
	db := open(t, setup{conns: 2, gorm: gorm.Config{PrepareStmt: true}})
	for round := range 20 {
		id := fmt.Sprintf("evt%d", round)
		statement := fmt.Sprintf("SELECT count(*) FROM orders WHERE id > %d", round) // new in each round
		claimed, work := make(chan struct{}), make(chan struct{})
		var calls sync.WaitGroup
		calls.Go(func() {
			_, err := idempotency.Do(db, "s", id, nil, func(tx *gorm.DB) error {
				close(claimed)
				<-work
				var n int
				if err := tx.Raw(statement).Scan(&n).Error; err != nil {
					return err
				}
				return placeOrder(id)(tx)
			})
			requireErrorIs(t, err, nil)
		})
		<-claimed
		for range 5 {
			calls.Go(func() {
				result, err := idempotency.Do(db, "s", id, nil, unwanted(t), idempotency.WithWait(never))
				if err != nil || !result.Replayed {
					t.Errorf("%+v, %v", result, err)
				}
			})
		}
		calls.Go(func() {
			<-work
			var n int
			requireErrorIs(t, db.Raw(statement).Scan(&n).Error, nil)
		})
		close(work)
		done := make(chan struct{})
		go func() { defer close(done); calls.Wait() }()
		requireClosed(t, done, "all calls of the round return")
		requireEffects(t, db, id, 1)
	}
	requireIdle(t, db)
}
