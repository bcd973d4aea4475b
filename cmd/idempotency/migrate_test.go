package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func requireMatch(t *testing.T, what, text, pattern string) {
	t.Helper()
	if !regexp.MustCompile(`(?s)^` + pattern + `$`).MatchString(text) {
		t.Errorf("%s:\n got %s\nwant %s", what, text, pattern)
	}
}

const firstMigration = "00001_create_idempotency_keys.sql"

func TestMigrate_UpStatusDown(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	k.exec(t, `CREATE SCHEMA app`)
	for _, c := range []struct {
		args   []string
		stdout string
	}{
		{[]string{"status"}, `MIGRATION +APPLIED\n` + firstMigration + ` +not yet\n`},
		{[]string{"down", "--yes"}, `nothing to do: no migration of app.keys is applied\n`},
		{[]string{"up", "--partitions", "4"}, `applied ` + firstMigration + ` in [0-9.]+m?s\n`},
		{[]string{"up", "--partitions", "4"}, `nothing to do: app.keys is up to date\n`},
		{[]string{"status"}, `MIGRATION +APPLIED\n` + firstMigration + ` +20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC\n`},
		{[]string{"validate"}, `app.keys is as the library needs it\n`},
		{[]string{"down", "-y"}, `rolled back ` + firstMigration + ` in [0-9.]+m?s\n`},
	} {
		status, stdout, stderr := k.call(t, slices.Concat([]string{"migrate"}, c.args, []string{"--table", "app.keys"})...)
		if status != 0 || stderr != "" {
			t.Errorf("%q: status %d\n%s", c.args, status, stderr)
		}
		requireMatch(t, strings.Join(c.args, " "), stdout, c.stdout)
	}
}

func TestMigrate_JSON(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	for _, applied := range []bool{true, false} {
		if !applied {
			k.exec(t, `DROP TABLE idempotency_goose_version`)
		}
		status, stdout, stderr := k.call(t, "migrate", "status", "--json")
		report := parse[statusReport](t, stdout)
		if status != 0 || stderr != "" || report.Table != "idempotency_keys" || len(report.Migrations) != 1 ||
			report.Migrations[0].Version != 1 || report.Migrations[0].Name != firstMigration || (report.Migrations[0].AppliedAt != nil) != applied {
			t.Errorf("status %d\n%s%s", status, stdout, stderr)
		}
		if at := report.Migrations[0].AppliedAt; applied && (at.Location() != time.UTC || at.IsZero()) {
			t.Errorf("applied at %v", at)
		}
	}
}

// A pipeline goes by the status: 2 means that the table is wrong, and 1 that nobody knows.
func TestMigrate_Validate(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	status, stdout, stderr := k.call(t, "migrate", "validate", "--json")
	if v := parse[verdict](t, stdout); status != 0 || !v.OK || v.Table != "idempotency_keys" || len(v.Findings) != 0 || stderr != "" {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}

	k.exec(t, `ALTER TABLE idempotency_keys DROP CONSTRAINT idempotency_keys_pkey, DROP COLUMN response_raw`)
	status, stdout, stderr = k.call(t, "migrate", "validate")
	if status != exitFindings || stderr != "" {
		t.Errorf("a wrong table: status %d\n%s", status, stderr)
	}
	requireMatch(t, "findings", stdout,
		`idempotency_keys cannot be used:\n  - the column response_raw is missing\n  - nothing keeps \(source, event_id\) unique: .*\n`)
	status, stdout, stderr = k.call(t, "migrate", "validate", "--json")
	if v := parse[verdict](t, stdout); status != exitFindings || v.OK || len(v.Findings) != 2 || stderr != "" {
		t.Errorf("a wrong table: status %d\n%s%s", status, stdout, stderr)
	}

	status, stdout, stderr = k.call(t, "migrate", "validate", "--table", "nowhere.keys")
	if status != exitFindings || !strings.Contains(stdout, "does not exist") || stderr != "" {
		t.Errorf("no table: status %d\n%s%s", status, stdout, stderr)
	}
	status, stdout, stderr = try(t, "migrate", "validate", "--dsn", "postgres://127.0.0.1:1/none")
	if status != exitFailed || stdout != "" || !strings.HasPrefix(stderr, "idempotency: connect to the database: ") {
		t.Errorf("no server: status %d\n%s%s", status, stdout, stderr)
	}
}

// A script that forgot --yes, or somebody who says no, drops nothing.
func TestMigrate_DownAsks(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	k.insert(t, "s", 3, time.Hour)
	status, stdout, stderr := k.call(t, "migrate", "down") // the tests have no terminal
	if status != exitFailed || stdout != "" || !strings.Contains(stderr, "--yes") {
		t.Errorf("nobody to ask: status %d\n%s%s", status, stdout, stderr)
	}
	answer := func(ctx context.Context, in io.Reader) (int, string, string) {
		root, stdout, stderr := rooted("migrate", "down", "--dsn", k.dsn)
		root.SetIn(in)
		status := execute(ctx, root)
		return status, stdout.String(), stderr.String()
	}
	for _, no := range []string{"n\n", "\n", "", "yesterday\n"} {
		if status, stdout, _ := answer(t.Context(), strings.NewReader(no)); status != exitFailed || stdout != "" {
			t.Errorf("%q: status %d\n%s", no, status, stdout)
		}
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if status, stdout, _ := answer(cancelled, strings.NewReader("y\n")); status != exitInterrupted || stdout != "" {
		t.Errorf("interrupted: status %d\n%s", status, stdout)
	}
	k.require(t, "s", 3)

	status, stdout, stderr = answer(t.Context(), strings.NewReader("y\n"))
	if status != 0 || !strings.HasPrefix(stdout, "rolled back "+firstMigration) || !strings.Contains(stderr, "drops the table idempotency_keys with every key") {
		t.Errorf("yes: status %d\n%s%s", status, stdout, stderr)
	}
	if status, stdout, _ := k.call(t, "migrate", "validate"); status != exitFindings {
		t.Errorf("the table is still there: status %d\n%s", status, stdout)
	}
}

func TestMigrate_SQL(t *testing.T) {
	t.Parallel()
	args := []string{"--table", "app.keys", "--partitions", "4", "--version-table", "app.versions"}
	status, stdout, stderr := try(t, append([]string{"migrate", "sql"}, args...)...) // without a database
	if status != 0 || stderr != "" {
		t.Fatalf("status %d\n%s%s", status, stdout, stderr)
	}
	k := newKeys(t)
	k.exec(t, "CREATE SCHEMA app")
	k.exec(t, stdout)
	status, stdout, stderr = k.call(t, append([]string{"migrate", "up"}, args...)...)
	if status != 0 || stdout != "nothing to do: app.keys is up to date\n" || stderr != "" {
		t.Errorf("up after sql: status %d\n%s%s", status, stdout, stderr)
	}
}

func TestMigrate_Export(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "00041_orders.sql"), []byte("-- +goose Up\nSELECT 1;\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	status, stdout, stderr := try(t, "migrate", "export", dir, "--table", "app.keys", "--partitions", "2")
	path := filepath.Join(dir, "00042_create_idempotency_keys.sql")
	if status != 0 || stdout != path+"\n" || stderr != "" {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
	text, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(text), `"app"."keys_p1"`) {
		t.Errorf("%v\n%s", err, text)
	}
	status, stdout, stderr = try(t, "migrate", "export", dir, "--table", "app.keys", "--partitions", "2")
	if status != 0 || stdout != "" || !strings.Contains(stderr, "nothing to do: ") {
		t.Errorf("again: status %d\n%s%s", status, stdout, stderr)
	}
	status, stdout, stderr = try(t, "migrate", "export", dir, "--table", "app.keys")
	if status != exitFailed || stdout != "" || !strings.Contains(stderr, "with 2 partitions, not without") {
		t.Errorf("otherwise: status %d\n%s%s", status, stdout, stderr)
	}
}

// What makes no sense is said before anything is connected to or written.
func TestMigrate_BadInput(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", 49)
	for _, c := range []struct {
		args  []string
		says  string
		usage bool
	}{
		{[]string{"nonsense"}, "unknown command", true},
		{[]string{"up"}, "which database? Name it with --dsn", true},
		{[]string{"up", "extra"}, "unknown command", true},
		{[]string{"up", "--dsn", "nonsense"}, "the DSN is neither", true},
		{[]string{"up", "--partitions", "1"}, "partitions: one partition", true},
		{[]string{"up", "--partitions", "-1"}, "partitions: -1 is negative", true},
		{[]string{"up", "--partitions", "5000"}, "partitions: 5000 are too many: want at most 256", true},
		{[]string{"up", "--partitions", "four"}, "invalid argument", true},
		{[]string{"up", "--table", long}, "table: \"" + long + "\" is too long", true},
		{[]string{"up", "--table", "a;b"}, "table: \"a;b\" is not a table name", true},
		{[]string{"up", "--version-table", "a b"}, "version table: ", true},
		{[]string{"status", "--version-table", "idempotency_keys"}, "must not be the table of keys itself", true},
		{[]string{"up", "--dsn", "postgres://user:secret@127.0.0.1:1/none"}, "connect to the database: ", false},
		{[]string{"sql", "--partitions", "5000"}, "partitions: 5000 are too many", true},
		{[]string{"sql", "--dsn", "postgres:///"}, "unknown flag: --dsn", true},
		{[]string{"export"}, "want DIR, and got 0 arguments", true},
		{[]string{"export", filepath.Join(t.TempDir(), "missing")}, "missing: create it", false},
		{[]string{"export", t.TempDir(), "--partitions", "1"}, "partitions: one partition", true},
		{[]string{"validate", "--table", long}, "is too long", true},
		{[]string{"down", "--yes", "--partitions", "4"}, "unknown flag: --partitions", true},
	} {
		status, stdout, stderr := try(t, append([]string{"migrate"}, c.args...)...)
		if status != exitFailed || stdout != "" && c.args[0] != "nonsense" || !strings.Contains(stderr, c.says) || strings.Contains(stderr, "secret") ||
			strings.Contains(stderr, "\nUsage: idempotency migrate") != c.usage || strings.Contains(stderr, "migration SQL") {
			t.Errorf("%q: status %d\n%s%s", c.args, status, stdout, stderr)
		}
	}
}

func TestMigrate_UpRefusesAnotherKindOfTable(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	status, stdout, stderr := k.call(t, "migrate", "up", "--partitions", "4")
	if status != exitFailed || stdout != "" || !strings.Contains(stderr, "exists without partitions") || !strings.HasPrefix(stderr, "idempotency: migrate up: ") {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
	k.exec(t, `CREATE TABLE other (id int)`)
	status, stdout, stderr = k.call(t, "migrate", "up", "--table", "other")
	if status != exitFailed || stdout != "" || !strings.Contains(stderr, firstMigration+" failed") {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
}

func TestMigrate_Help(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "up", "down", "status", "validate", "sql", "export"} {
		status, stdout, stderr := try(t, append(strings.Fields("migrate "+name), "--help")...)
		if status != 0 || stderr != "" || name != "" && !strings.Contains(stdout, "Examples:\n  idempotency migrate "+name) {
			t.Errorf("%q: status %d\n%s%s", name, status, stdout, stderr)
		}
	}
}
