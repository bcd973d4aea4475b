package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/gorm-idempotency/idempotency/gormtest"
)

// What is wrong with the database's name or the way there is said in one line, and never with the password.
func TestCommandsSayWhatIsWrongWithTheDatabase(t *testing.T) {
	t.Parallel()
	for _, command := range [][]string{{"sweep", "--retention", "30d"}, {"stats"}, {"forget", "a", "b"}} {
		for _, c := range []struct{ dsn, want string }{
			{"nonsense", "neither a URL"},
			{"postgres://someone:se%cret@localhost/db", "neither a URL"},
			{"postgres://someone:secret/word@localhost/db", "neither a URL"},
			{"postgres://someone:12/34secret@localhost/db", "neither a URL"}, // the host is someone, and the port 12
			{"postgres://someone:12#34secret@localhost/db", "neither a URL"},
			{"postgres://someone:12?34secret@localhost/db", "neither a URL"},
			{"host=localhost password='sec ret", "neither a URL"},
			{"host=localhost password=12 secret dbname=db", "neither a URL"},
			{gormtest.DSN(t) + "&12secret@localhost/db", "neither a URL"},
			{"postgres://someone:secret@127.0.0.1:1/db", "connection refused"},
			{gormtest.DSN(t) + "&user=nobody_here&password=secret", "nobody_here"},
		} {
			status, stdout, stderr := try(t, append(command, "--dsn", c.dsn)...)
			message, _, _ := strings.Cut(stderr, "\n")
			if status != exitFailed || stdout != "" || !strings.HasPrefix(message, "idempotency: ") || !strings.Contains(message, c.want) {
				t.Errorf("%q on %q: status %d, want 1 and %q:\n%s%s", command, c.dsn, status, c.want, stdout, stderr)
			}
			for _, secret := range []string{"secret", "se%cret", "sec ret"} {
				if strings.Contains(stderr, secret) {
					t.Errorf("%q prints the password: %s", command, stderr)
				}
			}
		}
	}
}

// Not parallel: it sets an environment variable.
func TestDatabaseFromTheEnvironment(t *testing.T) {
	t.Setenv(dsnVariable, "")
	if status, _, stderr := try(t, "stats"); status != exitFailed || !strings.Contains(stderr, "DATABASE_URL") || !strings.Contains(stderr, "\nUsage:") {
		t.Errorf("without a database: status %d\n%s", status, stderr)
	}
	k := newKeys(t)
	k.insert(t, "s", 3, time.Hour)
	t.Setenv(dsnVariable, k.dsn)
	if status, stdout, stderr := try(t, "stats"); status != 0 || !strings.Contains(stdout, "idempotency_keys: 3 keys\n") {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
	t.Setenv(dsnVariable, "nonsense")
	if status, stdout, stderr := try(t, "stats", "--dsn", k.dsn); status != 0 {
		t.Errorf("--dsn does not come first: status %d\n%s%s", status, stdout, stderr)
	}
}

// A table that isn't ours is named, and left alone.
func TestCommandsRefuseATableThatIsNotOurs(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	k.exec(t, `CREATE TABLE orders (source text, event_id text, claimed_at timestamptz DEFAULT now() - interval '1 year')`)
	k.exec(t, `INSERT INTO orders DEFAULT VALUES`)
	for _, command := range [][]string{
		{"sweep", "--retention", "30d"},
		{"sweep", "--retention", "30d", "--dry-run"},
		{"sweep", "--retention", "30d", "--watch"},
		{"stats"},
		{"forget", "a", "b"},
	} {
		for _, name := range []string{"orders", "missing", "a.b.c", "a b", ""} {
			status, stdout, stderr := k.call(t, append(command, "--table", name)...)
			if status != exitFailed || stdout != "" || !strings.Contains(stderr, name) {
				t.Errorf("%q on %q: status %d\n%s%s", command, name, status, stdout, stderr)
			}
		}
	}
	var rows int
	if err := k.pool.QueryRow(`SELECT count(*) FROM orders`).Scan(&rows); err != nil || rows != 1 {
		t.Errorf("%d rows are left of the other table, %v", rows, err)
	}
}

func TestEveryCommandHelpsWithExamples(t *testing.T) {
	t.Parallel()
	for _, command := range newRoot().Commands() {
		if name := command.Name(); name != "help" && name != "completion" && !command.HasSubCommands() && command.Example == "" {
			t.Errorf("%s has no example", name)
		}
	}
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if status, stdout, stderr := try(t, "completion", shell); status != 0 || !strings.Contains(stdout, "idempotency") {
			t.Errorf("%s: status %d, %s", shell, status, stderr)
		}
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"sw"}, "sweep\t"},
		{[]string{"sweep", "--re"}, "--retention\t"},
		{[]string{"sweep", "--dr"}, "--dry-run\t"},
		{[]string{"stats", "--ds"}, "--dsn\t"},
		{[]string{"forget", "--y"}, "--yes\t"},
		{[]string{"migrate", "down", "--y"}, "--yes\t"},
		{[]string{"sweep", "--dsn", ""}, ":4\n"}, // no names of files
		{[]string{"forget", ""}, ":4\n"},
	} {
		if status, stdout, _ := try(t, append([]string{"__complete"}, c.args...)...); status != 0 || !strings.Contains(stdout, c.want) {
			t.Errorf("%q completes to %q, want %q", c.args, stdout, c.want)
		}
	}
}

// An at sign is no sign of a password everywhere.
func TestDatabaseWithAnAtSign(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{
		"postgres://someone:sec%2Fret@127.0.0.1:1/db?application_name=me@here", "postgres://some@one:se@cret@127.0.0.1:1/db",
		"postgres://127.0.0.1:1/db%40home", "host=127.0.0.1 port=1 dbname=db@home",
	} {
		if _, _, stderr := try(t, "stats", "--dsn", dsn); !strings.Contains(stderr, "connection refused") {
			t.Errorf("%s: %s", dsn, stderr)
		}
	}
}

// The shells show a flag's description as it is, and the help the name of its value.
func TestFlagsAreDescribedWithoutBackquotes(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"demo", "migrate up", "migrate export", "sweep", "doctor", "show", "forget", "stats"} {
		if _, stdout, _ := try(t, append(strings.Fields("__complete "+command), "--")...); strings.Contains(stdout, "`") || !strings.Contains(stdout, "--") {
			t.Errorf("%s completes to\n%s", command, stdout)
		}
	}
	_, help, _ := try(t, "sweep", "--help")
	for _, want := range []string{"--retention AGE ", "--source NAME=AGE[/HORIZON] ", "--batch-size N ", "--dsn URL ", "--table NAME "} {
		if !strings.Contains(help, want) {
			t.Errorf("%q is not in\n%s", want, help)
		}
	}
}

// Ctrl-C while a command connects, reads or asks ends it as one.
func TestCommandsAreInterrupted(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, args := range [][]string{{"stats"}, {"forget", "a", "b"}, {"sweep", "--retention", "30d"}} {
		root, _, stderr := rooted(append(args, "--dsn", k.dsn)...)
		if status := execute(ctx, root); status != exitInterrupted {
			t.Errorf("%q: status %d\n%s", args, status, stderr)
		}
	}
}
