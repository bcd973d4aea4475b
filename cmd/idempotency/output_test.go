package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"
)

// fullDisk is an output that nothing can be written to.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left") }

// A script that goes by the status must not take an answer that nobody got for a good one.
func TestCommandsFailWhenTheirOutputCannotBeWritten(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	k.insert(t, "shop", 3, time.Hour)
	k.exec(t, theKey)
	for _, args := range [][]string{
		{"stats"},
		{"stats", "--json"},
		{"show", "stripe", "evt_1"},
		{"show", "stripe", "evt_1", "--json"},
		{"doctor"},
		{"doctor", "--json"},
		{"sweep", "--retention", "100000d"},
		{"sweep", "--retention", "100000d", "--dry-run"},
		{"forget", "stripe", "evt_1", "--yes"},
		{"migrate", "status"},
		{"migrate", "status", "--json"},
		{"migrate", "validate"},
		{"migrate", "validate", "--json"},
		{"migrate", "validate", "--table", "missing"},
		{"migrate", "up"},
		{"migrate", "up", "--table", "other"},
		{"migrate", "down", "--table", "other", "-y"},
		{"migrate", "down", "--table", "other", "-y"}, // nothing to do
	} {
		var errs bytes.Buffer
		status := run(t.Context(), append(args, "--dsn", k.dsn), fullDisk{}, &errs)
		requireFullDisk(t, args, status, errs.String())
	}
	for _, args := range [][]string{{"migrate", "sql"}, {"migrate", "export", t.TempDir()}} {
		var errs bytes.Buffer
		requireFullDisk(t, args, run(t.Context(), args, fullDisk{}, &errs), errs.String())
	}
}

func requireFullDisk(t *testing.T, args []string, status int, stderr string) {
	t.Helper()
	if status != exitFailed || !strings.Contains(stderr, "no space left") {
		t.Errorf("%q: status %d\n%s", args, status, stderr)
	}
}
