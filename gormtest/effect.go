package gormtest

import (
	"maps"
	"slices"
	"strings"
)

// effect is what changes of the journal amount to.
type effect struct {
	keys    []change         // the claims
	inside  map[int64]counts // of each transaction that claimed a key: how many rows of which tables it changed
	outside []change         // in transactions that claimed none
}

// counts says how many rows of which tables changed.
type counts map[string]int

func effectOf(changes []change) effect {
	e := effect{inside: make(map[int64]counts)}
	for _, c := range changes {
		if c.claimed {
			e.keys = append(e.keys, c)
			e.inside[c.tx] = make(counts)
		}
	}
	for _, c := range changes {
		of, claimed := e.inside[c.tx]
		switch {
		case c.claimed:
		case claimed:
			of[c.table]++
		default:
			e.outside = append(e.outside, c)
		}
	}
	return e
}

// idleKeys are those that were claimed, and nothing else was done with them.
func (e effect) idleKeys() (idle []change) {
	for _, key := range e.keys {
		if len(e.inside[key.tx]) == 0 {
			idle = append(idle, key)
		}
	}
	return idle
}

// total adds up what all keys' transactions changed.
func (e effect) total() counts {
	total := make(counts)
	for _, of := range e.inside {
		for table, n := range of {
			total[table] += n
		}
	}
	return total
}

// outsideOf counts what changed without a key.
func (e effect) outsideOf() counts {
	total := make(counts)
	for _, c := range e.outside {
		total[c.table]++
	}
	return total
}

// of are the changes of one table that were made without a key.
func (e effect) of(table string) (changes []change) {
	for _, c := range e.outside {
		if c.table == table {
			changes = append(changes, c)
		}
	}
	return changes
}

// String says them in words.
func (c counts) String() string {
	if len(c) == 0 {
		return "no rows"
	}
	var texts []string
	for _, table := range c.tables() {
		texts = append(texts, rows(c[table])+" of "+table)
	}
	return strings.Join(texts, ", ")
}

func (c counts) tables() []string { return slices.Sorted(maps.Keys(c)) }
