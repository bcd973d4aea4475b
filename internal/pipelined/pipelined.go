// Package pipelined is how the protocol and a driver agree to send two statements in one round trip. The protocol marks the
// context of a call to database/sql, which hands it to the driver; a driver that knows nothing of marks ignores them.
package pipelined

import (
	"context"
	"database/sql/driver"
	"errors"
)

// Driver is a driver whose connections heed the marks. The protocol asks before it marks anything, since a mark costs an
// allocation.
type Driver interface {
	driver.Driver

	// Pipelines is never called.
	Pipelines()
}

// ErrLast is wrapped by the error of a Commit that the server has not executed: it refused the statement that waited for it,
// or got neither.
var ErrLast = errors.New("the transaction's last statement failed")

type (
	claimMark    struct{}
	lastMark     struct{}
	rollbackMark struct{}
)

// WithClaim marks a BeginTx: a statement follows at once, and BEGIN may wait for it.
func WithClaim(ctx context.Context) context.Context { return context.WithValue(ctx, claimMark{}, true) }

// ClaimFollows reports whether a BeginTx is marked.
func ClaimFollows(ctx context.Context) bool { return ctx.Value(claimMark{}) != nil }

// WithLast marks a transaction's last ExecContext: Commit follows at once, and the statement may wait for it. It has to fail
// by itself unless it changes one row, which is what it is then said to have done. A driver in between may lose the mark,
// and no harm is done.
func WithLast(ctx context.Context) context.Context { return context.WithValue(ctx, lastMark{}, true) }

// CommitFollows reports whether an ExecContext is marked.
func CommitFollows(ctx context.Context) bool { return ctx.Value(lastMark{}) != nil }

// WithRollback marks a transaction's last QueryContext: Rollback follows at once, and ROLLBACK may travel with the statement.
func WithRollback(ctx context.Context) context.Context {
	return context.WithValue(ctx, rollbackMark{}, true)
}

// RollbackFollows reports whether a QueryContext is marked.
func RollbackFollows(ctx context.Context) bool { return ctx.Value(rollbackMark{}) != nil }
