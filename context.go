package idempotency

import (
	"context"

	"gorm.io/gorm"
)

// scopeMark is the key of a context's innermost scope. The mark serves the guard, to notice work on another connection;
// everything else asks the register.
type scopeMark struct{}

func withScope(ctx context.Context, s *scope) context.Context {
	return context.WithValue(ctx, scopeMark{}, s)
}

// scopeIn is the innermost open scope that ctx carries, or nil. A scope that has ended is nobody's any more: a goroutine
// that kept the context is not accused. But a joined call's context belongs to the handler around it for longer.
func scopeIn(ctx context.Context) *scope {
	s, _ := ctx.Value(scopeMark{}).(*scope)
	for s != nil && !s.open.Load() {
		s = s.outer
	}
	return s
}

// FromContext returns the handle to use in code that is given a context and not a transaction: db.WithContext(ctx), and in
// the handler's transaction if ctx comes from inside a handler on db's database. db may be any handle on the database, and
// keeps its session and its conditions. One that is in a transaction itself stays in that, whatever ctx carries.
//
// The context that a handler passes on is tx.Statement.Context.
func FromContext(ctx context.Context, db *gorm.DB) *gorm.DB {
	tx := db.WithContext(ctx) // with a Statement of its own
	s := scopeIn(ctx)
	if s == nil || inTransaction(connection(db)) || database(db) != s.database {
		return tx
	}
	tx.Statement.ConnPool = s.tx.Statement.ConnPool
	return tx
}

// WithoutScope returns a context that does not carry a handler's scope, for a write that is meant to be outside of the
// handler's transaction and to survive its rollback, such as an audit record, and for a goroutine that outlives the handler.
// It says so in the code, and silences the guard. It does not change which transaction a handle is in, nor the
// context's cancellation.
func WithoutScope(ctx context.Context) context.Context {
	return context.WithValue(ctx, scopeMark{}, (*scope)(nil))
}

// AfterCommit registers fn to run once the transaction of tx's handler has committed, for effects outside of the
// database: not at all if it rolls back, or at a replay. It runs in the goroutine that called Do, after other deliveries
// of the event have been let through and before Do returns, in the order of registration. Its context is the call's without
// its cancellation. A panic in it is logged, and changes nothing.
//
// It is no outbox: a process that dies between the commit and fn never runs it, nor does an unknown outcome of commit. What
// must happen belongs in a row that the handler writes.
//
// In a joined call inside another handler, fn waits for the outermost one's commit, and is forgotten if the joined call
// is undone. Nobody tells the library if the handler goes back to a savepoint of its own from before a joined call: fn
// runs then. Nor when a transaction that is the caller's own commits: under one, [ErrUnsupported]. Outside of a handler:
// [ErrNoScope].
func AfterCommit(tx *gorm.DB, fn func(context.Context)) error {
	s, err := scopeAround(tx)
	if err != nil {
		return err
	}
	if fn == nil {
		return unsupported("AfterCommit of a nil function")
	}
	if !s.outermost().owns {
		return unsupported("AfterCommit in a transaction that the caller commits: run it after that commit")
	}
	s.whenCommitted(fn)
	return nil
}
