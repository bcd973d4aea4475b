// Package pipelined is how the protocol and a driver agree to send two statements in one round trip. The protocol marks the
// context of a call to database/sql, which hands it to the driver; a driver that knows nothing of marks ignores them.
package pipelined

import (
	"context"
	"database/sql/driver"
	"errors"
)

// Driver is a driver whose connections heed the marks. The protocol asks before it marks anything: what it does once
// COMMIT has travelled with a statement would be wrong where it has not.
type Driver interface {
	driver.Driver

	// Pipelines is never called.
	Pipelines()
}

// ErrNotSent is the error of a statement that was to travel with COMMIT and of which nothing has left the process.
var ErrNotSent = errors.New("the connection was closed before the statement was sent")

type (
	claimMark  struct{}
	commitMark struct{}
)

// WithClaim marks a BeginTx: a statement follows at once, and BEGIN may wait for it.
func WithClaim(ctx context.Context) context.Context { return context.WithValue(ctx, claimMark{}, true) }

// ClaimFollows reports whether a BeginTx is marked.
func ClaimFollows(ctx context.Context) bool { return ctx.Value(claimMark{}) != nil }

// Commit is a COMMIT that travels with a transaction's last statement.
type Commit struct {
	Made bool // the driver has sent it, and the server has confirmed it
}

// WithCommit marks a transaction's last ExecContext: COMMIT follows at once, and is executed only if the statement
// succeeds. The transaction's Commit then does nothing more. The driver says whether it did so: one in between may have lost
// the mark.
func WithCommit(ctx context.Context, commit *Commit) context.Context {
	return context.WithValue(ctx, commitMark{}, commit)
}

// CommitOf is the COMMIT that an ExecContext is marked with, or nil.
func CommitOf(ctx context.Context) *Commit {
	commit, _ := ctx.Value(commitMark{}).(*Commit)
	return commit
}
