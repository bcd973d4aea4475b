package main

import (
	"encoding/json"
	"time"

	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

// moment is a time of the database, in UTC, or infinity, which other code than the library may have written instead.
type moment struct {
	time.Time // zero for infinity

	infinity string // "infinity" or "-infinity", as the server calls it
}

func momentOf(at time.Time) *moment { return &moment{Time: at.UTC()} }

// momentFrom is nil for NULL.
func momentFrom(stored pgsql.Instant) *moment {
	switch {
	case stored.Infinity != nil:
		return &moment{infinity: *stored.Infinity}
	case stored.At != nil:
		return momentOf(*stored.At)
	}
	return nil
}

// String is a time as messages have it.
func (m *moment) String() string {
	if m.infinity != "" {
		return m.infinity + ", which is no time: other code than the library wrote it"
	}
	return instant(m.Time)
}

// after is so much later; nil, since that is never or was always, for infinity.
func (m *moment) after(period time.Duration) *moment {
	if m.infinity != "" {
		return nil
	}
	return momentOf(m.Add(period))
}

func (m *moment) equal(other *moment) bool {
	return m.infinity == other.infinity && m.Equal(other.Time)
}

// MarshalJSON writes RFC 3339, with as many digits as the year has and a minus sign before the year 0: time.Time refuses
// years that PostgreSQL has. Infinity is a string too.
func (m *moment) MarshalJSON() ([]byte, error) {
	if m.infinity != "" {
		return json.Marshal(m.infinity)
	}
	return json.Marshal(m.Format(time.RFC3339Nano))
}
