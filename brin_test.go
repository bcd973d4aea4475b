package idempotency_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
)

// sweepBesideASnapshot leaves swept ranges that nobody could summarise anew: a snapshot still saw their rows.
func sweepBesideASnapshot(t *testing.T, db *gorm.DB, sweeper *idempotency.Sweeper) {
	t.Helper()
	reader := db.Begin()
	defer reader.Rollback()
	mustExec(t, reader, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
	read[int](t, reader, "SELECT count(*) FROM idempotency_keys")
	requireSwept(t, sweeper)
}

func requireSwept(t *testing.T, sweeper *idempotency.Sweeper) {
	t.Helper()
	if report, err := sweeper.Sweep(t.Context()); err != nil || !report.CaughtUp {
		t.Fatalf("got %+v, %v", report, err)
	}
}

// requireSharp fails unless a sweep that deletes nothing reads next to nothing. A snapshot, and be it of an autovacuum, puts
// off what there is to summarise to the next run, so it may take a few. They are too few to come round to every range.
func requireSharp(t *testing.T, db *gorm.DB, sweeper *idempotency.Sweeper) {
	t.Helper()
	buffers := 0
	for range 3 {
		eventually(t, "nobody has a snapshot", func() bool {
			return read[bool](t, db, `SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_xmin IS NOT NULL
				AND pid <> pg_backend_pid() AND (datname = current_database() OR datname IS NULL))`)
		})
		requireSwept(t, sweeper)
		if buffers = sweepBuffers(t, db); buffers <= 64 {
			return
		}
	}
	t.Errorf("an empty sweep reads %d buffers, want at most 64", buffers)
}

// narrowRanges makes more ranges of a table than a run looks at in turn.
func narrowRanges(t *testing.T, db *gorm.DB) {
	t.Helper()
	mustExec(t, db, `DO $$ BEGIN EXECUTE (SELECT format('ALTER INDEX %s SET (pages_per_range = 16)', indexrelid::regclass)
		FROM pg_index WHERE indrelid = 'idempotency_keys'::regclass AND indexrelid::regclass::text LIKE '%claimed%'); END $$`)
	mustExec(t, db, "REINDEX TABLE idempotency_keys")
}

// A process that ends takes with it what it would have summarised anew, and so does one that is started for each run. The
// next ones come round to it.
func TestRangesOutliveTheirSweeper(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	mustExec(t, db, "ALTER TABLE idempotency_keys SET (autovacuum_enabled = off)")
	narrowRanges(t, db)
	insertKeys(t, db, "s", 120_000, 60*day, 0)
	mustExec(t, db, "VACUUM idempotency_keys") // which summarises them
	sweepBesideASnapshot(t, db, newSweeper(t, db, idempotency.SweeperConfig{}))
	mustExec(t, db, "VACUUM idempotency_keys")
	if buffers := sweepBuffers(t, db); buffers <= 64 {
		t.Fatalf("an empty sweep reads %d buffers before anything is summarised anew: nothing to show", buffers)
	}
	for runs := 1; sweepBuffers(t, db) > 64; runs++ {
		if runs > 2000 {
			t.Fatalf("after %d runs an empty sweep reads %d buffers", runs, sweepBuffers(t, db))
		}
		requireSwept(t, newSweeper(t, db, idempotency.SweeperConfig{}))
	}
}

// Sweepers of several processes that take turns keep the index as sharp as one does.
func TestSweepersInTurnKeepTheIndexSharp(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	mustExec(t, db, "ALTER TABLE idempotency_keys SET (autovacuum_enabled = off)")
	narrowRanges(t, db)
	sweepers := []*idempotency.Sweeper{
		newSweeper(t, db, idempotency.SweeperConfig{}), newSweeper(t, db, idempotency.SweeperConfig{}), newSweeper(t, db, idempotency.SweeperConfig{}),
	}
	for cycle := range 6 {
		insertKeys(t, db, "s", 30_000, 60*day, 0)
		requireSwept(t, sweepers[cycle%len(sweepers)])
		mustExec(t, db, "VACUUM idempotency_keys")
	}
	for _, sweeper := range sweepers { // each knows the ranges that it has swept itself
		requireSwept(t, sweeper)
	}
	requireSharp(t, db, sweepers[0])
}

// A role that does not own the index sweeps all the same, and says once what to grant.
func TestSweepWithoutTheRightToSummarise(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	db := open(t, setup{dsn: dsn})
	role := fmt.Sprintf("sweeper_%d", time.Now().UnixNano())
	mustExec(t, db, "CREATE ROLE "+role)
	t.Cleanup(func() { mustExec(t, db.WithContext(context.Background()), "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	mustExec(t, db, "GRANT SELECT, UPDATE, DELETE ON idempotency_keys TO "+role)
	var said journal
	mine := open(t, setup{dsn: dsn, conns: 1, gorm: gorm.Config{Logger: &said}})
	mustExec(t, mine, "SET ROLE "+role)
	sweeper := newSweeper(t, mine, idempotency.SweeperConfig{})
	for range 3 {
		insertKeys(t, db, "s", 50, 60*day, 31*day)
		requireSwept(t, sweeper)
		if left := countKeys(t, db, "s"); left != 0 {
			t.Errorf("%d keys are left", left)
		}
	}
	warnings := said.of("warn")
	if len(warnings) != 1 || !strings.Contains(warnings[0], "grant it membership in the role that owns the table") {
		t.Errorf("it said %q", warnings)
	}
}

// A role that may see nothing of others' sessions waits for their snapshots all the same.
func TestUnprivilegedSweeperWaitsForSnapshotsOfOthers(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	db := open(t, setup{dsn: dsn})
	role := fmt.Sprintf("owner_%d", time.Now().UnixNano())
	mustExec(t, db, "CREATE ROLE "+role)
	t.Cleanup(func() { mustExec(t, db.WithContext(context.Background()), "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	mustExec(t, db, "ALTER TABLE idempotency_keys OWNER TO "+role)
	mustExec(t, db, "GRANT CREATE ON SCHEMA public TO "+role)
	mustExec(t, db, "ALTER TABLE idempotency_keys SET (autovacuum_enabled = off)")
	narrowRanges(t, db)
	insertKeys(t, db, "s", 30_000, 60*day, 0)
	mustExec(t, db, "VACUUM idempotency_keys")
	mine := open(t, setup{dsn: dsn, conns: 1})
	mustExec(t, mine, "SET ROLE "+role)
	sweeper := newSweeper(t, mine, idempotency.SweeperConfig{})
	sweepBesideASnapshot(t, db, sweeper)
	mustExec(t, db, "VACUUM idempotency_keys")
	requireSharp(t, db, sweeper)
}

// Case C32: a key whose age changes between the sweep's snapshot and its deletion survives. The statement's trigger waits
// there, before the keys are chosen.
func TestKeyThatIsRenewedUnderTheSweepSurvives(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	insertKeys(t, db, "s", 20, 60*day, 31*day)
	const lock = 1732
	mustExec(t, db, fmt.Sprintf(`CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		PERFORM pg_advisory_xact_lock_shared(%d); RETURN NULL; END $$`, lock))
	mustExec(t, db, `CREATE TRIGGER pause BEFORE DELETE ON idempotency_keys FOR EACH STATEMENT EXECUTE FUNCTION pause()`)
	gate := db.Begin()
	defer gate.Rollback()
	mustExec(t, gate, "SELECT pg_advisory_xact_lock(?)", lock)

	swept := make(chan struct{})
	go func() {
		defer close(swept)
		report, err := newSweeper(t, db, idempotency.SweeperConfig{}).Sweep(t.Context())
		if err != nil || report.Deleted != 15 || !report.CaughtUp {
			t.Errorf("got %+v, %v", report, err)
		}
	}()
	eventually(t, "the sweep has begun", func() bool {
		return read[bool](t, db, "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = ? AND NOT granted)", lock)
	})
	mustExec(t, db, "UPDATE idempotency_keys SET claimed_at = now() WHERE ctid IN (SELECT ctid FROM idempotency_keys LIMIT 5)")
	requireError(t, gate.Commit().Error, nil)
	<-swept
	if left := countKeys(t, db, "s"); left != 5 {
		t.Errorf("%d keys are left, want the 5 that were renewed", left)
	}
}
