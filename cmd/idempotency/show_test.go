package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-idempotency/idempotency"
)

// handle is what an application has.
func (k *keys) handle(t *testing.T, config idempotency.Config) *gorm.DB {
	t.Helper()
	db, err := gorm.Open(postgres.Open(k.dsn), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		t.Fatal(err)
	}
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close() })
	if err := db.Use(idempotency.New(config)); err != nil {
		t.Fatal(err)
	}
	return db
}

// deliver delivers an event through the library.
func (k *keys) deliver(t *testing.T, config idempotency.Config, id, body string, respond func(*gorm.DB) error) {
	t.Helper()
	if _, err := idempotency.Do(k.handle(t, config), "shop", id, []byte(body), respond); err != nil {
		t.Fatal(err)
	}
}

// hold claims a key in a delivery that ends with the test, and undoes it then.
func (k *keys) hold(t *testing.T, source, id string) {
	t.Helper()
	running, finish, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	db := k.handle(t, idempotency.Config{})
	go func() {
		_, err := idempotency.Do(db.WithContext(context.Background()), source, id, nil, func(*gorm.DB) error {
			close(running)
			<-finish
			return errors.New("the test is over")
		})
		done <- err
	}()
	end := sync.OnceFunc(func() { close(finish); <-done })
	t.Cleanup(end)
	select {
	case <-running:
	case err := <-done:
		done <- err
		t.Fatal(err)
	}
}

func answer(status int, body any) func(*gorm.DB) error {
	return func(tx *gorm.DB) error { return idempotency.Respond(tx, status, body) }
}

func raw(status int, contentType, body string) func(*gorm.DB) error {
	return func(tx *gorm.DB) error {
		return idempotency.RespondRaw(tx, status, map[string][]string{"Content-Type": {contentType}}, []byte(body))
	}
}

func none(*gorm.DB) error { return nil }

func TestShow_Answers(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	for id, test := range map[string]struct {
		respond func(*gorm.DB) error
		says    []string
	}{
		"json":    {answer(201, map[string]string{"order": "A-1"}), []string{"\nanswer     201 Created\n", "Content-Type: application/json", "15 bytes, JSON\n\n{\n  \"order\": \"A-1\"\n}\n"}},
		"numbers": {raw(200, "application/json", `{"n":9007199254740993,"n":1.0}`), []string{`"n": 9007199254740993`, `"n": 1.0`}},
		"text":    {raw(202, "text/plain", "Accepted\n"), []string{"Content-Type: text/plain\n", "9 bytes of text\n\nAccepted\n"}},
		"binary":  {raw(200, "image/png", "\x89PNG\x00\x1b[2J"), []string{"9 bytes that are no text", "Content-Type: image/png"}},
		"escape":  {answer(200, "\u009b2J\x7f"), []string{`"\u009b2J\u007f"`}},
		"turned":  {answer(200, "a\u202eb"), []string{`"a\u202eb"`, "bytes, JSON"}},
		"hebrew":  {raw(200, "text/plain", "\u05d0\u200f!\u2066"), []string{"\u05d0\\u200f!\\u2066\n", "bytes of text"}},
		"header":  {raw(200, "text/x\u202ey", ""), []string{"Content-Type: text/x?y\n"}},
		"nothing": {none, []string{"\nanswer     none: answered as 200 with no body\n"}},
		"no body": {answer(204, nil), []string{"\nanswer     204 No Content\n", "\nbody       none\n"}},
	} {
		k.deliver(t, idempotency.Config{}, id, "payload", test.respond)
		status, stdout, stderr := k.call(t, "show", "shop", id)
		if status != 0 || stderr != "" {
			t.Errorf("%s: status %d\n%s", id, status, stderr)
		}
		for _, want := range append(test.says, `event "`+id+`" of source "shop"`, "\nclaimed    20", "\ncompleted  with the claim", "\nholder     nobody\n",
			"\ndigest     sha256 239f59ed55e737c77147cf55ad0c1b030b6d7ee748a7426952f9b852d5a935e5\n") {
			if !strings.Contains(stdout, want) {
				t.Errorf("%s: %q is not in\n%s", id, want, stdout)
			}
		}
		if strings.ContainsAny(stdout, "\x1b\u009b\x7f\u202e\u200f\u2066") {
			t.Errorf("%s: control characters in %q", id, stdout)
		}
	}
}

func TestShow_JSON(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	k.deliver(t, idempotency.Config{Digest: idempotency.JSONDigest("/attempt")}, "evt", `{"a":1}`, answer(201, map[string]int{"n": 1}))
	status, stdout, stderr := k.call(t, "show", "shop", "evt", "--json", "--retention", "30d", "--source", "shop=1d")
	shown := parse[shownKey](t, stdout)
	if status != 0 || stderr != "" || shown.Source != "shop" || shown.EventID != "evt" || shown.Digest.Scheme != `json["/attempt"]` || len(shown.Digest.Sum) != 64 ||
		shown.Answer.Status != 201 || string(shown.Answer.Raw) != `{"n":1}` || shown.Answer.Bytes != 7 || len(shown.Answer.JSON) == 0 || shown.Holder != nil ||
		!shown.SweptAfter.equal(shown.ClaimedAt.after(day)) || !shown.CompletedAt.equal(shown.ClaimedAt) || shown.PayloadMatches != nil {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
}

// --body compares under the digest of the row.
func TestShow_Body(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	own := idempotency.Digest{Name: "mine", Sum: func([]byte) [32]byte { return [32]byte{1} }}
	k.deliver(t, idempotency.Config{}, "bytes", `{"a":1}`, none)
	k.deliver(t, idempotency.Config{Digest: idempotency.JSONDigest("/attempt", "/at")}, "json", `{"a":1,"attempt":1}`, none)
	k.deliver(t, idempotency.Config{Digest: own}, "own", `{}`, none)
	k.deliver(t, idempotency.Config{}, "empty", ``, none)
	for _, test := range []struct {
		id, body string
		status   int
		says     string
	}{
		{"bytes", `{"a":1}`, 0, "\n--body     matches\n"},
		{"bytes", `{"a": 1}`, 2, "\n--body     does not match"},
		{"json", `{"attempt":2, "a": 1}`, 0, "\n--body     matches\n"},
		{"json", `{"attempt":2, "a": 2}`, 2, "\n--body     does not match"},
		{"own", `{}`, 1, `the digest "mine" is the application's own`},
		{"empty", ``, 0, "\n--body     matches\n"},
		{"empty", `x`, 2, "\n--body     does not match"},
	} {
		file := filepath.Join(t.TempDir(), "body")
		if err := os.WriteFile(file, []byte(test.body), 0o600); err != nil {
			t.Fatal(err)
		}
		status, stdout, stderr := k.call(t, "show", "shop", test.id, "--body", file)
		if status != test.status || !strings.Contains(stdout+stderr, test.says) {
			t.Errorf("%+v: status %d\n%s%s", test, status, stdout, stderr)
		}
	}
	if status, _, stderr := k.call(t, "show", "shop", "bytes", "--body", filepath.Join(t.TempDir(), "missing")); status != 1 || !strings.Contains(stderr, "--body") {
		t.Errorf("a missing file: status %d\n%s", status, stderr)
	}
}

// A key that is held and not committed has a holder and no row; nobody else's key is taken for it.
func TestShow_InFlight(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	k.hold(t, "shop", "evt")
	status, stdout, stderr := k.call(t, "show", "shop", "evt")
	if status != 0 || stderr != "" || !strings.Contains(stdout, "\nclaimed    and not committed") || !strings.Contains(stdout, "\nholder     backend ") ||
		!strings.Contains(stdout, ", idle in transaction, since 20") || strings.Contains(stdout, "answer  ") {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
	_, stdout, _ = k.call(t, "show", "shop", "evt", "--json")
	shown := parse[shownKey](t, stdout)
	var pid int
	if err := k.pool.QueryRow(`SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	if shown.Holder == nil || shown.Holder.PID != pid || shown.Holder.Since == nil || shown.ClaimedAt != nil || shown.Answer != nil {
		t.Errorf("want %d: %s", pid, stdout)
	}
	file := filepath.Join(t.TempDir(), "body")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if status, _, stderr := k.call(t, "show", "shop", "evt", "--body", file); status != 1 || !strings.Contains(stderr, "no digest to compare") {
		t.Errorf("status %d\n%s", status, stderr)
	}
	for _, other := range [][]string{{"shop", "evt2"}, {"shope", "vt"}} {
		if status, stdout, stderr := k.call(t, "show", other[0], other[1]); status != 1 || stdout != "" || !strings.Contains(stderr, "there is no key") {
			t.Errorf("%q: status %d\n%s%s", other, status, stdout, stderr)
		}
	}
}

// A row that other code left incomplete says so.
func TestShow_Incomplete(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	k.exec(t, `INSERT INTO idempotency_keys (source, event_id, payload_digest) VALUES ('shop', 'evt', '\x00')`)
	if status, stdout, _ := k.call(t, "show", "shop", "evt"); status != 0 || !strings.Contains(stdout, "\ncompleted  never: other code") {
		t.Errorf("status %d\n%s", status, stdout)
	}
}

// What misleads on a terminal is escaped in JSON as well, where it means the same.
func TestShow_JSONOnATerminal(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	k.deliver(t, idempotency.Config{}, "evt\u202e", "", answer(200, "\u009b2J\u202e"))
	_, stdout, _ := k.call(t, "show", "shop", "evt\u202e", "--json")
	if shown := parse[shownKey](t, stdout); strings.ContainsAny(stdout, "\u009b\u202e") || shown.EventID != "evt\u202e" || string(shown.Answer.Raw) != "\"\u009b2J\u202e\"" {
		t.Errorf("got %s", stdout)
	}
	if _, stdout, _ := k.call(t, "show", "shop", "evt\u202e"); strings.ContainsAny(stdout, "\u009b\u202e") {
		t.Errorf("got %q", stdout)
	}
}

// What is missing is named, and what to run.
func TestShow_SaysWhatToRun(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	for _, command := range []string{"show", "forget"} {
		if _, _, stderr := k.call(t, command, "shop"); !strings.Contains(stderr, "want SOURCE and ID, and got 1 argument\n") {
			t.Errorf("%s: %s", command, stderr)
		}
		_, _, stderr := k.call(t, command, "shop", "evt", "--table", "missing")
		if !strings.Contains(stderr, "missing") || !strings.Contains(stderr, "idempotency migrate up") || !strings.Contains(stderr, "--table") {
			t.Errorf("%s: %s", command, stderr)
		}
	}
}

func TestShow_BadInput(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	for _, args := range [][]string{{"shop"}, {"shop", "evt", "more"}, {"shop", ""}, {"shop", "evt\n"}, {"shop", "evt", "--table", "no such"}, {"shop", "evt", "--table", "missing"}} {
		if status, stdout, stderr := k.call(t, append([]string{"show"}, args...)...); status != 1 || stdout != "" || !strings.HasPrefix(stderr, "idempotency: ") {
			t.Errorf("%q: status %d\n%s%s", args, status, stdout, stderr)
		}
	}
}
