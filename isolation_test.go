package idempotency_test

import (
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
)

var strictLevels = []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelSerializable}

// Case C27: a role's default level does not change the protocol. READ COMMITTED is asked for, so that the lookup sees what
// was committed after the claim.
func TestDefaultIsolationLevelOfTheRoleDoesNotMatter(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	db, w := openWired(t, setup{dsn: withParameter(dsn, "default_transaction_isolation", "serializable")})
	other := open(t, setup{dsn: dsn})
	result, err := idempotency.Do(db, "s", "evt", nil, func(tx *gorm.DB) error {
		if level := read[string](t, tx, "SHOW transaction_isolation"); level != "read committed" {
			t.Errorf("the handler runs at %s", level)
		}
		return placeOrder("evt")(tx)
	})
	if err != nil || result.Replayed {
		t.Fatalf("%+v, %v", result, err)
	}

	// The holder commits between the duplicate's claim and its lookup.
	holder := hold(t, other, "s", "evt2", nil)
	w.at("look up", func(*pgx.Conn) { holder.end(nil) })
	w.take()
	requireReplay(t, db, "evt2")
	w.requireSteps(t, "begin", "claim", "look up", "rollback")
}

// Case C27: at the strict levels a duplicate whose snapshot is older than the holder's commit starts over, without the
// handler, and then gets the answer.
func TestDuplicateWithAnOldSnapshotStartsOver(t *testing.T) {
	t.Parallel()
	for _, level := range strictLevels {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			dsn := gormtest.DSN(t)
			db, w := openWired(t, setup{dsn: dsn})
			other := open(t, setup{dsn: dsn})
			holder := hold(t, other, "s", "evt", nil)
			w.at("look up", func(*pgx.Conn) { holder.end(nil) })
			result, err := idempotency.Do(db, "s", "evt", nil, unwanted(t),
				idempotency.WithTxOptions(&sql.TxOptions{Isolation: level}), idempotency.WithWait(0))
			if err != nil || !result.Replayed {
				t.Fatalf("%+v, %v", result, err)
			}
			begin := "begin isolation level " + strings.ToLower(level.String())
			w.requireSteps(t, begin, "claim", "look up", "claim", "rollback", begin, "claim", "look up", "rollback")
		})
	}
}

// Case C27: in a caller's transaction only the caller can start over. The error says so, and their transaction is usable,
// though they should not commit it.
func TestJoinedDuplicateWithAnOldSnapshotIsASerializationFailure(t *testing.T) {
	t.Parallel()
	for _, level := range strictLevels {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			dsn := gormtest.DSN(t)
			db, other := open(t, setup{dsn: dsn}), open(t, setup{dsn: dsn})
			attempt := func(between func()) (result *idempotency.Result, err error) {
				err = db.Transaction(func(tx *gorm.DB) error {
					read[int](t, tx, "SELECT count(*) FROM orders") // the snapshot
					between()
					result, err = idempotency.Do(tx, "s", "evt", nil, unwanted(t))
					if read[int](t, tx, "SELECT 1") != 1 {
						t.Error("the transaction is not usable")
					}
					return err
				}, &sql.TxOptions{Isolation: level})
				return result, err
			}
			_, err := attempt(func() { execute(t, other, "evt") })
			requireState(t, err, "40001")
			requireNoVerdict(t, err)
			if !idempotency.Retryable(err) {
				t.Error("not retryable")
			}
			result, err := attempt(func() {})
			if err != nil || !result.Replayed {
				t.Errorf("in a new transaction: %+v, %v", result, err)
			}
			requireEffects(t, db, "evt", 1)
		})
	}
}

// A claim that meets a serialization failure or a deadlock starts its transaction over three times, and the handler has
// not run before it succeeds. What fails after that, or in the handler, is the sender's to repeat.
func TestClaimStartsOverThreeTimes(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"40001", "40P01"} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			db, w := openWired(t, setup{})
			// A sequence counts the failures, since nothing undoes it.
			mustExec(t, db, `CREATE SEQUENCE failures`)
			mustExec(t, db, fmt.Sprintf(`CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
				IF nextval('failures') <= TG_ARGV[0]::int THEN RAISE 'again' USING ERRCODE = '%s'; END IF; RETURN NEW; END $$`, code))
			arm := func(table string, failures int) {
				mustExec(t, db, `ALTER SEQUENCE failures RESTART`)
				mustExec(t, db, `DROP TRIGGER IF EXISTS fail ON `+table)
				mustExec(t, db, fmt.Sprintf(`CREATE TRIGGER fail BEFORE INSERT ON %s FOR EACH ROW EXECUTE FUNCTION fail(%d)`, table, failures))
				w.take()
			}
			lost := func(times int, then ...string) []string {
				return append(slices.Repeat([]string{"begin", "claim", "rollback"}, times), then...)
			}

			arm("idempotency_keys", 3)
			execute(t, db, "three")
			w.requireSteps(t, lost(3, "begin", "claim", "order", "complete", "commit")...)

			arm("idempotency_keys", 4)
			_, err := idempotency.Do(db, "s", "four", nil, unwanted(t))
			requireState(t, err, code)
			w.requireSteps(t, lost(4)...)

			arm("idempotency_keys", 1)
			tx := db.Begin()
			defer tx.Rollback()
			w.take()
			_, err = idempotency.Do(tx, "s", "joined", nil, unwanted(t))
			requireState(t, err, code)
			w.requireSteps(t, "SAVEPOINT idempotency_1", "claim", "ROLLBACK TO SAVEPOINT idempotency_1", "RELEASE SAVEPOINT idempotency_1")
			requireError(t, tx.Rollback().Error, nil)

			mustExec(t, db, `DROP TRIGGER fail ON idempotency_keys`)
			arm("orders", 1)
			_, err = idempotency.Do(db, "s", "handler", nil, placeOrder("handler"))
			requireState(t, err, code)
			w.requireSteps(t, "begin", "claim", "order", "rollback")
			execute(t, db, "handler")
		})
	}
}
