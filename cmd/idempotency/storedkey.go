package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

// storedKey is a row of the table, whoever wrote it.
type storedKey struct {
	*idempotency.IdempotencyKey // whose times are zero where these are infinite

	claimed, completed *moment // completed is nil for never
}

// lookup is idempotency.Lookup in a transaction, and reads also what that cannot: a row with infinity for a time. An operator
// has to see it, and to delete it.
func (d *database) lookup(ctx context.Context, tx *gorm.DB, source, id string) (*storedKey, error) {
	key, err := idempotency.Lookup(ctx, tx, source, id)
	for _, final := range []error{idempotency.ErrKeyNotFound, idempotency.ErrInvalidKey, idempotency.ErrSchema} {
		if errors.Is(err, final) {
			return nil, err
		}
	}
	if err == nil {
		return newStoredKey(key), nil
	}
	table, invalid := pgsql.ParseTable(d.table)
	if invalid != nil {
		return nil, invalid
	}
	timeless, unread := pgsql.ReadTimeless(ctx, tx.Statement.ConnPool, table, source, id)
	if unread != nil || timeless == nil {
		return nil, err
	}
	return newTimelessKey(source, id, timeless), nil
}

// lookupAlone is lookup in a read-only transaction of its own.
func (d *database) lookupAlone(ctx context.Context, db *gorm.DB, source, id string) (key *storedKey, err error) {
	err = db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		key, err = d.lookup(ctx, tx, source, id)
		return err
	}, &sql.TxOptions{ReadOnly: true})
	return key, err
}

func newStoredKey(key *idempotency.IdempotencyKey) *storedKey {
	stored := &storedKey{IdempotencyKey: key, claimed: momentOf(key.ClaimedAt)}
	if key.CompletedAt != nil {
		stored.completed = momentOf(*key.CompletedAt)
	}
	return stored
}

func newTimelessKey(source, id string, row *pgsql.Timeless) *storedKey {
	key := &idempotency.IdempotencyKey{Source: source, EventID: id, PayloadDigest: row.Digest, ResponseStatus: row.Status, ResponseRaw: row.Raw}
	if row.Header != nil {
		key.ResponseHeader = json.RawMessage(*row.Header)
	}
	return &storedKey{IdempotencyKey: key, claimed: momentFrom(row.Claimed), completed: momentFrom(row.Completed)}
}
