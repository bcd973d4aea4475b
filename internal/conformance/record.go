package conformance

import (
	"slices"
	"sync"
	"testing"
)

// Record is a line of the table in docs/compatibility.md: what ran in this process, and how it went.
type Record struct {
	Group, Name, Outcome string
}

var records struct {
	mu  sync.Mutex
	all []Record
}

func note(r Record) {
	records.mu.Lock()
	defer records.mu.Unlock()
	records.all = append(records.all, r)
}

// Note records the outcome of a test that is no cell of the suite, once it has passed.
func Note(t *testing.T, group, name, outcome string) {
	t.Helper()
	t.Cleanup(func() {
		if !t.Failed() {
			note(Record{group, name, outcome})
		}
	})
}

// Records are those of all that has passed so far.
func Records() []Record {
	records.mu.Lock()
	defer records.mu.Unlock()
	return slices.Clone(records.all)
}
