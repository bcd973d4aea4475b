package idempotency

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"

	"gorm.io/gorm"
)

// scope is what a handler works in: the key it holds, the transaction it holds it with, and the answer it has given. It is
// open from the claim until the transaction (or the savepoint, for a joined call) has ended.
type scope struct {
	plugin   *Plugin
	key      key
	database gorm.ConnPool // the pool: identifies the database
	conn     gorm.ConnPool // the transaction underneath GORM's statement cache: identifies the connection
	tx       *gorm.DB      // the handler's handle
	outer    *scope        // the scope on the same transaction that this call was made in
	owns     bool          // the transaction is this call's own: it commits it
	open     atomic.Bool
	undone   atomic.Bool // the library has rolled the whole transaction back

	mu          sync.Mutex
	answer      answer
	answered    bool // Respond is refused: it was called, or a value is the answer
	afterCommit []func(context.Context)
	left        []Observation // of writes that left the transaction, until it has ended
}

func (s *scope) respond(a answer) error {
	if err := a.validate(s.plugin.config.MaxResponseBytes); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.answered {
		return ErrAlreadyResponded
	}
	a.body = bytes.Clone(a.body) // the handler may use its buffer again
	s.answer, s.answered = a, true
	return nil
}

// outermost is the scope that the transaction began with, as far as the library knows.
func (s *scope) outermost() *scope {
	for s.outer != nil {
		s = s.outer
	}
	return s
}

// holds reports whether s, or a scope around it on the same transaction, holds the key.
func (s *scope) holds(p *Plugin, k key) bool {
	for ; s != nil; s = s.outer {
		if s.plugin.table == p.table && s.key == k {
			return true
		}
	}
	return false
}

// answerWith sets the answer of a handler whose value is the answer.
func (s *scope) answerWith(a answer) error {
	if err := a.validate(s.plugin.config.MaxResponseBytes); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = a
	return nil
}

// given is the answer, once and for all: what a goroutine that the handler left behind responds is refused.
func (s *scope) given() answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answered = true
	return s.answer
}

// whenCommitted registers fn with this scope. succeed hands it outwards, so that what an inner call registered is
// forgotten when that call is undone.
func (s *scope) whenCommitted(fn func(context.Context)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.afterCommit = append(s.afterCommit, fn)
}

// succeed hands what waits for the commit to the scope around it, whose transaction it is.
func (s *scope) succeed() {
	if s.outer == nil {
		return
	}
	for _, fn := range s.takeAfterCommit() {
		s.outer.whenCommitted(fn)
	}
}

// takeAfterCommit takes what waits for the commit. A goroutine that the handler left behind may still be adding to it.
func (s *scope) takeAfterCommit() []func(context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.afterCommit
	s.afterCommit = nil
	return taken
}

// runAfterCommit runs what waited for the commit, in the order of registration. The functions outlive the delivery's
// context and its scope: a cancelled sender must not stop them, and their writes are not foreign.
func (s *scope) runAfterCommit(ctx context.Context, db *gorm.DB) {
	waiting := s.takeAfterCommit()
	if len(waiting) == 0 {
		return
	}
	ctx = WithoutScope(context.WithoutCancel(ctx))
	for _, fn := range waiting {
		guarded(ctx, db, "a function given to AfterCommit", func() { fn(ctx) })
	}
}

// depth is how many scopes are open on the transaction, from s outwards.
func (s *scope) depth() int {
	depth := 0
	for ; s != nil; s = s.outer {
		depth++
	}
	return depth
}

// markUndone notes in every scope on the transaction that the library has rolled it back.
func (s *scope) markUndone() {
	for ; s != nil; s = s.outer {
		s.undone.Store(true)
	}
}

func (s *scope) isUndone() bool { return s != nil && s.undone.Load() }

// observeForeign keeps an observation until the transaction has ended: Config.Observe may write, and in a pool of one
// connection would wait for it.
func (s *scope) observeForeign(o Observation) {
	outermost := s.outermost()
	outermost.mu.Lock()
	defer outermost.mu.Unlock()
	outermost.left = append(outermost.left, o)
}

// takeForeign takes the observations that waited for the transaction's end.
func (s *scope) takeForeign() []Observation {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.left
	s.left = nil
	return taken
}

// scopeAround finds the scope whose transaction tx is a handle of.
func scopeAround(tx *gorm.DB) (*scope, error) {
	if _, err := pluginOf(tx); err != nil {
		return nil, err
	}
	conn := connection(tx)
	innermost := scopes.at(conn)
	if innermost == nil {
		return nil, ErrNoScope
	}
	// The handle's own scope, if it tells: an outer handler's handle may be used inside an inner one.
	if s := scopeIn(tx.Statement.Context); s != nil && s.conn == conn {
		return s, nil
	}
	return innermost, nil
}

// connection is what a handle's statements run on, without GORM's statement caches around it.
func connection(db *gorm.DB) gorm.ConnPool { return unwrap(db.Statement.ConnPool) }

// database is the pool that a handle was opened with, also for a handle inside a transaction: it stands in the handle's
// Config, and the transaction in its Statement. But Session{PrepareStmt: true} on a transaction puts that into the Config
// too; its statement cache still knows the pool.
func database(db *gorm.DB) gorm.ConnPool {
	if prepared, ok := db.ConnPool.(*gorm.PreparedStmtTX); ok {
		return unwrap(prepared.PreparedStmtDB)
	}
	return unwrap(db.ConnPool)
}

// unwrap takes off the caches that GORM puts around a pool or transaction. There may be several, since
// Session{PrepareStmt: true} wraps again.
func unwrap(pool gorm.ConnPool) gorm.ConnPool {
	for {
		switch wrapped := pool.(type) {
		case *gorm.PreparedStmtTX:
			pool = wrapped.Tx
		case *gorm.PreparedStmtDB:
			pool = wrapped.ConnPool
		default:
			return pool
		}
	}
}

// inTransaction reports whether a handle's connection is in a transaction already, so that a call on it joins.
func inTransaction(conn gorm.ConnPool) bool {
	_, ok := conn.(gorm.TxCommitter)
	return ok
}
