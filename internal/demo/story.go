package demo

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/gorm-idempotency/idempotency"
)

// story is one event, request by request, and its row.
type story struct {
	event    *event
	requests []*request
	effects  effects
	row      [][2]string // column and value; none if there is no row
}

// tellStories reads the rows of the events that are told, with SQL of its own.
func (r *Report) tellStories(ctx context.Context, d *database) error {
	for _, s := range r.stories {
		if err := s.readRow(ctx, d); err != nil {
			return fmt.Errorf("read the row of %s %s: %w", s.event.sender.name, s.event.id, err)
		}
	}
	return nil
}

func (s *story) readRow(ctx context.Context, d *database) (err error) {
	//nolint:gosec // the table's name is ours
	query := `SELECT source, event_id, '\x' || encode(payload_digest, 'hex'), response_status::text, response_header::text,
response_body::text, octet_length(response_raw)::text, claimed_at::text, completed_at::text
FROM ` + d.table(keysTable) + ` WHERE source = $1 AND event_id = $2`
	columns := []string{"source", "event_id", "payload_digest", "response_status", "response_header",
		"response_body", "response_raw", "claimed_at", "completed_at"}
	values := make([]sql.NullString, len(columns))
	targets := make([]any, len(columns))
	for i := range values {
		targets[i] = &values[i]
	}
	rows, err := d.pool.QueryContext(ctx, query, s.event.sender.name, s.event.id)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	if !rows.Next() {
		return rows.Err()
	}
	if err := rows.Scan(targets...); err != nil {
		return err
	}
	for i, value := range values {
		s.row = append(s.row, [2]string{columns[i], shown(columns[i], value)})
	}
	return rows.Err()
}

func shown(column string, value sql.NullString) string {
	switch {
	case !value.Valid:
		return "NULL"
	case column == "response_raw":
		return "the answer to the byte: " + value.String + " bytes"
	}
	return value.String
}

// perceptible is the shortest wait that is worth a word.
const perceptible = time.Millisecond

// happened says in a line what the library did with a request.
func (r *request) happened() string {
	switch r.outcome {
	case idempotency.Executed:
		return "claimed, ran the handler, committed"
	case idempotency.Replayed:
		return "replayed the stored answer"
	case idempotency.InFlight:
		return "refused for now: still in flight"
	case idempotency.Mismatch:
		return "refused: the body has changed"
	}
	if r.status == 0 {
		return "claimed, handler crashed, rolled back"
	}
	return "claimed, handler failed, rolled back"
}
