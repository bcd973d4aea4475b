package main

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// Each would delete keys too early, or never end, if it were taken for something else. Nothing is connected to.
func TestSweep_BadInput(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args string
		want string
	}{
		{"", "--retention"},
		{"--source stripe=30d", "--retention"},
		{"--retention 0", "above zero"},
		{"--retention 0h", "above zero"},
		{"--retention -720h", "above zero"},
		{"--retention 1ms", "--retention is 1ms, and must be at least 1s"},
		{"--retention 720", "want a number and a unit"},
		{"--retention 99999999999h", "at most 292 years"},
		{"--retention 300000d", "at most 292 years"},
		{"--retention 30d --source stripe", "NAME=AGE"},
		{"--retention 30d --source stripe=0", "above zero"},
		{"--retention 30d --source stripe=1h --source stripe=2h", "given before"},
		{"--retention 30d --source stripe=30d/30d", `the retention of "stripe" is 30d, and must exceed its sender's retry horizon of 30d`},
		{"--retention 30d --source stripe=1ms", `--source: the retention of "stripe" is 1ms`},
		{"--retention 30d --source stripe=30d/720h1s", "retry horizon"},
		{"--retention 30d --source a\tb=30d", `--source: "a\tb" has a name that contains`},
		{"--retention 30d --batch-size 0", "--batch-size"},
		{"--retention 30d --batch-size -1", "--batch-size"},
		{"--retention 30d --batch-size 100001", "--batch-size"},
		{"--retention 30d --max-batches -1", "--max-batches"},
		{"--retention 30d --pause -1s", "--pause"},
		{"--retention 30d --interval 0", "--interval"},
		{"--retention 30d --interval -1m", "--interval"},
		{"--retention 30d --dry-run --watch", "--watch"},
		{"--retention 30d more", "unknown command"},
	} {
		args := append([]string{"sweep", "--dsn", "postgres://127.0.0.1:1/not_to_be_used"}, strings.FieldsFunc(c.args, func(r rune) bool { return r == ' ' })...)
		status, stdout, stderr := try(t, args...)
		if status != exitFailed || stdout != "" || !strings.Contains(stderr, c.want) || !strings.Contains(stderr, "\nUsage: idempotency sweep") {
			t.Errorf("%q: status %d, want 1 and %q\n%s%s", c.args, status, c.want, stdout, stderr)
		}
	}
}

// What is older than its source's retention goes, and nothing else; a dry run counts exactly that, and deletes nothing.
func TestSweep(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	for source, age := range map[string]time.Duration{"stripe": 45 * day, "short": time.Hour, `it's "odd"=`: 30 * day, "other": 30 * day} {
		k.insert(t, source, 30, age+time.Minute)
		k.insert(t, source, 20, age-time.Minute)
	}
	args := []string{"sweep", "--retention", "30d", "--source", "stripe=45d/40d", "--source", "short=1h", "--source", `it's "odd"==720h`,
		"--batch-size", "25", "--pause", "0"}

	status, stdout, stderr := k.call(t, append(args, "--dry-run", "--json")...)
	counted := parse[overdueKeys](t, stdout)
	if status != 0 || counted.Overdue != 120 || len(counted.Sources) != 4 || *counted.Sources[2].Source != "stripe" ||
		counted.Sources[2].Overdue != 30 || counted.Sources[2].Retention != (45*day).Seconds() || counted.Sources[3].Source != nil {
		t.Errorf("dry run: status %d\n%s%s", status, stdout, stderr)
	}
	if _, stdout, _ := k.call(t, append(args, "--dry-run")...); !strings.Contains(stdout, "would delete 120 keys. Nothing was deleted") ||
		!strings.Contains(stdout, "all others") || !strings.Contains(stdout, "45d") {
		t.Errorf("dry run:\n%s", stdout)
	}
	for _, source := range []string{"stripe", "short", `it's "odd"=`, "other"} {
		k.require(t, source, 50)
	}

	status, stdout, stderr = k.call(t, args...)
	if status != 0 || !strings.HasPrefix(stdout, "Deleted 120 keys in ") || !strings.HasSuffix(stdout, ": nothing is overdue any more.\n") || stderr != "" {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
	for _, source := range []string{"stripe", "short", `it's "odd"=`, "other"} {
		k.require(t, source, 20)
	}
	status, stdout, _ = k.call(t, append(args, "--json")...)
	if r := parse[sweepResult](t, stdout); status != 0 || r.Deleted != 0 || r.Batches != 0 || !r.CaughtUp || r.Busy || r.Interrupted || r.Failed {
		t.Errorf("again: status %d, %s", status, stdout)
	}
}

func TestSweep_EndsWhenItsBatchesAreUsedUp(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	k.insert(t, "s", 100, 40*day)
	status, stdout, stderr := k.call(t, "sweep", "--retention", "30d", "--batch-size", "10", "--max-batches", "3", "--pause", "0")
	if status != 0 || !strings.HasPrefix(stdout, "Deleted 30 keys in 3 batches") || !strings.Contains(stdout, "--max-batches are used up") {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
	k.require(t, "s", 70)
}

// A CronJob that meets the application's own sweeper has nothing to complain of.
func TestSweep_LeavesTheTableToAnotherSweeper(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	k.insert(t, "s", 10, 40*day)
	tx, err := k.pool.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.Exec(`SELECT pg_advisory_xact_lock(hashtextextended('idempotency sweep', 0) # 'idempotency_keys'::regclass::oid::bigint)`); err != nil {
		t.Fatal(err)
	}
	status, stdout, stderr := k.call(t, "sweep", "--retention", "30d")
	if status != 0 || !strings.HasPrefix(stdout, "Deleted 0 keys") || !strings.Contains(stdout, "another sweeper is at work") {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
	k.require(t, "s", 10)
}

// Ctrl-C in a batch: the batch is finished, and its keys are counted.
func TestSweep_InterruptedInABatch(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	k.insert(t, "s", 30, 40*day)
	// Each batch waits for a lock of the test's before it ends.
	k.exec(t, `CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(42); RETURN NULL; END $$`)
	k.exec(t, `CREATE TRIGGER wait AFTER DELETE ON idempotency_keys FOR EACH STATEMENT EXECUTE FUNCTION wait()`)
	gate, err := k.pool.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer gate.Close()
	if _, err := gate.ExecContext(t.Context(), `SELECT pg_advisory_lock(42)`); err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	root, stdout, stderr := rooted("sweep", "--retention", "30d", "--batch-size", "10", "--json", "--dsn", k.dsn)
	ended := make(chan int)
	go func() { ended <- execute(ctx, root) }()
	k.eventually(t, `SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 42 AND NOT granted)`)
	cancel()
	if _, err := gate.ExecContext(t.Context(), `SELECT pg_advisory_unlock(42)`); err != nil {
		t.Fatal(err)
	}
	status := <-ended
	if r := parse[sweepResult](t, stdout.String()); status != exitInterrupted || r.Deleted != 10 || r.Batches != 1 || !r.Interrupted || r.CaughtUp {
		t.Errorf("status %d, %s%s", status, stdout, stderr)
	}
	k.require(t, "s", 20)
}

// What was deleted before an error is told beside it.
func TestSweep_FailsInBetween(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	k.insert(t, "s", 30, 40*day)
	k.exec(t, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF (SELECT count(*) FROM idempotency_keys) < 15 THEN RAISE 'enough'; END IF; RETURN NULL; END $$`)
	k.exec(t, `CREATE TRIGGER refuse AFTER DELETE ON idempotency_keys FOR EACH STATEMENT EXECUTE FUNCTION refuse()`)
	status, stdout, stderr := k.call(t, "sweep", "--retention", "30d", "--batch-size", "10", "--pause", "0")
	if status != exitFailed || !strings.HasPrefix(stdout, "Deleted 10 keys in 1 batch,") || !strings.Contains(stdout, "then it failed") || !strings.Contains(stderr, "enough") {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
	k.require(t, "s", 20)
}

// --watch sweeps again and again, and being told to end is its only end.
func TestSweep_Watch(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	k.insert(t, "s", 10, 40*day)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	root, stdout, stderr := rooted("sweep", "--retention", "30d", "--watch", "--interval", "1s", "--dsn", k.dsn)
	ended := make(chan int)
	go func() { ended <- execute(ctx, root) }()
	none := `SELECT NOT EXISTS (SELECT 1 FROM idempotency_keys)`
	k.eventually(t, none)
	k.insert(t, "s", 10, 40*day)
	k.eventually(t, none)
	cancel()
	if status := <-ended; status != 0 {
		t.Errorf("status %d\n%s", status, stderr)
	}
	if told := strings.Count(stdout.String(), "Deleted 10 keys in 1 batch,"); told != 2 {
		t.Errorf("%d sweeps of 10 keys are told of, want 2:\n%s", told, stdout)
	}
}

// An error that may pass does not end --watch.
func TestSweep_WatchTriesAgain(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	k.insert(t, "s", 10, 40*day)
	k.exec(t, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now'; END $$`)
	k.exec(t, `CREATE TRIGGER refuse BEFORE DELETE ON idempotency_keys FOR EACH STATEMENT EXECUTE FUNCTION refuse()`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	root, stdout, stderr := rooted("sweep", "--retention", "30d", "--watch", "--dsn", k.dsn)
	ended := make(chan int)
	go func() { ended <- execute(ctx, root) }()
	for !strings.Contains(stderr.String(), "not now") {
		select {
		case status := <-ended:
			t.Fatalf("it ended with status %d\n%s", status, stderr)
		case <-time.After(time.Millisecond):
		}
	}
	k.exec(t, `DROP TRIGGER refuse ON idempotency_keys`)
	k.eventually(t, `SELECT NOT EXISTS (SELECT 1 FROM idempotency_keys)`)
	cancel()
	if status := <-ended; status != 0 || !strings.Contains(stdout.String(), "Deleted 10 keys") {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
}

// rooted is the whole command with its output in memory.
func rooted(args ...string) (root *cobra.Command, stdout, stderr *output) {
	stdout, stderr = &output{}, &output{}
	root = newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return root, stdout, stderr
}

// output can be read while a command writes it.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// A log gets a line every ten seconds, with what was done until then.
func TestLinesOfALog(t *testing.T) {
	t.Parallel()
	began := time.Now()
	var out bytes.Buffer
	l := &lines{out: &out, began: began, next: began.Add(lineInterval)}
	for second := range 21 {
		l.updateAt(began.Add(time.Duration(second)*time.Second), sweepResult{Deleted: int64(second) * 5000, Batches: second})
	}
	want := "sweeping: 50,000 keys deleted in 10 batches, 10 s, 5,000 keys/s\nsweeping: 100,000 keys deleted in 20 batches, 20 s, 5,000 keys/s\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", &out, want)
	}
}

// The bar tells the truth also if more keys expire meanwhile, or if nobody knows how many there are.
func TestBar_TellsTheTruth(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		length, deleted int64
		want            string
	}{
		{12345, 5000, "5,000 of 12,345 keys deleted"},
		{12345, 20000, "20,000 of 20,000 keys deleted"},
		{0, 5000, "5,000 of 5,000 keys deleted"},
		{-1, 5000, "5,000 keys deleted"},
	} {
		var drawn bytes.Buffer
		b := newBar(&drawn, c.length)
		b.update(sweepResult{Deleted: c.deleted})
		b.end()
		if !strings.Contains(drawn.String(), c.want) {
			t.Errorf("%d of %d: want %q in %q", c.deleted, c.length, c.want, &drawn)
		}
	}
}
