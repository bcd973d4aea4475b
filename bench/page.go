package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"gorm.io/gorm"
)

// The arms of the page that the project came from: its statements, on its table, as an author would write its handler in
// Go. A duplicate that comes while the first delivery is at work blocks in the claim, as the page says.

var (
	errInFlight = errors.New("in flight")
	errReused   = errors.New("the event id was reused with a different body")
)

// pageRow is what a duplicate finds.
type pageRow struct {
	PayloadDigest  []byte
	ResponseStatus *int
	ResponseBody   []byte
	Completed      bool
}

// replay decides by the row of an earlier delivery.
func (row pageRow) replay(digest []byte) error {
	switch {
	case !row.Completed:
		return errInFlight
	case !bytes.Equal(row.PayloadDigest, digest):
		return errReused
	}
	return nil
}

// pageGORM is the page's handler through GORM.
func pageGORM(name string, db *gorm.DB, answer json.RawMessage) arm {
	deliver := func(ctx context.Context, event string) error {
		return deliverPage(db.WithContext(ctx), event, answer, func(tx *gorm.DB) error { return place(tx, name, event) })
	}
	return arm{name: name, deliver: deliver, effects: onceEach}
}

func deliverPage(db *gorm.DB, event string, answer json.RawMessage, work func(*gorm.DB) error) error {
	digest := sha256.Sum256(payload)
	return db.Transaction(func(tx *gorm.DB) error {
		var won []string
		err := tx.Raw(`INSERT INTO webhook_idempotency (source, event_id, payload_digest) VALUES (?, ?, ?)
			ON CONFLICT (source, event_id) DO NOTHING RETURNING event_id`, source, event, digest[:]).Scan(&won).Error
		if err != nil {
			return err
		}
		if len(won) == 0 {
			return pageLookup(tx, event, digest[:])
		}
		if err := work(tx); err != nil {
			return err
		}
		return tx.Exec(`UPDATE webhook_idempotency SET response_status = ?, response_body = ?, completed_at = now()
			WHERE source = ? AND event_id = ? AND completed_at IS NULL`, answerStatus, string(answer), source, event).Error
	})
}

func pageLookup(tx *gorm.DB, event string, digest []byte) error {
	var rows []pageRow
	err := tx.Raw(`SELECT payload_digest, response_status, response_body, completed_at IS NOT NULL AS completed
		FROM webhook_idempotency WHERE source = ? AND event_id = ?`, source, event).Scan(&rows).Error
	switch {
	case err != nil:
		return err
	case len(rows) == 0:
		return errInFlight
	}
	return rows[0].replay(digest)
}

// pagePgx is the page's handler on pgx alone.
func pagePgx(name string, pool *pgxpool.Pool, answer json.RawMessage) arm {
	deliver := func(ctx context.Context, event string) error {
		digest := sha256.Sum256(payload)
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			var won string
			err := tx.QueryRow(ctx, `INSERT INTO webhook_idempotency (source, event_id, payload_digest) VALUES ($1, $2, $3)
				ON CONFLICT (source, event_id) DO NOTHING RETURNING event_id`, source, event, digest[:]).Scan(&won)
			if errors.Is(err, pgx.ErrNoRows) {
				return pagePgxLookup(ctx, tx, event, digest[:])
			}
			if err != nil {
				return err
			}
			var id int64
			err = tx.QueryRow(ctx, `INSERT INTO orders (arm, event) VALUES ($1, $2) RETURNING id`, name, event).Scan(&id)
			if err != nil {
				return err
			}
			_, err = tx.Exec(ctx, `UPDATE webhook_idempotency SET response_status = $1, response_body = $2, completed_at = now()
				WHERE source = $3 AND event_id = $4 AND completed_at IS NULL`, answerStatus, string(answer), source, event)
			return err
		})
	}
	return arm{name: name, deliver: deliver, effects: onceEach}
}

func pagePgxLookup(ctx context.Context, tx pgx.Tx, event string, digest []byte) error {
	var row pageRow
	err := tx.QueryRow(ctx, `SELECT payload_digest, response_status, response_body, completed_at IS NOT NULL
		FROM webhook_idempotency WHERE source = $1 AND event_id = $2`, source, event).
		Scan(&row.PayloadDigest, &row.ResponseStatus, &row.ResponseBody, &row.Completed)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return errInFlight
	case err != nil:
		return fmt.Errorf("look up: %w", err)
	}
	return row.replay(digest)
}

// pageClaimOnly is the page's claim and its transaction.
func pageClaimOnly(name string, db *gorm.DB) arm {
	deliver := func(ctx context.Context, event string) error {
		digest := sha256.Sum256(payload)
		return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			var won []string
			return tx.Raw(`INSERT INTO webhook_idempotency (source, event_id, payload_digest) VALUES (?, ?, ?)
				ON CONFLICT (source, event_id) DO NOTHING RETURNING event_id`, source, event, digest[:]).Scan(&won).Error
		})
	}
	return arm{name: name, deliver: deliver, effects: never}
}
