package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
)

// inspect inspects, and fails the test if that fails.
func inspect(t testing.TB, db *gorm.DB) *idempotency.Report {
	t.Helper()
	report, err := idempotency.Inspect(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func inspectImpatiently(t testing.TB, db *gorm.DB) *idempotency.Report {
	t.Helper()
	report, err := idempotency.InspectImpatiently(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// finding is a report's finding of one check, or nil.
func finding(report *idempotency.Report, check string) *idempotency.Finding {
	at := slices.IndexFunc(report.Findings, func(f idempotency.Finding) bool { return f.Check == check })
	if at < 0 {
		return nil
	}
	return &report.Findings[at]
}

// requireFinding fails unless the report has the finding, and it says all of this in its message and remedy.
func requireFinding(t testing.TB, report *idempotency.Report, check string, severity idempotency.Severity, says ...string) {
	t.Helper()
	f := finding(report, check)
	if f == nil {
		t.Fatalf("no finding %s in %+v", check, report)
	}
	if f.Severity != severity {
		t.Errorf("%s is a %v, want %v", check, f.Severity, severity)
	}
	for _, text := range says {
		if !strings.Contains(f.Message+"\n"+f.Remedy, text) {
			t.Errorf("%s does not say %q: %s\n%s", check, text, f.Message, f.Remedy)
		}
	}
}

func requireNoFinding(t testing.TB, report *idempotency.Report, check string) {
	t.Helper()
	if f := finding(report, check); f != nil {
		t.Errorf("unwanted finding: %+v", *f)
	}
}

func requireSkipped(t testing.TB, report *idempotency.Report, check, reason string) {
	t.Helper()
	requireNoFinding(t, report, check)
	if !slices.ContainsFunc(report.Skipped, func(s idempotency.Skipped) bool {
		return s.Check == check && strings.Contains(s.Reason, reason)
	}) {
		t.Errorf("%s is not skipped because %q: %+v", check, reason, report.Skipped)
	}
}

// partition makes the table one of four hash partitions, as the migrations do.
func partition(t testing.TB, db *gorm.DB) {
	t.Helper()
	mustExec(t, db, `ALTER TABLE idempotency_keys RENAME TO plain`)
	mustExec(t, db, `CREATE TABLE idempotency_keys (LIKE plain INCLUDING DEFAULTS, PRIMARY KEY (source, event_id)) PARTITION BY HASH (source, event_id)`)
	for n := range 4 {
		mustExec(t, db, fmt.Sprintf(`CREATE TABLE part_%d PARTITION OF idempotency_keys FOR VALUES WITH (MODULUS 4, REMAINDER %[1]d) WITH (fillfactor = 65)`, n))
	}
	mustExec(t, db, `CREATE INDEX ON idempotency_keys USING brin (claimed_at) WITH (autosummarize = on)`)
	mustExec(t, db, `CREATE INDEX ON idempotency_keys (claimed_at) WHERE completed_at IS NULL`)
}

// A table in daily use has no finding and no check is skipped, whichever way it was made.
func TestHealthyTableHasNoFinding(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(testing.TB, *gorm.DB){
		"migrated":    func(testing.TB, *gorm.DB) {},
		"partitioned": partition,
		"automatic": func(t testing.TB, db *gorm.DB) {
			mustExec(t, db, "DROP TABLE idempotency_keys")
			if err := db.AutoMigrate(&idempotency.IdempotencyKey{}); err != nil {
				t.Fatal(err)
			}
			mustExec(t, db, "ALTER TABLE idempotency_keys SET (fillfactor = 65)")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t, setup{config: idempotency.Config{Sources: map[string]idempotency.SourceConfig{
				"stripe": {RetryHorizon: 20 * day}, "short": {RetryHorizon: time.Hour, Retention: 2 * time.Hour},
			}}})
			prepare(t, db)
			insertKeys(t, db, "s", 20_000, 30*day, 0)
			insertKeys(t, db, "short", 1000, 2*time.Hour, 0)
			mustExec(t, db, "ANALYZE idempotency_keys")
			for n := range 20 {
				execute(t, db, fmt.Sprint("evt_", n))
			}
			if _, err := newSweeper(t, db, idempotency.SweeperConfig{}).Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			holding := hold(t, db, "s", "held", nil)
			defer holding.end(nil)
			report := inspect(t, db)
			if len(report.Findings) > 0 || len(report.Skipped) > 0 || !report.Healthy() {
				t.Errorf("findings %+v, skipped %+v", report.Findings, report.Skipped)
			}
			count := read[int64](t, db, "SELECT count(*) FROM idempotency_keys")
			if report.Pages <= 256 && report.Keys != count || report.Keys < count/2 || report.Keys > count*2 || report.Overdue != 0 ||
				report.TableBytes < 1<<20 || report.IndexBytes < 1<<19 || report.OldestClaim > 30*day || report.OldestClaim < 25*day || report.Holding != 1 {
				t.Errorf("of %d keys: %+v", count, report)
			}
		})
	}
}

// A table that the library cannot use is a finding, and what cannot be looked at then is listed.
func TestInspectFindsAnUnusableTable(t *testing.T) {
	t.Parallel()
	for change, says := range map[string]string{
		"DROP TABLE idempotency_keys": "does not exist", "ALTER TABLE idempotency_keys DROP CONSTRAINT idempotency_keys_pkey": "nothing keeps",
	} {
		db := open(t, setup{})
		mustExec(t, db, change)
		report := inspect(t, db)
		requireFinding(t, report, "schema", idempotency.Critical, says, "migrat")
		requireSkipped(t, report, "overdue-keys", "cannot be used")
		if report.Healthy() || len(report.Skipped) != 15 {
			t.Errorf("healthy, or not all checks are skipped: %+v", report.Skipped)
		}
	}
}

// Claims that were committed without being completed are another program's, and are counted up to a limit.
func TestInspectFindsIncompleteClaims(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	insertKeys(t, db, "s", 1000, day, 0)
	mustExec(t, db, "UPDATE idempotency_keys SET completed_at = NULL WHERE claimed_at < now() - interval '23 hours'")
	count := read[int](t, db, "SELECT count(*) FROM idempotency_keys WHERE completed_at IS NULL")
	requireFinding(t, inspect(t, db), "incomplete-claims", idempotency.Warning, fmt.Sprint(count), "23 hours", "other than this library")

	mustExec(t, db, "UPDATE idempotency_keys SET completed_at = NULL")
	requireFinding(t, inspect(t, db), "incomplete-claims", idempotency.Warning, "more than 100")

	mustExec(t, db, "DROP INDEX idx_idempotency_keys_incomplete")
	report := inspect(t, db)
	requireSkipped(t, report, "incomplete-claims", "missing or invalid")
	requireFinding(t, report, "missing-index", idempotency.Warning, "incomplete claims", `CREATE INDEX CONCURRENTLY ON public.idempotency_keys (claimed_at) WHERE completed_at IS NULL`)
}

// Who holds a key is found, with the key's lock, and is at fault only when it takes long.
func TestInspectFindsHolders(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	requireNoFinding(t, inspectImpatiently(t, db), "long-holder")
	mine := hold(t, db, "s", "held", nil)
	defer mine.end(nil)
	requireNoFinding(t, inspect(t, db), "long-holder")

	report := inspectImpatiently(t, db)
	requireFinding(t, report, "long-holder", idempotency.Warning, "1 transaction has held keys", "idle in transaction", "with 1 lock", "pg_terminate_backend(")
	lock := read[string](t, db, "SELECT classid || '/' || objid FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")
	if h := report.Holders[0]; report.Holding != 1 || h.PID == 0 || h.Held <= 0 || h.Keys != 1 || !slices.Equal(h.Locks, []string{lock}) || h.User == "" {
		t.Errorf("got %+v; want the lock %s", report.Holders, lock)
	}
}

// A transaction that writes to the table without the library is a holder too, and who waits for it is found beside it.
func TestInspectFindsWaiters(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	foreign := db.Begin()
	defer foreign.Rollback()
	mustExec(t, foreign, `INSERT INTO idempotency_keys (source, event_id, payload_digest) VALUES ('s', 'evt', '\x00')`)
	blocked := deliver(db, "evt")
	var report *idempotency.Report
	eventually(t, "the claim waits", func() bool {
		report = inspectImpatiently(t, db)
		return report.Waiting == 1
	})
	holder := backend(t, foreign)
	requireFinding(t, report, "waiting", idempotency.Warning, "1 backend waits", fmt.Sprintf("behind backend %d", holder))
	requireNoFinding(t, inspect(t, db), "waiting")
	if w := report.Waiters[0]; !slices.Equal(w.BlockedBy, []int{holder}) || w.PID == holder || w.PID == 0 {
		t.Errorf("got %+v, want it behind %d", w, holder)
	}
	if report.Holding != 2 || !slices.ContainsFunc(report.Holders, func(h idempotency.Holder) bool { return h.PID == holder && h.Keys == 0 }) {
		t.Errorf("got %+v, want %d without locks among them", report.Holders, holder)
	}
	if err := foreign.Rollback().Error; err != nil {
		t.Fatal(err)
	}
	if _, err := blocked.end(t); err != nil {
		t.Error(err)
	}
}

// Inspecting a table that somebody has locked does not wait for it, and says what it could not see.
func TestInspectAnswersWhileTheTableIsLocked(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	tx := db.Begin()
	defer tx.Rollback()
	mustExec(t, tx, "LOCK TABLE idempotency_keys")
	blocked := deliver(db, "evt")
	eventually(t, "the claim waits for the table", func() bool { return inspectImpatiently(t, db).Waiting == 1 })
	report := inspectImpatiently(t, db)
	requireFinding(t, report, "waiting", idempotency.Warning, fmt.Sprintf("behind backend %d", backend(t, tx)))
	requireSkipped(t, report, "overdue-keys", "could not be read")
	requireSkipped(t, report, "missing-index", "locked by another transaction")
	if err := tx.Rollback().Error; err != nil {
		t.Fatal(err)
	}
	if _, err := blocked.end(t); err != nil {
		t.Error(err)
	}
}

// Keys past their source's retention and the slack are counted; others are not, however old.
func TestInspectFindsOverdueKeys(t *testing.T) {
	t.Parallel()
	db := open(t, setup{config: idempotency.Config{Sources: map[string]idempotency.SourceConfig{
		"short": {Retention: time.Hour}, "long": {Retention: 90 * day},
	}}})
	insertKeys(t, db, "long", 100, 98*day, 40*day)
	insertKeys(t, db, "short", 100, 24*time.Hour, 0)
	insertKeys(t, db, "default", 100, 32*day, 0)
	if report := inspect(t, db); finding(report, "overdue-keys") != nil || report.Overdue != 0 || report.Keys != 300 {
		t.Errorf("within the slack: %+v", report)
	}
	insertKeys(t, db, "short", 1, 26*time.Hour, 26*time.Hour)
	requireFinding(t, inspect(t, db), "overdue-keys", idempotency.Warning, "1 key is overdue", "retention of 60 minutes", "26 hours old", "Sweeper")
	insertKeys(t, db, "default", 1500, 40*day, 34*day)
	report := inspect(t, db)
	requireFinding(t, report, "overdue-keys", idempotency.Warning, "1,501 keys are overdue", "retention of 30 days", "39 days old")
	if report.Overdue != 1501 || report.OldestClaim < 97*day {
		t.Errorf("got %+v", report)
	}
	if _, err := newSweeper(t, db, idempotency.SweeperConfig{}).Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	requireNoFinding(t, inspect(t, db), "overdue-keys")
}

// Of a table that is not read in full the numbers are estimates, which say so and are not far off.
func TestInspectEstimatesFromASample(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	insertKeys(t, db, "s", 60_000, 60*day, 0)
	report := inspect(t, db)
	requireFinding(t, report, "overdue-keys", idempotency.Warning, "estimate, from 256 of")
	if report.SampledPages != 256 || report.Pages < 600 || report.Keys < 45_000 || report.Keys > 75_000 || report.Overdue < 18_000 || report.Overdue > 36_000 || report.OldestClaim < 50*day {
		t.Errorf("got %d keys, %d of them overdue, from %d of %d pages; want about 60,000 and 27,000",
			report.Keys, report.Overdue, report.SampledPages, report.Pages)
	}
}

// Keys that the statistics saw and that are gone before they could be due were deleted by something else.
func TestInspectFindsKeysThatAreDeletedEarly(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		deleting string
		severity idempotency.Severity
	}{
		"another program": {"DELETE FROM idempotency_keys WHERE claimed_at < now() - interval '7 days'", idempotency.Critical},
		"TRUNCATE":        {"TRUNCATE idempotency_keys", idempotency.Warning},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t, setup{})
			mustExec(t, db, "ALTER TABLE idempotency_keys SET (autovacuum_enabled = off)") // which analyses, too
			insertKeys(t, db, "s", 10_000, 60*day, 0)
			mustExec(t, db, "ANALYZE idempotency_keys")
			if _, err := newSweeper(t, db, idempotency.SweeperConfig{}).Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			requireNoFinding(t, inspect(t, db), "deleted-early")
			mustExec(t, db, test.deleting)
			requireFinding(t, inspect(t, db), "deleted-early", test.severity, "29 days old", "kept for 30 days", "takes effect again")
			mustExec(t, db, "ANALYZE idempotency_keys")
			if name != "TRUNCATE" { // ANALYZE keeps the statistics of a table that is empty
				requireNoFinding(t, inspect(t, db), "deleted-early")
			}
		})
	}
}

// A sample may lack the oldest of many keys that are about as old. That is no early deletion.
func TestKeysOfOneAgeAreNotDeletedEarly(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	mustExec(t, db, "ALTER TABLE idempotency_keys SET (autovacuum_enabled = off)")
	mustExec(t, db, `INSERT INTO idempotency_keys (source, event_id, payload_digest, claimed_at, completed_at)
		SELECT 's', n::text, '\x00', now() - interval '60 days', now() FROM generate_series(1, 60000) AS n`)
	insertKeys(t, db, "s", 2000, 10*time.Minute, time.Minute) // on few of the pages, most of which the sample does not see
	mustExec(t, db, "ANALYZE idempotency_keys")
	if _, err := newSweeper(t, db, idempotency.SweeperConfig{}).Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		requireNoFinding(t, inspect(t, db), "deleted-early")
	}
}

// The shortest retention counts: rows of its sources are deleted in time.
func TestShortRetentionIsNoEarlyDeletion(t *testing.T) {
	t.Parallel()
	db := open(t, setup{config: idempotency.Config{Sources: map[string]idempotency.SourceConfig{"short": {Retention: time.Hour}}}})
	mustExec(t, db, "ALTER TABLE idempotency_keys SET (autovacuum_enabled = off)")
	insertKeys(t, db, "short", 10_000, day, 0)
	mustExec(t, db, "ANALYZE idempotency_keys")
	if report, err := newSweeper(t, db, idempotency.SweeperConfig{}).Sweep(t.Context()); err != nil || report.Deleted < 9000 {
		t.Fatalf("got %+v, %v", report, err)
	}
	requireNoFinding(t, inspect(t, db), "deleted-early")
}

// Missing, invalid and badly set indexes, settings and rights each have their finding, on each relation that has rows.
func TestInspectFindsWhatTheCatalogueSays(t *testing.T) {
	t.Parallel()
	const plain, partitioned = false, true
	for name, test := range map[string]struct {
		partitioned bool
		change      string
		check       string
		severity    idempotency.Severity
		says        []string
	}{
		"no BRIN": {plain, "DROP INDEX idx_idempotency_keys_claimed_at", "missing-index", idempotency.Warning,
			[]string{"CREATE INDEX CONCURRENTLY ON public.idempotency_keys USING brin (claimed_at) WITH (autosummarize = on)"}},
		"a B-tree instead of BRIN": {plain, "DROP INDEX idx_idempotency_keys_claimed_at; CREATE INDEX ON idempotency_keys (claimed_at)",
			"missing-index", idempotency.Warning, []string{"BRIN"}},
		"partition without BRIN": {partitioned, "DROP INDEX idempotency_keys_claimed_at_idx", "missing-index", idempotency.Warning, []string{"public.part_3"}},
		"invalid": {plain, "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'idx_idempotency_keys_claimed_at'::regclass",
			"invalid-index", idempotency.Warning, []string{"REINDEX INDEX CONCURRENTLY public.idx_idempotency_keys_claimed_at"}},
		"invalid on a partition": {partitioned, "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'part_2_claimed_at_idx'::regclass",
			"invalid-index", idempotency.Warning, []string{"public.part_2_claimed_at_idx"}},
		"autosummarize": {plain, "ALTER INDEX idx_idempotency_keys_claimed_at RESET (autosummarize)", "autosummarize", idempotency.Note,
			[]string{"SET (autosummarize = on)"}},
		"autovacuum": {plain, "ALTER TABLE idempotency_keys SET (autovacuum_enabled = false)", "autovacuum", idempotency.Warning,
			[]string{"RESET (autovacuum_enabled)"}},
		"autovacuum of a partition": {partitioned, "ALTER TABLE part_1 SET (autovacuum_enabled = off)", "autovacuum", idempotency.Warning, []string{"public.part_1"}},
		"fill factor":               {plain, "ALTER TABLE idempotency_keys RESET (fillfactor)", "fill-factor", idempotency.Note, []string{"has 100", "SET (fillfactor = 65)"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t, setup{})
			if test.partitioned {
				partition(t, db)
			}
			mustExec(t, db, test.change)
			report := inspect(t, db)
			requireFinding(t, report, test.check, test.severity, test.says...)
			if len(report.Findings) != 1 || report.Healthy() != (test.severity == idempotency.Note) {
				t.Errorf("got %+v", report.Findings)
			}
		})
	}
}

// Answers that do not fit on the page of their key, and indexes on their columns, show in the share of HOT updates.
func TestInspectFindsUpdatesThatAreNotHOT(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	for n := range 120 {
		execute(t, db, fmt.Sprint("evt_", n))
	}
	eventually(t, "the updates are counted", func() bool { return inspectImpatiently(t, db).Updates >= 120 })
	report := inspectImpatiently(t, db)
	requireNoFinding(t, report, "hot-updates")
	if report.HOTUpdates*100 < report.Updates*98 {
		t.Errorf("%d of %d updates are HOT", report.HOTUpdates, report.Updates)
	}
	mustExec(t, db, "CREATE INDEX mine ON idempotency_keys (response_status)")
	for n := range 120 {
		execute(t, db, fmt.Sprint("evt2_", n))
	}
	eventually(t, "the updates are counted", func() bool { return inspectImpatiently(t, db).Updates >= 240 })
	requireFinding(t, inspectImpatiently(t, db), "hot-updates", idempotency.Warning, "50 % were HOT", "drop public.mine")
	requireNoFinding(t, inspect(t, db), "hot-updates")
}

// Dead rows that outnumber the live ones, and the transaction that keeps them, are found.
func TestInspectFindsDeadRowsAndWhatKeepsThem(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	mustExec(t, db, "ALTER TABLE idempotency_keys SET (autovacuum_enabled = off)")
	insertKeys(t, db, "s", 1000, day, 0)
	requireNoFinding(t, inspectImpatiently(t, db), "dead-rows")
	reader := db.Begin()
	defer reader.Rollback()
	mustExec(t, reader, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
	read[int](t, reader, "SELECT count(*) FROM idempotency_keys")
	mustExec(t, db, "DELETE FROM idempotency_keys WHERE claimed_at < now() - interval '1 hour'")
	eventually(t, "the dead rows are counted", func() bool { return inspectImpatiently(t, db).DeadRows > 900 })
	report := inspectImpatiently(t, db)
	requireFinding(t, report, "dead-rows", idempotency.Warning, "dead rows beside", "never vacuumed", "VACUUM public.idempotency_keys")
	requireFinding(t, report, "old-snapshot", idempotency.Note, fmt.Sprintf("Backend %d", backend(t, reader)))
	report = inspect(t, db)
	requireNoFinding(t, report, "dead-rows")
	requireNoFinding(t, report, "old-snapshot")
}

// A BRIN index whose summaries are too wide leads its scans to most of the table.
func TestInspectFindsAStaleBrinIndex(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	mustExec(t, db, "ALTER TABLE idempotency_keys SET (autovacuum_enabled = off)")
	insertKeys(t, db, "s", 30_000, 60*day, 0)
	mustExec(t, db, "DELETE FROM idempotency_keys WHERE claimed_at < now() - interval '30 days'")
	mustExec(t, db, "VACUUM idempotency_keys")
	insertKeys(t, db, "s", 15_000, day, 0)
	search := func(age time.Duration) {
		for range 10 {
			err := db.Transaction(func(tx *gorm.DB) error {
				mustExec(t, tx, "SET LOCAL enable_seqscan = off")
				read[int](t, tx, fmt.Sprintf("SELECT count(*) FROM idempotency_keys WHERE claimed_at < now() - interval '%d days'", age/day))
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	search(90 * day)
	eventually(t, "the scans are counted", func() bool {
		return read[int](t, db, "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'idx_idempotency_keys_claimed_at'") >= 10
	})
	requireNoFinding(t, inspectImpatiently(t, db), "stale-brin")
	search(30 * day)
	eventually(t, "the scans are counted", func() bool {
		return read[int](t, db, "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'idx_idempotency_keys_claimed_at'") >= 20
	})
	requireFinding(t, inspectImpatiently(t, db), "stale-brin", idempotency.Note, "each of 20 scans", "REINDEX INDEX CONCURRENTLY public.idx_idempotency_keys_claimed_at")
	requireNoFinding(t, inspect(t, db), "stale-brin")
}

// Sources with no retry horizon are a note, which is healthy.
func TestInspectFindsSourcesWithoutHorizon(t *testing.T) {
	t.Parallel()
	db := open(t, setup{config: idempotency.Config{Sources: map[string]idempotency.SourceConfig{
		"stripe": {RetryHorizon: day}, "shop": {}, "a": {Retention: day},
	}}})
	report := inspect(t, db)
	requireFinding(t, report, "no-retry-horizon", idempotency.Note, `"a"; "shop".`)
	if !report.Healthy() || len(report.Findings) != 1 {
		t.Errorf("got %+v", report)
	}
}

// A role that may not see everything is told so, and of the rest it is told as much as any other.
func TestInspectSaysWhatItsRoleMayNotSee(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	db := open(t, setup{dsn: dsn})
	insertKeys(t, db, "s", 100, 40*day, 35*day)
	role := fmt.Sprintf("looker_%d", time.Now().UnixNano())
	mustExec(t, db, "CREATE ROLE "+role)
	t.Cleanup(func() { mustExec(t, db.WithContext(context.Background()), "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	mine := hold(t, db, "s", "held", nil)
	defer mine.end(nil)
	looker := open(t, setup{dsn: dsn, conns: 1})
	mustExec(t, looker, "SET ROLE "+role)

	report := inspectImpatiently(t, looker)
	requireSkipped(t, report, "overdue-keys", "grant it SELECT")
	requireSkipped(t, report, "long-holder", "pg_read_all_stats")
	requireFinding(t, report, "privileges", idempotency.Note, "SELECT, INSERT, UPDATE, DELETE", "summarise", "GRANT")
	if report.Holding != 1 || report.Holders[0].Held != 0 {
		t.Errorf("got %+v", report.Holders)
	}

	mustExec(t, db, "GRANT SELECT ON idempotency_keys TO "+role)
	mustExec(t, db, "GRANT pg_read_all_stats TO "+role)
	report = inspectImpatiently(t, looker)
	requireFinding(t, report, "overdue-keys", idempotency.Warning, "100 keys")
	requireFinding(t, report, "long-holder", idempotency.Warning)
	if len(report.Skipped) > 0 {
		t.Errorf("skipped: %+v", report.Skipped)
	}
}

// A sweep works on each partition by its own name. A role that has its rights on the table alone is told so, and with the
// rights that docs/operations.md grants it sweeps.
func TestInspectSaysWhichPartitionsItsRoleMayNotSweep(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	db := open(t, setup{dsn: dsn})
	partition(t, db)
	insertKeys(t, db, "s", 100, 40*day, 35*day)
	role := fmt.Sprintf("sweeper_%d", time.Now().UnixNano())
	mustExec(t, db, "CREATE ROLE "+role)
	t.Cleanup(func() { mustExec(t, db.WithContext(context.Background()), "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	mustExec(t, db, "GRANT SELECT, INSERT, UPDATE, DELETE ON idempotency_keys TO "+role)
	sweeping := open(t, setup{dsn: dsn, conns: 1})
	mustExec(t, sweeping, "SET ROLE "+role)
	requireFinding(t, inspect(t, sweeping), "privileges", idempotency.Note, "may not sweep each partition", "public.part_0; public.part_1; public.part_2; public.part_3.",
		"GRANT SELECT, UPDATE, DELETE ON public.part_0, public.part_1, public.part_2, public.part_3 TO ")
	if _, err := newSweeper(t, sweeping, idempotency.SweeperConfig{}).Sweep(t.Context()); err == nil {
		t.Fatal("it swept, without the right to")
	}

	for _, b := range blocksIn(readDocuments(t), "sql") {
		_, grants, found := strings.Cut(b.text, "GRANT pg_read_all_stats TO keys_operator;")
		if b.doc == "docs/operations.md" && found {
			mustExec(t, db, strings.ReplaceAll(grants, "keys_operator", role))
		}
	}
	if report, err := newSweeper(t, sweeping, idempotency.SweeperConfig{}).Sweep(t.Context()); err != nil || report.Deleted != 100 {
		t.Errorf("with the documented rights: %+v, %v", report, err)
	}
	requireNoFinding(t, inspect(t, sweeping), "privileges")
}

// Other code may have written any time that PostgreSQL has. One such row keeps no check from its answer.
func TestInspectCopesWithAnyTime(t *testing.T) {
	t.Parallel()
	for _, claimed := range []string{"infinity", "-infinity", "294276-12-31 23:59:59", "4713-01-01 00:00:00 BC"} {
		t.Run(claimed, func(t *testing.T) {
			t.Parallel()
			db := open(t, setup{})
			mustExec(t, db, "ALTER TABLE idempotency_keys SET (autovacuum_enabled = off)")
			insertKeys(t, db, "s", 1000, 20*day, 0)
			mustExec(t, db, `INSERT INTO idempotency_keys (source, event_id, payload_digest, claimed_at) VALUES ('s', 'evt', '\x00', ?::timestamptz)`, claimed) // one: ANALYZE puts it at an end of its histogram
			mustExec(t, db, "ANALYZE idempotency_keys")
			mustExec(t, db, "DELETE FROM idempotency_keys WHERE isfinite(claimed_at) AND claimed_at BETWEEN now() - interval '1 year' AND now() - interval '10 days'")
			report := inspect(t, db)
			requireFinding(t, report, "incomplete-claims", idempotency.Warning, ": 1, the oldest from")
			if len(report.Skipped) > 0 || report.Keys < 500 || report.OldestClaim < 9*day {
				t.Errorf("got %+v", report)
			}
			if overdue := strings.HasPrefix(claimed, "-") || strings.HasSuffix(claimed, "BC"); (report.Overdue == 1) != overdue {
				t.Errorf("%d keys are overdue", report.Overdue)
			}
			if !strings.HasSuffix(claimed, "BC") { // that is the oldest that is left
				requireFinding(t, report, "deleted-early", idempotency.Critical, "19 days old")
			}
		})
	}
}

// However large the table, however far its BRIN index and its statistics are from the truth, an inspection reads a bounded
// number of pages.
func TestInspectReadsABoundedNumberOfPages(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(testing.TB, *gorm.DB){"plain": func(testing.TB, *gorm.DB) {}, "partitioned": partition} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := gormtest.DSN(t)
			db := reopen(t, open(t, setup{dsn: dsn}))
			prepare(t, db)
			// A planner that shuns indexes must not read the table instead.
			mustExec(t, db, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET random_page_cost = 100000', current_database()); END $$")
			insertKeys(t, db, "s", 60_000, 60*day, 0)
			before := inspectionPages(t, db, dsn)
			mustExec(t, db, "DELETE FROM idempotency_keys WHERE claimed_at < now() - interval '30 days'")
			mustExec(t, db, "VACUUM idempotency_keys")
			insertKeys(t, db, "s", 200_000, day, 0)
			after := inspectionPages(t, db, dsn)
			if size := inspect(t, db).Pages; size < 2500 || before < 150 || before > 450 || after < 150 || after > 450 {
				t.Errorf("inspections read %d and %d pages of a table that has %d in the end, want about 256", before, after, size)
			}
		})
	}
}

// inspectionPages counts the pages of the table, of its indexes and of TOAST that one inspection reads. A backend's counts
// are certain once it has ended.
func inspectionPages(t testing.TB, db *gorm.DB, dsn string) int64 {
	t.Helper()
	read := func() int64 {
		eventually(t, "the other backends have ended", func() bool {
			return !read[bool](t, db, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid())")
		})
		return read[int64](t, db, `SELECT sum(heap_blks_read + heap_blks_hit + coalesce(idx_blks_read + idx_blks_hit, 0) +
			coalesce(toast_blks_read + toast_blks_hit + tidx_blks_read + tidx_blks_hit, 0))
			FROM pg_statio_user_tables WHERE relname = 'idempotency_keys' OR relname LIKE 'part\_%'`)
	}
	before := read()
	inspect(t, reopen(t, open(t, setup{dsn: dsn})))
	return read() - before
}

// An inspection works in every mode of the driver and of GORM.
func TestInspectInEveryMode(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	prepared := map[string]gorm.Dialector{"PrepareStmt": postgres.Open(dsn)}
	for name, driver := range driverModes(dsn) {
		prepared[name] = driver
	}
	insertKeys(t, open(t, setup{dsn: dsn}), "short", 100, 40*day, 35*day)
	for name, driver := range prepared {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t, setup{driver: driver, gorm: gorm.Config{PrepareStmt: name == "PrepareStmt"}, config: idempotency.Config{
				Sources: map[string]idempotency.SourceConfig{`it's "sh\ort"`: {Retention: time.Hour, RetryHorizon: time.Minute}, "short": {Retention: 2 * day, RetryHorizon: day}},
			}})
			report := inspect(t, db)
			requireFinding(t, report, "overdue-keys", idempotency.Warning, "100 keys are overdue", "retention of 2 days")
			if len(report.Findings) != 1 || len(report.Skipped) != 0 {
				t.Errorf("got %+v", report)
			}
		})
	}
}

// Bad handles are refused before anything is asked, and the context's end is an error and no report.
func TestInspectRefusesBadHandles(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	tx := db.Begin()
	for want, handle := range map[error]*gorm.DB{idempotency.ErrUnsupported: tx, idempotency.ErrNotRegistered: offline(t)} {
		report, err := idempotency.Inspect(t.Context(), handle)
		if requireError(t, err, want); report != nil {
			t.Errorf("got %+v beside %v", report, err)
		}
	}
	tx.Rollback()
	_, err := idempotency.Inspect(t.Context(), nil)
	requireError(t, err, idempotency.ErrUnsupported)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	report, err := idempotency.Inspect(ctx, db)
	if requireError(t, err, context.Canceled); report != nil {
		t.Errorf("got %+v", report)
	}
	requireIdle(t, db)
}

// An inspection writes nothing: it works in a read-only transaction.
func TestInspectWritesNothing(t *testing.T) {
	t.Parallel()
	db, w := openWired(t, setup{})
	inspect(t, db)
	for _, s := range w.take() {
		if strings.HasPrefix(s.text, "begin") && !strings.Contains(s.text, "read only") {
			t.Errorf("began with %q", s.text)
		}
	}
}

// Durations are seconds in JSON, severities words, and lists never null.
func TestReportInJSON(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(idempotency.Report{
		Findings: []idempotency.Finding{{Check: "overdue-keys", Severity: idempotency.Warning, Message: "m", Remedy: "r"}},
		Skipped:  []idempotency.Skipped{}, OldestClaim: 90 * time.Second,
		Holders: []idempotency.Holder{{PID: 1, Held: 1500 * time.Millisecond, Locks: []string{"1/2"}}}, Waiters: []idempotency.Waiter{{PID: 2, Waited: time.Minute}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"severity":"warning"`, `"oldest_claim_seconds":90`, `"held_seconds":1.5`, `"waited_seconds":60`, `"healthy":false`, `"skipped":[]`, `"locks":["1/2"]`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is not in %s", want, text)
		}
	}
	var back idempotency.Report
	if err := json.Unmarshal(text, &back); err != nil || back.Findings[0].Severity != idempotency.Warning {
		t.Errorf("got %+v, %v", back, err)
	}
	var severity idempotency.Severity
	if err := severity.UnmarshalText([]byte("grave")); err == nil || errors.Is(err, idempotency.ErrSchema) {
		t.Error("an unknown severity was accepted")
	}
	if idempotency.Severity(7).String() != "severity(7)" {
		t.Error("an unknown severity has no name")
	}
}
