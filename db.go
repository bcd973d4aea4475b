package idempotency

import (
	"context"

	"gorm.io/gorm"
)

// DB is a database handle with the method [DB.Idempotent]. Make one with [Wrap].
//
// It does not embed *gorm.DB on purpose: the handle's own Create, in a handler where tx.Create was meant, is the very
// mistake that loses the promise, and here it does not compile. Repositories keep taking a *gorm.DB and call [Do].
type DB struct {
	db *gorm.DB
}

// Wrap returns a handle whose calls are [Do] on db. It does nothing else: a nil db or one without the plugin is
// refused by the call.
func Wrap(db *gorm.DB) *DB { return &DB{db: db} }

// WithContext returns a handle whose calls use ctx.
func (d *DB) WithContext(ctx context.Context) *DB {
	if !opened(d.db) {
		return d // for the call to refuse
	}
	return &DB{db: d.db.WithContext(ctx)}
}

// Idempotent is [Do] on the wrapped handle.
func (d *DB) Idempotent(source, id string, body []byte, fc func(tx *gorm.DB) error, opts ...Option) (*Result, error) {
	return Do(d.db, source, id, body, fc, opts...)
}

// Unwrap returns the handle given to [Wrap], with the context of [DB.WithContext].
func (d *DB) Unwrap() *gorm.DB { return d.db }
