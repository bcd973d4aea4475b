package main

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
)

const theKey = `INSERT INTO idempotency_keys (source, event_id, payload_digest, claimed_at, completed_at, response_status, response_raw)
	VALUES ('stripe', 'evt_1', '\x00', '2026-01-02 03:04:05Z', '2026-01-02 03:04:05Z', 201, '\x7b7d')`

func TestForget(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	k.insert(t, "stripe", 2, time.Hour)
	k.exec(t, theKey)
	status, stdout, stderr := k.call(t, "forget", "stripe", "evt_1", "--yes")
	if status != 0 || stdout != "Deleted the key of event \"evt_1\" of source \"stripe\", claimed at 2026-01-02 03:04:05 UTC.\n" || stderr != "" {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
	k.require(t, "stripe", 2)

	status, stdout, stderr = k.call(t, "forget", "stripe", "evt_1", "--yes")
	if status != exitFailed || stdout != "" || !strings.Contains(stderr, `there is no key of event "evt_1" of source "stripe" in idempotency_keys`) {
		t.Errorf("again: status %d\n%s%s", status, stdout, stderr)
	}
	k.exec(t, theKey)
	status, stdout, _ = k.call(t, "forget", "stripe", "evt_1", "--yes", "--json")
	if f := parse[forgotten](t, stdout); status != 0 || f.Source != "stripe" || f.EventID != "evt_1" || !f.ClaimedAt.Equal(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)) {
		t.Errorf("status %d, %s", status, stdout)
	}
}

// Nothing but a yes deletes, and the question shows what is at stake.
func TestForget_Asks(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	for _, c := range []struct {
		answer        string
		status, left  int
		says, written string
	}{
		{"n\n", exitFailed, 1, "nothing was done", ""},
		{"\n", exitFailed, 1, "nothing was done", ""},
		{"", exitFailed, 1, "nothing was done", ""},
		{"yesterday\n", exitFailed, 1, "nothing was done", ""},
		{" Yes \n", 0, 0, "201 of 2 bytes", "Deleted the key"},
		{"y", 0, 0, "2026-01-02 03:04:05 UTC", "Deleted the key"},
	} {
		k.exec(t, `DELETE FROM idempotency_keys`)
		k.exec(t, theKey)
		root, stdout, stderr := rooted("forget", "stripe", "evt_1", "--dsn", k.dsn)
		root.SetIn(strings.NewReader(c.answer))
		status := execute(t.Context(), root)
		if status != c.status || !strings.Contains(stderr.String(), c.says) || !strings.HasPrefix(stdout.String(), c.written) {
			t.Errorf("%q: status %d\n%s%s", c.answer, status, stdout, stderr)
		}
		k.require(t, "stripe", c.left)
	}
}

// A script that forgot --yes deletes nothing, and Ctrl-C is no answer.
func TestForget_NobodyAnswers(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	k.exec(t, theKey)
	status, stdout, stderr := k.call(t, "forget", "stripe", "evt_1") // the tests have no terminal
	if status != exitFailed || stdout != "" || !strings.Contains(stderr, "--yes") {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}

	ctx, cancel := context.WithCancel(t.Context())
	silent, mute := io.Pipe()
	defer mute.Close()
	root, _, asked := rooted("forget", "stripe", "evt_1", "--dsn", k.dsn)
	root.SetIn(silent)
	ended := make(chan int)
	go func() { ended <- execute(ctx, root) }()
	for !strings.Contains(asked.String(), "[y/N]") {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if status := <-ended; status != exitInterrupted {
		t.Errorf("after Ctrl-C: status %d\n%s", status, asked)
	}
	k.require(t, "stripe", 1)
}

// Somebody else forgets the key while the question is open, and the event takes effect again: a yes to the old key must not
// give it a third effect.
func TestForget_DeletesNoOtherKeyThanItShowed(t *testing.T) {
	t.Parallel()
	for meanwhile, want := range map[string]string{
		`UPDATE idempotency_keys SET claimed_at = now()`: "claimed again",
		`DELETE FROM idempotency_keys`:                   "deleted by somebody else",
	} {
		k := newKeys(t)
		k.exec(t, theKey)
		in, answer := io.Pipe()
		root, stdout, stderr := rooted("forget", "stripe", "evt_1", "--dsn", k.dsn)
		root.SetIn(in)
		ended := make(chan int)
		go func() { ended <- execute(t.Context(), root) }()
		for !strings.Contains(stderr.String(), "[y/N]") {
			time.Sleep(time.Millisecond)
		}
		k.exec(t, meanwhile)
		_, _ = io.WriteString(answer, "y\n")
		if status := <-ended; status != exitFailed || stdout.String() != "" || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: status %d\n%s%s", meanwhile, status, stdout, stderr)
		}
	}
}

// A key that is held is not there yet: who asks is told so, and by whom.
func TestForget_InFlight(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	db, err := gorm.Open(postgres.New(postgres.Config{Conn: k.pool}), &gorm.Config{})
	if err == nil {
		err = db.Use(idempotency.New(idempotency.Config{}))
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = idempotency.Do(db, "stripe", "evt_1", nil, func(*gorm.DB) error {
		status, stdout, stderr := k.call(t, "forget", "stripe", "evt_1", "--yes")
		if status != exitFailed || stdout != "" || !strings.Contains(stderr, "is in flight: backend ") || !strings.Contains(stderr, "in a transaction since ") {
			t.Errorf("status %d\n%s%s", status, stdout, stderr)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	k.require(t, "stripe", 1)
}

func TestForget_BadInput(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	for _, args := range [][]string{{}, {"stripe"}, {"stripe", "evt_1", "more"}, {"", "evt_1"}, {"stripe", ""}, {"stripe", "evt\n1"}, {"stripe", strings.Repeat("x", 1025)}} {
		status, stdout, stderr := k.call(t, append([]string{"forget", "--yes"}, args...)...)
		if status != exitFailed || stdout != "" || !strings.HasPrefix(stderr, "idempotency: ") {
			t.Errorf("%q: status %d\n%s%s", args, status, stdout, stderr)
		}
	}
}
