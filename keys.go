package idempotency

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

// Lookup returns the row of a key: what was answered, and when. Within a transaction it sees that transaction's own
// claims too; else it reads in a short one of its own, on the handle's own connection or pool, whatever a resolver plugin
// would choose.
//
// Errors: [ErrKeyNotFound], also for a key whose claim has not committed; those of [Do] for a bad handle or key;
// [ErrSchema]; the database's.
func Lookup(ctx context.Context, db *gorm.DB, source, id string) (*IdempotencyKey, error) {
	p, err := keyAccess(db, source, id)
	if err != nil {
		return nil, err
	}
	var found *IdempotencyKey
	scan := func(rows *sql.Rows) error {
		row := &IdempotencyKey{Source: source, EventID: id}
		var header, body *string
		if err := rows.Scan(&row.PayloadDigest, &row.ResponseStatus, &header, &body, &row.ResponseRaw, &row.ClaimedAt, &row.CompletedAt); err != nil {
			return err
		}
		row.ResponseHeader, row.ResponseBody = rawJSON(header), rawJSON(body)
		found = row
		return nil
	}
	err = together(ctx, db, true, func(e executor) error {
		return e.query(ctx, "look up key", scan, p.sql.Key, source, id)
	})
	if err != nil {
		return nil, withContextError(ctx, err)
	}
	if found == nil {
		return nil, ErrKeyNotFound
	}
	return found, nil
}

func rawJSON(text *string) json.RawMessage {
	if text == nil {
		return nil
	}
	return json.RawMessage(*text)
}

// Forget deletes a key, so that the next delivery of the event takes effect again. It is for support, after the effect has
// been undone by hand; an answer that was given stays given. On a handle inside a transaction it is part of it.
//
// Errors: [ErrKeyNotFound], also for a key whose claim has not committed; [ErrReentrant] for the key that the calling
// handler holds; [ForeignWriteError] outside of that handler's transaction; those of [Do] for a bad handle or key;
// [ErrSchema]; [ErrOutcomeUnknown] when nobody knows whether the key is deleted; the database's.
func Forget(ctx context.Context, db *gorm.DB, source, id string) error {
	p, err := keyAccess(db, source, id)
	if err != nil {
		return err
	}
	k := key{source: source, eventID: id}
	if err := p.refuseOutside(ctx, db, k); err != nil {
		return err
	}
	if scopes.at(connection(db)).holds(p, k) {
		return reentrant(k)
	}
	err = together(ctx, db, false, func(e executor) error {
		deleted, err := e.exec(ctx, "forget key", p.sql.Forget, source, id, k.lock())
		if err == nil && deleted == 0 {
			return ErrKeyNotFound
		}
		return err
	})
	return withContextError(ctx, err)
}

// CheckSchema looks at the database's catalogue, and returns an [ErrSchema] that says what is wrong with the table and
// what to run, or nil. It reads no keys, so that a readiness probe can call it.
func CheckSchema(ctx context.Context, db *gorm.DB) error {
	p, err := usable(db)
	if err != nil {
		return err
	}
	err = together(ctx, db, true, func(e executor) error {
		if err := pgsql.CheckSchema(ctx, e.conn, p.table); err != nil {
			return fmt.Errorf("idempotency: check the schema: %w", err)
		}
		return nil
	})
	return withContextError(ctx, err)
}

func keyAccess(db *gorm.DB, source, id string) (*Plugin, error) {
	p, err := usable(db)
	if err != nil {
		return nil, err
	}
	return p, key{source: source, eventID: id}.validate()
}

// together runs statements in the handle's transaction, or in one of their own. A driver may send a statement in two
// steps, and behind a pooler only a transaction keeps these on one connection: without it the second one met somebody
// else's statement, and a key that is there was not found. And database/sql repeats what is outside of a transaction when
// the connection broke: a second Forget would not find what the first has deleted.
func together(ctx context.Context, db *gorm.DB, readOnly bool, fc func(executor) error) error {
	e := executor{conn: connection(db), logger: db.Logger}
	if inTransaction(e.conn) {
		return fc(e)
	}
	tx, err := beginTx(ctx, e.conn, &sql.TxOptions{Isolation: sql.LevelReadCommitted, ReadOnly: readOnly})
	if err != nil {
		return err
	}
	defer func() { _ = tx.(gorm.TxCommitter).Rollback() }() // no more than reads and failures, once it is committed
	e.conn = tx
	if err := fc(e); err != nil || readOnly {
		return err
	}
	return commit(tx)
}
