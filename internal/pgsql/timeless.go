package pgsql

import (
	"context"
	"fmt"
	"time"
)

// Timeless is a row with infinity for a time, which no time.Time can hold. Other code than this library wrote it.
type Timeless struct {
	Digest []byte
	Status *int16
	Header *string // JSON
	Raw    []byte

	Claimed, Completed Instant
}

// Instant is one of its times, or what the server calls infinity. Both are nil for NULL.
type Instant struct {
	At       *time.Time
	Infinity *string // "infinity" or "-infinity"
}

// ReadTimeless reads a key's row if it is such a one, or returns nil.
func ReadTimeless(ctx context.Context, q Querier, t Table, source, eventID string) (*Timeless, error) {
	query := `SELECT payload_digest, response_status, response_header::text, response_raw,
       CASE WHEN isfinite(claimed_at) THEN claimed_at END, CASE WHEN NOT isfinite(claimed_at) THEN claimed_at::text END,
       CASE WHEN isfinite(completed_at) THEN completed_at END, CASE WHEN NOT isfinite(completed_at) THEN completed_at::text END
FROM ` + t.Quoted() + ` WHERE source = $1::text AND event_id = $2::text AND NOT (isfinite(claimed_at) AND isfinite(coalesce(completed_at, claimed_at)))`
	var found *Timeless
	err := eachRowOf(ctx, q, query, []any{source, eventID}, func(scan func(...any) error) error {
		found = new(Timeless)
		return scan(&found.Digest, &found.Status, &found.Header, &found.Raw,
			&found.Claimed.At, &found.Claimed.Infinity, &found.Completed.At, &found.Completed.Infinity)
	})
	if err != nil {
		return nil, fmt.Errorf("read a key without a time: %w", err)
	}
	return found, nil
}
