package demo

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
)

// runDemo runs a demo on a database of the test's own, and returns what it printed.
func runDemo(t *testing.T, options Options) (string, error) {
	t.Helper()
	var out bytes.Buffer
	if options.DSN == "" {
		options.DSN = gormtest.DSN(t)
	}
	if options.Screen.Out == nil {
		options.Screen.Out = &out
	}
	err := Run(t.Context(), options)
	requireNothingLeft(t, options.DSN)
	return out.String(), err
}

// requireNothingLeft fails if the database has a schema of the demo.
func requireNothingLeft(t *testing.T, dsn string) {
	t.Helper()
	config, err := parseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()
	var left int
	if err := db.QueryRow(`SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'idempotency_demo_%'`).Scan(&left); err != nil {
		t.Fatal(err)
	}
	if left != 0 {
		t.Errorf("the demo left %d schemas behind", left)
	}
}

func TestRun_EachEventTakesEffectOnce(t *testing.T) {
	t.Parallel()
	out, err := runDemo(t, Options{Seed: 1})
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !strings.Contains(out, "PASSED: 36 events") || !strings.Contains(out, "36 orders and 36 payments") {
		t.Errorf("no verdict in\n%s", out)
	}
	for _, s := range scenarios {
		if !strings.Contains(out, s.title) {
			t.Errorf("no word of the scenario %q", s.title)
		}
	}
}

func TestRun_InAPipeIsPlain(t *testing.T) {
	t.Parallel()
	out, err := runDemo(t, Options{Payloads: writeFiles(t, map[string]string{"a.json": `{"id":"a"}`, strings.Repeat("lö", 80) + ".json": `[]`})})
	if err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(out, "\x1b\r") {
		t.Errorf("the output has control characters:\n%q", out)
	}
	requireNarrow(t, out)
}

func requireNarrow(t *testing.T, out string) {
	t.Helper()
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "  psql ") {
			continue // as long as the database's name is
		}
		if width := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); width > lineWidth {
			t.Errorf("a line has %d columns: %s", width, line)
		}
	}
}

func TestRun_JSON(t *testing.T) {
	t.Parallel()
	out, err := runDemo(t, Options{JSON: true, Seed: 2})
	if err != nil {
		t.Fatal(err)
	}
	var report Report
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	if !report.OK || report.Seed != 2 || len(report.Events) != 36 {
		t.Errorf("the report is %+v", report)
	}
	for _, e := range report.Events {
		if sum := e.Executed + e.Replays + e.InFlight + e.Mismatches + e.Failed; sum != e.Requests || len(e.Log) != sum {
			t.Errorf("%s %s: the outcomes add up to %d of %d requests, and the log has %d", e.Source, e.EventID, sum, e.Requests, len(e.Log))
		}
		if e.Executed != 1 || e.Orders != 1 || e.Payments != 1 || e.Keys != 1 || !e.OK || !e.AnswersIdentical {
			t.Errorf("%s %s: %+v", e.Source, e.EventID, e.Counts)
		}
		requireOutcomes(t, e)
		requireOrder(t, e)
	}
}

// requireOutcomes fails if an event's scenario did not show what it is for.
func requireOutcomes(t *testing.T, e Event) {
	t.Helper()
	i := 0
	for scenarios[i].title != e.Scenario {
		i++
	}
	s := scenarios[i]
	switch {
	case e.Deliveries+e.AnswersLost != e.Executed+e.Replays+e.Mismatches:
		t.Errorf("%s: %d deliveries and %d lost answers, but %+v", s.title, e.Deliveries, e.AnswersLost, e.Counts)
	case (s.trouble == fails || s.trouble == crashes) && e.Failed != 1:
		t.Errorf("%s: %d requests failed, want 1", s.title, e.Failed)
	case s.trouble == dawdles && e.InFlight == 0:
		t.Errorf("%s: nothing was in flight", s.title)
	case s.waves[len(s.waves)-1].changed != e.Mismatches:
		t.Errorf("%s: %d mismatches, want %d", s.title, e.Mismatches, s.waves[len(s.waves)-1].changed)
	case s.waves[0].lost != (e.AnswersLost == 1):
		t.Errorf("%s: %d answers were lost", s.title, e.AnswersLost)
	case e.Replays < 4:
		t.Errorf("%s: %d replays", s.title, e.Replays)
	}
}

// requireOrder fails if the log tells an event's story in another order than that of its happening.
func requireOrder(t *testing.T, e Event) {
	t.Helper()
	executed := false
	for i, r := range e.Log {
		needed, known := map[string]bool{"failed": false, "executed": false, "replayed": true, "mismatch": true}[r.Outcome]
		switch {
		case known && needed != executed:
			t.Errorf("%s: request %d, %s, is on the wrong side of the execution", e.Scenario, r.Number, r.Outcome)
		case i > 0 && r.Ended < e.Log[i-1].Ended:
			t.Errorf("%s: request %d ended before the one above it", e.Scenario, r.Number)
		case r.Ended < r.Sent || r.Ended > r.Sent+r.Took:
			t.Errorf("%s: request %d ended before it was sent or after its answer: %+v", e.Scenario, r.Number, r)
		}
		executed = executed || r.Outcome == "executed"
	}
}

func TestInOrder(t *testing.T) {
	t.Parallel()
	list := []*request{
		{number: 1, outcome: idempotency.Replayed, ended: 33},
		{number: 2, outcome: idempotency.Executed, claimed: 25, ended: 35}, // observed after the replay that it let in
		{number: 3, outcome: idempotency.InFlight, ended: 30},
		{number: 4, outcome: idempotency.Failed, claimed: 10, ended: 36}, // and even later
		{number: 5, outcome: idempotency.Mismatch, ended: 34},
		{number: 6, outcome: idempotency.Failed, ended: 40}, // without a claim
	}
	var numbers []int
	for _, r := range inOrder(list) {
		numbers = append(numbers, r.number)
	}
	if want := []int{4, 3, 2, 1, 5, 6}; !slices.Equal(numbers, want) {
		t.Errorf("the order is %v, want %v", numbers, want)
	}
}

func TestRun_FindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		statement string // %[1]s: the schema
		want      string
	}{
		"an effect twice": {
			`INSERT INTO %[1]s.orders (source, event_id, reference, amount_cents, currency)
			 SELECT source, event_id, reference, amount_cents, currency FROM %[1]s.orders LIMIT 1`,
			"took effect more than once: 2 orders and 1 payment",
		},
		"an effect lost": {
			`WITH gone AS (DELETE FROM %[1]s.payments WHERE event_id = 'a' RETURNING order_id)
			 DELETE FROM %[1]s.orders WHERE event_id = 'a'`,
			"others a lost its effect: 0 orders and 0 payments",
		},
		"half an effect": {
			`DELETE FROM %[1]s.payments WHERE event_id = 'a'`,
			"others a lost its effect: 1 order and 0 payments",
		},
		"a key lost": {
			`DELETE FROM %[1]s.idempotency_keys WHERE event_id = 'a'`,
			"others a has 0 keys",
		},
		"an effect of nobody": {
			`INSERT INTO %[1]s.orders (source, event_id, reference, amount_cents, currency) VALUES ('stripe', 'evt_x', '', 0, '')`,
			"stripe evt_x was never delivered and has 1 order and 0 payments",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := runDemo(t, Options{
				Payloads: writeFiles(t, map[string]string{"a.json": `{"id":"a"}`}),
				sabotage: func(ctx context.Context, d *database) error {
					for _, statement := range []string{`ALTER TABLE %[1]s.payments DROP CONSTRAINT payments_order_id_fkey`, test.statement} {
						if _, err := d.pool.ExecContext(ctx, fmt.Sprintf(statement, d.schema)); err != nil {
							return err
						}
					}
					return nil
				},
			})
			if !errors.Is(err, ErrBroken) {
				t.Errorf("error %v, want ErrBroken", err)
			}
			if flat := strings.Join(strings.Fields(out), " "); !strings.Contains(flat, "FAILED: ") || !strings.Contains(flat, test.want) {
				t.Errorf("no word of %q in\n%s", test.want, out)
			}
		})
	}
}

func TestJudge_Answers(t *testing.T) {
	t.Parallel()
	e := &event{sender: senders[0], id: "evt_1"}
	once := effects{orders: 1, payments: 1, keys: 1}
	first := &request{status: 201, answer: []byte("a")}
	if wrong := judge(e, once, []*request{first, {status: 500, answer: []byte("x")}, {status: 201, answer: []byte("a")}}); wrong != nil {
		t.Errorf("a problem with equal answers: %q", wrong)
	}
	if wrong := judge(e, effects{}, []*request{{status: 503}}); len(wrong) != 1 || !strings.Contains(wrong[0], "never answered") {
		t.Errorf("problems with an event that nobody handled: %q", wrong)
	}
	if wrong := judge(e, once, []*request{first, {status: 201, answer: []byte("b")}}); len(wrong) != 1 {
		t.Errorf("problems with different answers: %q", wrong)
	}
	if wrong := judge(e, once, []*request{first, {status: 201, answer: []byte("a"), changed: true}}); len(wrong) != 1 {
		t.Errorf("problems with an accepted change: %q", wrong)
	}
}

func TestRun_InterruptedLeavesNothing(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	for _, moment := range []time.Duration{0, 50 * time.Millisecond, 500 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), moment)
		err := Run(ctx, Options{DSN: dsn, Screen: Screen{Out: new(bytes.Buffer)}})
		cancel()
		if !errors.Is(err, ErrInterrupted) {
			t.Errorf("after %v: error %v, want ErrInterrupted", moment, err)
		}
		requireNothingLeft(t, dsn)
	}
}

// brokenPipe is a reader that went away.
type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, os.ErrClosed }

func TestRun_ReaderGoneLeavesNothing(t *testing.T) {
	t.Parallel()
	_, err := runDemo(t, Options{
		Payloads: writeFiles(t, map[string]string{"a.json": `{}`}), Serve: true, Screen: Screen{Out: brokenPipe{}},
	})
	if !errors.Is(err, os.ErrClosed) {
		t.Errorf("error %v, want the writer's", err)
	}
}

func TestRun_OnATerminal(t *testing.T) {
	t.Parallel()
	oneLine, twoScenarios := "\x1b[1A\x1b[J", "\x1b[8A\x1b[J" // how a picture is erased
	for size, want := range map[[2]int]string{{80, 24}: twoScenarios, {80, 4}: oneLine, {20, 24}: oneLine, {0, 0}: oneLine} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			_, err := runDemo(t, Options{
				Payloads: writeFiles(t, map[string]string{"a.json": `{}`, "b.json": `{}`}),
				Screen:   Screen{Out: &out, Colour: true, Size: func() (int, int) { return size[0], size[1] }},
			})
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(out.String(), want) {
				t.Errorf("no live view in\n%q", out.String())
			}
			if !strings.Contains(out.String(), "\x1b[32m") {
				t.Error("no colours")
			}
		})
	}
}

func TestPicture_BarNeverExceedsItsWidth(t *testing.T) {
	t.Parallel()
	v := &picture{printer: &printer{}}
	for total := range 500 {
		counts := tally{}
		for i := range total {
			counts[marks[i*7%len(marks)].kind]++
		}
		if width := utf8.RuneCountInString(v.bar(counts, 67)); width != 67 {
			t.Fatalf("a bar of %d requests is %d wide", total, width)
		}
	}
}

// writeFiles makes a folder.
func writeFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	folder := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

func TestOpen_BadDSN(t *testing.T) {
	t.Parallel()
	good := gormtest.DSN(t)
	config, err := parseDSN(good)
	if err != nil {
		t.Fatal(err)
	}
	createRole(t, good)
	powerless := asRole(t, good, "demo_powerless")
	tests := map[string]struct{ dsn, want string }{
		"not a DSN":      {"postgres://user:secret%zz@host/db", "neither a URL"},
		"nobody listens": {"postgres://user:secret@127.0.0.1:1/db", "no PostgreSQL answers at 127.0.0.1:1"},
		"no database":    {strings.Replace(good, config.Database, "no_such_database", 1), `database "no_such_database" does not exist`},
		"no right":       {powerless, `GRANT CREATE ON DATABASE "` + config.Database},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			err := Run(t.Context(), Options{DSN: test.dsn, Screen: Screen{Out: new(bytes.Buffer)}})
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %s", err, test.want)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the error has the password: %v", err)
			}
		})
	}
}

// asRole is the DSN for another role, whose name is its password.
func asRole(t *testing.T, dsn, role string) string {
	t.Helper()
	if !strings.Contains(dsn, "://") {
		return dsn + " user=" + role + " password=" + role
	}
	parsed, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	parsed.User = url.UserPassword(role, role)
	return parsed.String()
}

// createRole makes a role that may do nothing, on a server that is the tests' own.
func createRole(t *testing.T, dsn string) {
	t.Helper()
	config, err := parseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	db := stdlib.OpenDB(*config)
	t.Cleanup(func() {
		_, err := db.Exec(`DROP ROLE demo_powerless`)
		if err = errors.Join(err, db.Close()); err != nil {
			t.Error(err)
		}
	})
	if _, err := db.Exec(`CREATE ROLE demo_powerless LOGIN PASSWORD 'demo_powerless'`); err != nil && !errors.Is(err, sql.ErrNoRows) {
		t.Fatal(err)
	}
}

func TestListen_BadAddress(t *testing.T) {
	t.Parallel()
	taken, err := listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for address, want := range map[string]string{
		"8080":                  "is not an address",
		":8080":                 "name a loopback address",
		"0.0.0.0:8080":          "name a loopback address",
		taken.Addr().String():   "name another port",
		"127.0.0.1:notanumber9": "name another port",
	} {
		listener, err := listen(t.Context(), address)
		if err == nil {
			_ = listener.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", address, err, want)
		}
	}
}
