package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gorm-idempotency/idempotency/gormtest"
)

func try(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = run(t.Context(), args, &out, &errs)
	return status, out.String(), errs.String()
}

func TestRun_UsageErrors(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"nonsense"}, {"--nonsense"}, {"demo", "nonsense"}, {"demo", "--nonsense"}, {"demo", "--seed", "x"}, {"demo", "--json", "--serve"},
	} {
		status, stdout, stderr := try(t, args...)
		if status != 1 || stdout != "" || !strings.Contains(stderr, "\nUsage: idempotency") || !strings.Contains(stderr, "--help") {
			t.Errorf("%q: status %d\n%s%s", args, status, stdout, stderr)
		}
	}
}

func TestRun_Help(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"--help"}, {"demo", "--help"}} {
		status, stdout, stderr := try(t, args...)
		if status != 0 || stderr != "" || !strings.Contains(stdout, "idempotency") {
			t.Errorf("%q: status %d\n%s%s", args, status, stdout, stderr)
		}
	}
}

func TestDemo_BadInput(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--payloads", filepath.Join(t.TempDir(), "missing")},
		{"--listen", "0.0.0.0:0"},
		{"--dsn", "nonsense"},
	} {
		status, _, stderr := try(t, append([]string{"demo"}, args...)...)
		if status != 1 || strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "idempotency: ") {
			t.Errorf("%q: status %d, want 1 and one line:\n%s", args, status, stderr)
		}
	}
}

// Not parallel: it sets environment variables.
func TestDemo_DatabaseFromTheEnvironment(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://127.0.0.1:1/not_to_be_used")
	t.Setenv(demoVariable, gormtest.DSN(t))
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "a.json"), []byte(`{"id":"a"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	status, stdout, stderr := try(t, "demo", "--json", "--payloads", folder)
	var report struct {
		OK bool `json:"ok"`
	}
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || status != 0 || !report.OK {
		t.Errorf("status %d, %v\n%s%s", status, err, stdout, stderr)
	}
}

func TestDemo_Interrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs bytes.Buffer
	if status := run(ctx, []string{"demo", "--dsn", gormtest.DSN(t)}, &out, &errs); status != exitInterrupted {
		t.Errorf("status %d\n%s", status, &errs)
	}
}
