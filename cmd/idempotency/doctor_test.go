package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorm-idempotency/idempotency"
)

// A healthy table is exit 0, and what was not checked for lack of flags is listed with the flag.
func TestDoctor_Healthy(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	k.insert(t, "shop", 1200, 40*day)
	status, stdout, stderr := k.call(t, "doctor")
	if status != 0 || stderr != "" {
		t.Fatalf("status %d\n%s%s", status, stdout, stderr)
	}
	for _, want := range []string{
		"idempotency_keys: healthy, 0 findings, 3 checks not made\n", "\nkeys     1,200, from ", "\nsize     table ", "\noldest   40.0 days",
		"Not checked\n  overdue-keys, deleted-early: how long keys are kept is not known: give --retention", "--source NAME=AGE/HORIZON",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is not in\n%s", want, stdout)
		}
	}
	if strings.Contains(stdout, "\noverdue") || strings.Contains(stdout, "\x1b") {
		t.Errorf("overdue keys by a retention that nobody gave, or colours:\n%s", stdout)
	}
	status, stdout, _ = k.call(t, "doctor", "--retention", "90d", "--source", "shop=60d/30d")
	if status != 0 || strings.Contains(stdout, "Not checked") || !strings.Contains(stdout, "\noverdue  0, by more than a tenth of their retention and a day\n") {
		t.Errorf("status %d\n%s", status, stdout)
	}
}

// An empty table has no oldest key.
func TestDoctor_OfAnEmptyTable(t *testing.T) {
	t.Parallel()
	if status, stdout, stderr := newKeys(t).call(t, "doctor"); status != 0 || !strings.Contains(stdout, "\noldest   no keys\n") {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
}

// Findings are exit 2, by severity, each with its remedy; notes alone are exit 0.
func TestDoctor_Findings(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	k.insert(t, "shop", 1200, 40*day)
	k.exec(t, "ALTER INDEX idx_idempotency_keys_claimed_at RESET (autosummarize)")
	status, stdout, _ := k.call(t, "doctor")
	if status != 0 || !strings.Contains(stdout, "healthy, 1 finding,") || !strings.Contains(stdout, "\nNOTE  autosummarize\n") {
		t.Errorf("status %d\n%s", status, stdout)
	}
	status, stdout, _ = k.call(t, "doctor", "--retention", "30d")
	warning, note := strings.Index(stdout, "\nWARNING  overdue-keys\n  1,200 keys are overdue"), strings.Index(stdout, "\nNOTE  autosummarize\n")
	if status != 2 || warning < 0 || note < warning || !strings.Contains(stdout, "not healthy, 2 findings") || !strings.Contains(stdout, "\n  > Let each process") {
		t.Errorf("status %d\n%s", status, stdout)
	}
	for line := range strings.Lines(stdout) {
		if len([]rune(line)) > widestLine+1 {
			t.Errorf("a line of %d characters: %s", len([]rune(line)), line)
		}
	}
	k.exec(t, "DROP TABLE idempotency_keys")
	status, stdout, _ = k.call(t, "doctor", "--retention", "30d")
	if status != 2 || !strings.Contains(stdout, "\nCRITICAL  schema\n") || !strings.Contains(stdout, "idempotency migrate up") || !strings.Contains(stdout, "--table") || strings.Contains(stdout, "\nkeys ") {
		t.Errorf("status %d\n%s", status, stdout)
	}
}

// For a machine, the report is what Inspect returns, and what was not checked is in it.
func TestDoctor_JSON(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	k.insert(t, "shop", 10, 40*day)
	status, stdout, stderr := k.call(t, "doctor", "--json", "--retention", "30d")
	report := parse[idempotency.Report](t, stdout)
	if status != 2 || stderr != "" || len(report.Findings) != 1 || report.Findings[0].Check != "overdue-keys" || report.Overdue != 10 || report.Table != "idempotency_keys" ||
		report.Findings[0].Severity != idempotency.Warning || len(report.Skipped) != 1 || !strings.Contains(stdout, `"oldest_claim_seconds": 3456000`) {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
	status, stdout, _ = k.call(t, "doctor", "--json")
	report = parse[idempotency.Report](t, stdout)
	var skipped []string
	for _, s := range report.Skipped {
		skipped = append(skipped, s.Check)
	}
	if status != 0 || len(report.Findings) != 0 || report.Overdue != 0 || !slices.Equal(skipped, []string{"overdue-keys", "deleted-early", "no-retry-horizon"}) {
		t.Errorf("status %d\n%s", status, stdout)
	}
}

// Who holds keys is listed.
func TestDoctor_Sessions(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	k.hold(t, "shop", "evt")
	status, stdout, _ := k.call(t, "doctor")
	if status != 0 || !strings.Contains(stdout, "\nholding  1 transaction\n") || !strings.Contains(stdout, "holds keys, 1 lock, idle in transaction") {
		t.Errorf("status %d\n%s", status, stdout)
	}
}

// What could not be looked at is exit 1, and flags that cannot be used are named.
func TestDoctor_BadInput(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	for _, test := range []struct {
		args []string
		says string
	}{
		{[]string{"--dsn", "postgres://postgres:geheim@127.0.0.1:1/none"}, "connect"},
		{[]string{"--dsn", k.dsn, "--retention", "0"}, "--retention"},
		{[]string{"--dsn", k.dsn, "--retention", "1d", "--source", "shop=1d/2d"}, "--source"},
		{[]string{"--dsn", k.dsn, "--table", "no such"}, "--table"},
		{[]string{"--dsn", k.dsn, "argument"}, "unknown command"},
	} {
		status, stdout, stderr := try(t, append([]string{"doctor"}, test.args...)...)
		if status != 1 || stdout != "" || !strings.Contains(stderr, test.says) || strings.Contains(stderr, "geheim") {
			t.Errorf("%q: status %d\n%s%s", test.args, status, stdout, stderr)
		}
	}
}

// On a terminal severities are coloured, and lines end where it does.
func TestConsultation_OnATerminal(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	c := newConsultation(&out, &idempotency.Report{
		Table:    "keys",
		Findings: []idempotency.Finding{{Check: "autovacuum", Severity: idempotency.Warning, Message: strings.Repeat("word ", 40), Remedy: "Do something."}},
		Holders:  []idempotency.Holder{{Prepared: "tx\x1b[2J", Held: time.Minute}},
	})
	c.colour, c.width = true, 60
	if err := c.print(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "\x1b[33mWARNING\x1b[0m  autovacuum\n") || strings.Contains(out.String(), "\x1b[2J") {
		t.Errorf("got %q", out.String())
	}
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, "  ") && len(line) > 61 {
			t.Errorf("a line of %d characters: %s", len(line), line)
		}
	}
}
