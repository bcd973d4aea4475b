package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
)

// newSweeper makes a sweeper that does not dawdle.
func newSweeper(t testing.TB, db *gorm.DB, config idempotency.SweeperConfig) *idempotency.Sweeper {
	t.Helper()
	if config.Pause == 0 {
		config.Pause = time.Nanosecond
	}
	s, err := idempotency.NewSweeper(db, config)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// insertKeys writes keys of a source whose ages are spread evenly between two ages, the oldest first.
func insertKeys(t testing.TB, db *gorm.DB, source string, count int, oldest, youngest time.Duration) {
	t.Helper()
	mustExec(t, db, fmt.Sprintf(`INSERT INTO idempotency_keys (source, event_id, payload_digest, claimed_at, completed_at)
		SELECT '%s', md5(n || random()::text), '\x00', at, at FROM generate_series(1, %d) AS n,
		LATERAL (SELECT clock_timestamp() - interval '1 second' * (%f + (%f - %f) * n / %d) AS at) AS age`,
		source, count, oldest.Seconds(), youngest.Seconds(), oldest.Seconds(), count))
}

func countKeys(t testing.TB, db *gorm.DB, source string) int {
	t.Helper()
	return read[int](t, db, "SELECT count(*) FROM idempotency_keys WHERE source = '"+source+"'")
}

// Case C86: what is older than its source's retention goes, and nothing else, batch by batch.
func TestSweepDeletesWhatIsExpiredAndNothingElse(t *testing.T) {
	t.Parallel()
	config := idempotency.Config{Sources: map[string]idempotency.SourceConfig{
		"short": {Retention: time.Hour}, "also short": {Retention: time.Hour}, "long": {Retention: 90 * day},
	}}
	db := open(t, setup{config: config})
	for source, retention := range map[string]time.Duration{
		"short": time.Hour, "also short": time.Hour, "long": 90 * day, "default": 30 * day, `it's "quoted"`: 30 * day,
	} {
		source = strings.ReplaceAll(source, "'", "''")
		insertKeys(t, db, source, 120, 2*retention, retention+time.Minute)
		insertKeys(t, db, source, 80, retention-time.Minute, 0)
	}
	report, err := newSweeper(t, db, idempotency.SweeperConfig{BatchSize: 50}).Sweep(t.Context())
	if err != nil || report.Deleted != 600 || !report.CaughtUp || report.Busy || report.Batches < 12 {
		t.Errorf("got %+v, %v; want 600 deleted and caught up", report, err)
	}
	for _, source := range []string{"short", "also short", "long", "default", `it''s "quoted"`} {
		if left := countKeys(t, db, source); left != 80 {
			t.Errorf("%s: %d keys are left, want 80", source, left)
		}
	}
}

// A backlog of the shorter class is swept in the next runs, and not taken for done because the longer one is: both are named
// by the same source.
func TestSweepComesBackToABacklog(t *testing.T) {
	t.Parallel()
	db := open(t, setup{config: idempotency.Config{Sources: map[string]idempotency.SourceConfig{"slow": {Retention: 50 * day}}}})
	insertKeys(t, db, "s", 500, 60*day, 31*day)
	insertKeys(t, db, "slow", 100, 60*day, 51*day)
	sweeper := newSweeper(t, db, idempotency.SweeperConfig{BatchSize: 50, MaxBatches: 3})
	var deleted int64
	for runs := 1; ; runs++ {
		report, err := sweeper.Sweep(t.Context())
		if err != nil || runs > 20 {
			t.Fatalf("run %d: %+v, %v", runs, report, err)
		}
		if deleted += report.Deleted; report.CaughtUp {
			break
		}
	}
	if deleted != 600 {
		t.Errorf("it has caught up after %d of 600 keys", deleted)
	}
}

// A sweep never deletes a live key, whatever plan the planner chooses.
func TestNoPlanMakesASweepDeleteLiveKeys(t *testing.T) {
	t.Parallel()
	for _, plan := range []string{"enable_bitmapscan", "enable_indexscan", "enable_tidscan", "enable_nestloop", "enable_hashjoin"} {
		t.Run(plan, func(t *testing.T) {
			t.Parallel()
			db := open(t, setup{})
			mustExec(t, db, fmt.Sprintf("DO $$ BEGIN EXECUTE format('ALTER DATABASE %%I SET %s = off', current_database()); END $$", plan))
			db = reopen(t, db)
			insertKeys(t, db, "s", 1500, 60*day, 0)
			live := read[int](t, db, "SELECT count(*) FROM idempotency_keys WHERE claimed_at >= now() - interval '30 days'")
			report, err := newSweeper(t, db, idempotency.SweeperConfig{BatchSize: 100}).Sweep(t.Context())
			if err != nil || !report.CaughtUp {
				t.Errorf("got %+v, %v", report, err)
			}
			if left := countKeys(t, db, "s"); left != live {
				t.Errorf("%d keys are left, want the %d live ones", left, live)
			}
		})
	}
}

// reopen gives a handle with new connections, which a changed default of the database reaches.
func reopen(t testing.TB, db *gorm.DB) *gorm.DB {
	t.Helper()
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	pool.SetMaxIdleConns(0)
	return db
}

// Case C40: places are per partition. The source page's statement destroys live keys that share one with an expired key.
func TestSweepOfHashPartitionsKeepsLiveKeys(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	mustExec(t, db, `ALTER TABLE idempotency_keys RENAME TO plain`)
	mustExec(t, db, `CREATE TABLE idempotency_keys (LIKE plain INCLUDING DEFAULTS, PRIMARY KEY (source, event_id)) PARTITION BY HASH (source, event_id)`)
	for n := range 4 {
		mustExec(t, db, fmt.Sprintf(`CREATE TABLE part_%d PARTITION OF idempotency_keys FOR VALUES WITH (MODULUS 4, REMAINDER %d)`, n, n))
	}
	mustExec(t, db, `CREATE INDEX ON idempotency_keys USING brin (claimed_at)`)
	insertKeys(t, db, "old", 1000, 60*day, 31*day)
	insertKeys(t, db, "live", 9000, day, 0)
	report, err := newSweeper(t, db, idempotency.SweeperConfig{BatchSize: 100}).Sweep(t.Context())
	if err != nil || report.Deleted != 1000 || !report.CaughtUp {
		t.Errorf("got %+v, %v", report, err)
	}
	if live := countKeys(t, db, "live"); live != 9000 {
		t.Errorf("%d of 9000 live keys are left", live)
	}
}

// Case C40: a table that isn't ours is refused before anything is deleted.
func TestSweepRefusesATableThatIsNotOurs(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	insertKeys(t, db, "s", 10, 60*day, 31*day)
	mustExec(t, db, `ALTER TABLE idempotency_keys DROP CONSTRAINT idempotency_keys_pkey`)
	report, err := newSweeper(t, db, idempotency.SweeperConfig{}).Sweep(t.Context())
	requireError(t, err, idempotency.ErrSchema)
	if left := countKeys(t, db, "s"); report.Deleted != 0 || left != 10 {
		t.Errorf("got %+v, and %d keys are left", report, left)
	}
}

// Case C32: sweepers of several processes never wait for each other nor delete twice; one that finds another at work says
// so, and has not caught up.
func TestOneSweeperAtATime(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	insertKeys(t, db, "s", 3000, 60*day, 31*day)
	var mu sync.Mutex
	var deleted int64
	var together sync.WaitGroup
	for range 4 {
		sweeper := newSweeper(t, db, idempotency.SweeperConfig{BatchSize: 100})
		together.Go(func() {
			for {
				report, err := sweeper.Sweep(t.Context())
				mu.Lock()
				deleted += report.Deleted
				mu.Unlock()
				if err != nil || report.CaughtUp == report.Busy {
					t.Errorf("got %+v, %v", report, err)
				}
				if report.CaughtUp {
					return
				}
			}
		})
	}
	together.Wait()
	if deleted != 3000 || countKeys(t, db, "s") != 0 {
		t.Errorf("%d were deleted, and %d are left", deleted, countKeys(t, db, "s"))
	}
}

// A run leaves a table alone on which another sweeper is at work, and has then not caught up.
func TestSweepLeavesABusyTableAlone(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	insertKeys(t, db, "s", 10, 60*day, 31*day)
	other := db.Begin()
	defer other.Rollback()
	mustExec(t, other, `SELECT pg_advisory_xact_lock(hashtextextended('idempotency sweep', 0) # 'idempotency_keys'::regclass::oid::bigint)`)
	report, err := newSweeper(t, db, idempotency.SweeperConfig{}).Sweep(t.Context())
	if err != nil || !report.Busy || report.CaughtUp || report.Deleted != 0 {
		t.Errorf("got %+v, %v; want busy", report, err)
	}
}

// Case C32: a row that another transaction has locked is left alone, and one whose age changes meanwhile survives.
func TestSweepLeavesLockedRowsAlone(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	insertKeys(t, db, "s", 20, 60*day, 31*day)
	tx := db.Begin()
	defer tx.Rollback()
	mustExec(t, tx, `UPDATE idempotency_keys SET claimed_at = now() WHERE ctid IN (SELECT ctid FROM idempotency_keys LIMIT 5)`)
	sweeper := newSweeper(t, db, idempotency.SweeperConfig{})
	if report, err := sweeper.Sweep(t.Context()); err != nil || report.Deleted != 15 || !report.CaughtUp {
		t.Errorf("beside the lock: %+v, %v", report, err)
	}
	if err := tx.Commit().Error; err != nil {
		t.Fatal(err)
	}
	if report, err := sweeper.Sweep(t.Context()); err != nil || report.Deleted != 0 || countKeys(t, db, "s") != 5 {
		t.Errorf("after the renewal: %+v, %v", report, err)
	}
}

// A run is bounded, and so is a batch.
func TestSweepIsBounded(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	insertKeys(t, db, "s", 100, 60*day, 31*day)
	sweeper := newSweeper(t, db, idempotency.SweeperConfig{BatchSize: 10, MaxBatches: 3})
	if deleted, err := sweeper.SweepOnce(t.Context()); err != nil || deleted != 10 {
		t.Errorf("once: %d, %v", deleted, err)
	}
	if report, err := sweeper.Sweep(t.Context()); err != nil || report.Deleted != 30 || report.Batches != 3 || report.CaughtUp {
		t.Errorf("a run: %+v, %v", report, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	report, err := sweeper.Sweep(ctx)
	if requireError(t, err, context.Canceled); report.Deleted != 0 || countKeys(t, db, "s") != 60 {
		t.Errorf("cancelled: %+v, and %d are left", report, countKeys(t, db, "s"))
	}
}

// Case C42: the database's clock alone decides.
func TestSweepGoesByTheDatabasesClock(t *testing.T) {
	t.Parallel()
	db := open(t, setup{gorm: gorm.Config{NowFunc: func() time.Time { return time.Now().AddDate(1, 0, 0) }}})
	mustExec(t, db, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET timezone = ''Europe/Berlin''', current_database()); END $$`)
	db = reopen(t, db)
	insertKeys(t, db, "live", 50, 30*day-time.Minute, 0)
	insertKeys(t, db, "expired", 50, 60*day, 30*day+time.Minute)
	if report, err := newSweeper(t, db, idempotency.SweeperConfig{}).Sweep(t.Context()); err != nil || report.Deleted != 50 {
		t.Errorf("got %+v, %v", report, err)
	}
	if countKeys(t, db, "live") != 50 {
		t.Error("live keys were deleted")
	}
}

// Case C34: an empty sweep reads next to nothing, also after several cycles of insert, sweep and vacuum, since swept ranges
// are summarised anew. The same cycles without that end with every page claiming to hold expired rows.
func TestEmptySweepStaysCheap(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	mustExec(t, db, "ALTER TABLE idempotency_keys SET (autovacuum_enabled = off)")
	narrowRanges(t, db)
	sweeper := newSweeper(t, db, idempotency.SweeperConfig{})
	for range 3 {
		insertKeys(t, db, "s", 60_000, 60*day, 0)
		if report, err := sweeper.Sweep(t.Context()); err != nil || !report.CaughtUp {
			t.Fatalf("got %+v, %v", report, err)
		}
		mustExec(t, db, "VACUUM idempotency_keys")
	}
	requireSharp(t, db, sweeper)
}

// sweepBuffers counts the buffers that the sweep's search for expired rows reads.
func sweepBuffers(t testing.TB, db *gorm.DB) int {
	t.Helper()
	var plan []string
	err := db.Transaction(func(tx *gorm.DB) error {
		return errors.Join(tx.Exec("SET LOCAL enable_seqscan = off").Error, tx.Raw(`EXPLAIN (ANALYZE, BUFFERS, COSTS OFF)
			SELECT ctid FROM idempotency_keys WHERE claimed_at < now() - 2592000 * interval '1 second'
			LIMIT 5000 FOR UPDATE SKIP LOCKED`).Scan(&plan).Error)
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range plan {
		var hit, read int
		text := strings.TrimSpace(line)
		if n, _ := fmt.Sscanf(text, "Buffers: shared hit=%d read=%d", &hit, &read); n > 0 {
			return hit + read
		}
		if n, _ := fmt.Sscanf(text, "Buffers: shared read=%d", &read); n > 0 {
			return read
		}
	}
	t.Fatalf("no buffers in the plan:\n%s", strings.Join(plan, "\n"))
	return 0
}

// Ranges are summarised anew once their rows are dead to everyone: not while a snapshot still sees them, and then without
// another deletion.
func TestRangesWaitForOldSnapshots(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	mustExec(t, db, "ALTER TABLE idempotency_keys SET (autovacuum_enabled = off)")
	narrowRanges(t, db)
	insertKeys(t, db, "s", 30_000, 60*day, 0)
	mustExec(t, db, "VACUUM idempotency_keys") // which summarises them
	elsewhere := open(t, setup{}).Begin()
	defer elsewhere.Rollback()
	read[int64](t, elsewhere, "SELECT txid_current()") // a transaction in another database keeps nothing alive in this one
	reader := db.Begin(nil)
	defer reader.Rollback()
	mustExec(t, reader, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
	read[int](t, reader, "SELECT count(*) FROM idempotency_keys")
	sweeper := newSweeper(t, db, idempotency.SweeperConfig{})
	if report, err := sweeper.Sweep(t.Context()); err != nil || report.Deleted == 0 {
		t.Fatalf("got %+v, %v", report, err)
	}
	requireError(t, reader.Commit().Error, nil)
	mustExec(t, db, "VACUUM idempotency_keys")
	requireSharp(t, db, sweeper)
}

// Run sweeps until its context ends, which is no error, and observes each sweep.
func TestRunSweepsUntilItsContextEnds(t *testing.T) {
	t.Parallel()
	var seen observations
	db := open(t, setup{config: idempotency.Config{Observe: seen.add}})
	insertKeys(t, db, "s", 30, 60*day, 31*day)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- newSweeper(t, db, idempotency.SweeperConfig{Interval: time.Millisecond}).Run(ctx) }()
	eventually(t, "the keys are swept", func() bool { return countKeys(t, db, "s") == 0 })
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
	var swept int64
	for _, o := range seen.of(idempotency.Swept) {
		swept += o.Count
	}
	if swept != 30 {
		t.Errorf("observed %d swept keys, want 30", swept)
	}
}

// Case C70: nothing in a sweeper's configuration means "delete everything", and what makes no sense is refused.
func TestBadSweepersAreRefused(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	for _, config := range []idempotency.SweeperConfig{
		{BatchSize: -1}, {BatchSize: 1 << 31}, {MaxBatches: -1}, {Pause: -1}, {Interval: -1},
	} {
		s, err := idempotency.NewSweeper(db, config)
		if requireError(t, err, idempotency.ErrInvalidConfig); s != nil {
			t.Errorf("%+v: got a sweeper", config)
		}
	}
	tx := db.Begin()
	defer tx.Rollback()
	_, err := idempotency.NewSweeper(tx, idempotency.SweeperConfig{})
	requireError(t, err, idempotency.ErrUnsupported)
	_, err = idempotency.NewSweeper(nil, idempotency.SweeperConfig{})
	requireError(t, err, idempotency.ErrUnsupported)
}
