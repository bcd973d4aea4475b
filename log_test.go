package idempotency_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
)

// Each path through the protocol costs exactly these round trips, and every claim is within an explicit transaction: one
// outside, which database/sql may repeat after a broken connection, could win twice (case C48).
func TestStatementsOfEachPath(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	db, w := openWired(t, setup{dsn: dsn})
	other := open(t, setup{dsn: dsn})
	w.watch(func(conn *pgx.Conn, text string) {
		if strings.Contains(text, "idempotency_keys") && conn.PgConn().TxStatus() != 'T' {
			t.Errorf("outside of a transaction: %s", text)
		}
	})
	silent := func(tx *gorm.DB) error { return tx.Create(&order{Event: "silent"}).Error }
	errHandler := errors.New("handler")
	do := func(db *gorm.DB, id string, fc func(*gorm.DB) error) (*idempotency.Result, error) {
		return idempotency.Do(db, "s", id, nil, fc, idempotency.WithWait(0))
	}

	_, err := do(db, "answered", placeOrder("answered"))
	requireError(t, err, nil)
	w.requireSteps(t, "begin", "claim", "order", "complete", "commit")

	_, err = do(db, "silent", silent)
	requireError(t, err, nil)
	w.requireSteps(t, "begin", "claim", "order", "commit")

	_, err = do(db, "answered", unwanted(t))
	requireError(t, err, nil)
	w.requireSteps(t, "begin", "claim", "look up", "rollback")

	_, err = idempotency.Do(db, "s", "answered", []byte("changed"), unwanted(t))
	requireError(t, err, idempotency.ErrDigestMismatch)
	w.requireSteps(t, "begin", "claim", "look up", "rollback")

	held := hold(t, other, "s", "held", nil)
	_, err = do(db, "held", unwanted(t))
	requireError(t, err, idempotency.ErrInFlight)
	w.requireSteps(t, "begin", "claim", "look up", "claim", "look up", "rollback")

	_, err = do(db, "failed", func(tx *gorm.DB) error { return errors.Join(silent(tx), errHandler) })
	requireError(t, err, errHandler)
	w.requireSteps(t, "begin", "claim", "order", "rollback")

	tx := db.Begin()
	defer tx.Rollback()
	w.take()
	const savepoint, release, back = "SAVEPOINT idempotency_1", "RELEASE SAVEPOINT idempotency_1", "ROLLBACK TO SAVEPOINT idempotency_1"

	_, err = do(tx, "joined", placeOrder("joined"))
	requireError(t, err, nil)
	w.requireSteps(t, savepoint, "claim", "order", "complete", release)

	_, err = do(tx, "joined silent", silent)
	requireError(t, err, nil)
	w.requireSteps(t, savepoint, "claim", "order", release)

	_, err = do(tx, "answered", unwanted(t))
	requireError(t, err, nil)
	w.requireSteps(t, savepoint, "claim", "look up", back, release)

	_, err = do(tx, "held", unwanted(t))
	requireError(t, err, idempotency.ErrInFlight)
	w.requireSteps(t, savepoint, "claim", "look up", "claim", "look up", back, release)

	_, err = do(tx, "joined failed", func(tx *gorm.DB) error { return errors.Join(silent(tx), errHandler) })
	requireError(t, err, errHandler)
	w.requireSteps(t, savepoint, "claim", "order", back, release)

	for _, id := range []string{"", "\xff", strings.Repeat("x", 1025)} {
		_, err = do(tx, id, unwanted(t))
		requireError(t, err, idempotency.ErrInvalidKey)
	}
	w.requireSteps(t)
	held.end(nil)
}

// Case C17: what happens every day is not worth a warning.
func TestExpectedMissesAreNotLogged(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	lines := &journal{}
	db := open(t, setup{dsn: dsn, gorm: gorm.Config{Logger: lines}})
	other := open(t, setup{dsn: dsn})

	execute(t, db, "evt")
	requireReplay(t, db, "evt")
	requireNoKey(t, db, "s", "none")
	requireError(t, idempotency.Forget(t.Context(), db, "s", "none"), idempotency.ErrKeyNotFound)
	held := hold(t, other, "s", "held", nil)
	for _, wait := range []time.Duration{0, 50 * time.Millisecond} {
		_, err := idempotency.Do(db, "s", "held", nil, unwanted(t), idempotency.WithWait(wait))
		requireError(t, err, idempotency.ErrInFlight)
	}
	held.end(nil)
	_, err := idempotency.Do(db, "s", "evt", []byte("changed"), unwanted(t))
	requireError(t, err, idempotency.ErrDigestMismatch)

	for _, line := range append(lines.of("warn", "error"), failedTraces(lines)...) {
		t.Errorf("logged: %s", line)
	}
}

// failedTraces are the statements that were logged with an error: GORM's logger turns them into lines of level Error.
func failedTraces(lines *journal) (failed []string) {
	for _, line := range lines.of("trace") {
		if !strings.HasSuffix(line, ": <nil>") {
			failed = append(failed, line)
		}
	}
	return failed
}

// Case C18: a duplicate that waits does so outside of the server, so no statement of it is slow, and even a logger that
// writes down everything gets neither payload, digest nor answer.
func TestLogShowsNoPayloadNoDigestAndNoAnswer(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	var text lockedBuffer
	db := open(t, setup{dsn: dsn, gorm: gorm.Config{Logger: logger.New(log.New(&text, "", 0), logger.Config{
		SlowThreshold: time.Nanosecond, LogLevel: logger.Info, // every statement, as slow ones are shown
	})}})
	watching, w := openWired(t, setup{dsn: dsn})
	payload := []byte(`{"card": "SECRET"}`)
	answer := func(tx *gorm.DB) error { return idempotency.Respond(tx, 200, map[string]string{"token": "SECRET"}) }

	holding, finish := make(chan struct{}), make(chan struct{})
	first := make(chan error, 1)
	go func() {
		_, err := idempotency.Do(db, "s", "evt", payload, func(tx *gorm.DB) error {
			close(holding)
			<-finish
			return answer(tx)
		})
		first <- err
	}()
	<-holding
	duplicate := make(chan error, 1)
	go func() {
		_, err := idempotency.Do(watching, "s", "evt", payload, unwanted(t), idempotency.WithWait(never))
		duplicate <- err
	}()
	// While it waits, again and again: nobody waits in the server.
	for rounds := 1; rounds <= 5; rounds++ {
		eventually(t, "the duplicate asks again", func() bool { return w.seen("rollback") >= rounds })
		if n := read[int](t, watching, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"); n > 0 {
			t.Errorf("%d connections wait for a lock", n)
		}
	}
	close(finish)
	requireError(t, <-first, nil)
	requireError(t, <-duplicate, nil)

	_, err := idempotency.Do(db, "s", "evt", payload, unwanted(t))
	requireError(t, err, nil)
	_, err = idempotency.Do(db, "s", "evt", []byte("SECRET too"), unwanted(t))
	requireError(t, err, idempotency.ErrDigestMismatch)
	_, err = idempotency.Do(db, "s", "evt2", payload, func(tx *gorm.DB) error {
		// The answer meets an error of the database.
		return errors.Join(answer(tx), tx.Exec("SELECT 1/0").Error)
	})
	requireState(t, err, "22012")

	logged := text.String()
	if !strings.Contains(logged, "pg_try_advisory_xact_lock") {
		t.Errorf("the claim is not logged:\n%s", logged)
	}
	digest := sha256.Sum256(payload)
	for _, secret := range []string{"SECRET", hex.EncodeToString(digest[:]), string(digest[:4])} {
		if strings.Contains(logged, secret) {
			t.Errorf("the log contains %q:\n%s", secret, logged)
		}
	}
}

type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
