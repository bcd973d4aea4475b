//go:build unix

package idempotency_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
	"github.com/gorm-idempotency/idempotency/internal/pglocal"
)

func (c *child) signal(signal syscall.Signal) {
	c.t.Helper()
	requireError(c.t, c.command.Process.Signal(signal), nil)
}

// Case C67: a process that is killed in its handler, in the completion, after it, or in the commit leaves no key stuck.
// Whoever comes next runs, or gets the answer of a commit that the server has carried out.
func TestKilledProcessLeavesNoKeyStuck(t *testing.T) {
	role := os.Getenv(childRole)
	if dsn := os.Getenv(childDSN); dsn != "" {
		db := openAsChild(t, dsn, afterStatements{logger.Discard, func(step string) {
			if step == role {
				tell("reached", step)
				select {} // until the parent kills us
			}
		}})
		_, err := idempotency.Do(db, "s", role, nil, placeOrder(role))
		t.Fatalf("the child went on: %v", err)
	}
	t.Parallel()
	dsn := gormtest.DSN(t)
	db := open(t, setup{dsn: dsn})
	gate := open(t, setup{dsn: dsn}).Begin() // holds up the server itself, in the completion or the commit
	defer gate.Rollback()
	const lock = 4711
	mustExec(t, gate, "SELECT pg_advisory_xact_lock(?)", lock)
	mustExec(t, db, fmt.Sprintf(`CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		PERFORM pg_advisory_xact_lock_shared(%d); RETURN NEW; END $$`, lock))
	mustExec(t, db, `CREATE TRIGGER completion BEFORE UPDATE ON idempotency_keys FOR EACH ROW
		WHEN (NEW.event_id = 'in the completion') EXECUTE FUNCTION stop()`)
	mustExec(t, db, `CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON idempotency_keys DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
		WHEN (NEW.event_id = 'in the commit') EXECUTE FUNCTION stop()`)
	held := func() bool {
		return read[bool](t, db, "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = ? AND NOT granted)", lock)
	}

	for _, role := range []string{"order", "complete"} { // in the handler, and between completion and commit
		c := spawn(t, dsn, role)
		c.requireSays("reached")
		_, err := idempotency.Do(db, "s", role, nil, unwanted(t), idempotency.WithWait(0))
		requireError(t, err, idempotency.ErrInFlight)
		c.signal(syscall.SIGKILL)
		result, err := idempotency.Do(db, "s", role, nil, placeOrder(role), idempotency.WithWait(never))
		if err != nil || result.Replayed {
			t.Errorf("after a kill at %q: %+v, %v", role, result, err)
		}
		requireEffects(t, db, role, 1)
	}
	var dead []string
	for _, role := range []string{"in the completion", "in the commit"} {
		c := spawn(t, dsn, role)
		eventually(t, "the server waits "+role, held)
		c.signal(syscall.SIGKILL)
		_ = c.command.Wait()
		_, err := idempotency.Do(db, "s", role, nil, unwanted(t), idempotency.WithWait(0))
		requireError(t, err, idempotency.ErrInFlight) // the server has not noticed
		dead = append(dead, role)
		if role == "in the completion" {
			requireError(t, gate.Commit().Error, nil)
			result, err := idempotency.Do(db, "s", role, nil, placeOrder(role), idempotency.WithWait(never))
			if err != nil || result.Replayed {
				t.Errorf("after a kill %s: %+v, %v", role, result, err)
			}
			gate = open(t, setup{dsn: dsn}).Begin()
			defer gate.Rollback()
			mustExec(t, gate, "SELECT pg_advisory_xact_lock(?)", lock)
		}
	}
	// COMMIT had reached the server, which carries it out for nobody.
	requireError(t, gate.Commit().Error, nil)
	result, err := idempotency.Do(db, "s", "in the commit", nil, placeOrder("in the commit"), idempotency.WithWait(never))
	if err != nil || !result.Replayed {
		t.Errorf("after a kill in the commit: %+v, %v", result, err)
	}
	for _, role := range dead {
		requireEffects(t, db, role, 1)
	}
}

// Case C67: a process that is frozen, with its connection up, holds its key until the server gives up on it. That takes
// idle_in_transaction_session_timeout, since the server cannot tell it from a slow handler. When it thaws, its commit
// fails.
func TestFrozenProcessLosesItsKey(t *testing.T) {
	const event = "evt"
	if dsn := os.Getenv(childDSN); dsn != "" {
		db := openAsChild(t, dsn, logger.Discard)
		result, err := idempotency.Do(db, "s", event, nil, func(tx *gorm.DB) error {
			if err := placeOrder(event)(tx); err != nil {
				return err
			}
			tell("holding", os.Getpid())
			_, err := bufio.NewReader(os.Stdin).ReadString('\n')
			return err
		})
		tell("got", fmt.Sprintf("%v %v", result != nil, err))
		return
	}
	t.Parallel()
	dsn := gormtest.DSN(t)
	db := open(t, setup{dsn: dsn})
	c := spawn(t, withParameter(dsn, "idle_in_transaction_session_timeout", "1000"), "")
	c.requireSays("holding")
	c.signal(syscall.SIGSTOP)
	result, err := idempotency.Do(db, "s", event, nil, placeOrder(event), idempotency.WithWait(never))
	if err != nil || result.Replayed {
		t.Errorf("after the timeout: %+v, %v", result, err)
	}
	c.signal(syscall.SIGCONT)
	_, err = io.WriteString(c.say, "go\n")
	requireError(t, err, nil)
	if got := c.requireSays("got"); !strings.HasPrefix(got, "false ") || strings.HasSuffix(got, "<nil>") {
		t.Errorf("the frozen process got %s", got)
	}
	requireEffects(t, db, event, 1)
	requireReplay(t, db, event)
}

// Case C43: with synchronous_commit off a crash of the server may lose what was acknowledged a moment ago, but never the
// key without the effect, or the effect without the key. Then the delivery runs again, which is right for the database
// and says nothing of effects elsewhere.
func TestServerCrashLosesKeyAndEffectTogether(t *testing.T) {
	t.Parallel()
	server, err := pglocal.Start(t.Context(), pglocal.Options{Settings: map[string]string{
		"synchronous_commit": "off", "wal_writer_delay": "10s", "restart_after_crash": "on",
	}})
	requireError(t, err, nil)
	t.Cleanup(func() { requireErrorIs(t, server.Stop(), nil) })
	db := open(t, setup{dsn: server.DSN("postgres")})
	requireError(t, db.AutoMigrate(&idempotency.IdempotencyKey{}), nil)
	mustExec(t, db, "CHECKPOINT")
	const events = 20
	for i := range events {
		execute(t, db, fmt.Sprintf("evt%d", i))
	}
	pid := read[int](t, db, "SELECT pg_backend_pid()")
	requireError(t, syscall.Kill(pid, syscall.SIGKILL), nil) // of a backend: the server starts over from its log
	eventually(t, "the server is back", func() bool {
		conn, err := pgx.Connect(t.Context(), server.DSN("postgres"))
		if err != nil {
			return false
		}
		return conn.Close(t.Context()) == nil
	})
	db = open(t, setup{dsn: server.DSN("postgres")})
	lost := 0
	for i := range events {
		id := fmt.Sprintf("evt%d", i)
		_, err := idempotency.Lookup(t.Context(), db, "s", id)
		if there := err == nil; there != (effects(t, db, id) == 1) {
			t.Errorf("%s: the key is there: %t, effects %d", id, there, effects(t, db, id))
		} else if !there {
			lost++
		}
		if _, err := idempotency.Do(db, "s", id, nil, placeOrder(id)); err != nil {
			t.Error(err)
		}
		requireEffects(t, db, id, 1)
	}
	t.Logf("%d of %d were lost", lost, events)
}
