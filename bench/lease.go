package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"

	"gorm.io/gorm"
)

// lease is a store that commits its claim before the work begins, as those do that were made for HTTP requests: a claim is
// a lease, which another delivery may take over when it has become old. This one completes in the work's transaction, so
// that it promises as much as such a store can: a handler that outlives its lease takes effect twice.
func lease(name string, db *gorm.DB, answer json.RawMessage) arm {
	deliver := func(ctx context.Context, event string) error {
		return deliverLease(db.WithContext(ctx), event, answer, func(tx *gorm.DB) error { return place(tx, name, event) })
	}
	return arm{name: name, deliver: deliver, effects: onceEach}
}

func deliverLease(db *gorm.DB, event string, answer json.RawMessage, work func(*gorm.DB) error) error {
	digest := sha256.Sum256(payload)
	var won []string
	err := db.Raw(`INSERT INTO leases (source, event_id, payload_digest, locked_until) VALUES (?, ?, ?, now() + interval '1 minute')
		ON CONFLICT (source, event_id) DO UPDATE SET locked_until = excluded.locked_until
		WHERE leases.response_status IS NULL AND leases.locked_until < now()
		RETURNING event_id`, source, event, digest[:]).Scan(&won).Error
	if err != nil {
		return err
	}
	if len(won) == 0 {
		return leaseLookup(db, event, digest[:])
	}
	return db.Transaction(func(tx *gorm.DB) error {
		if err := work(tx); err != nil {
			return err
		}
		return tx.Exec(`UPDATE leases SET response_status = ?, response_body = ? WHERE source = ? AND event_id = ?`,
			answerStatus, string(answer), source, event).Error
	})
}

func leaseLookup(db *gorm.DB, event string, digest []byte) error {
	var rows []pageRow
	err := db.Raw(`SELECT payload_digest, response_status, response_body, response_status IS NOT NULL AS completed
		FROM leases WHERE source = ? AND event_id = ?`, source, event).Scan(&rows).Error
	switch {
	case err != nil:
		return err
	case len(rows) == 0:
		return errInFlight
	}
	return rows[0].replay(digest)
}
