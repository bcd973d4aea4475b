package idempotency

import (
	"database/sql"
	"reflect"
	"sync"

	"gorm.io/gorm"
)

// scopes are the open scopes of this process. There is one register for all plugins: two handles with a plugin each can
// share a pool, and so a transaction.
var scopes register

// register keeps the open scopes by their connection, innermost first. A context value could not: every repository
// replaces the context with WithContext, while the connection survives that, NewDB, PrepareStmt, Debug and nested
// transactions.
type register struct {
	mu        sync.RWMutex
	innermost map[gorm.ConnPool]*scope
	busy      map[*sql.Conn]bool // connections on which a call of its own has begun a transaction
}

func (r *register) enter(s *scope) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.innermost == nil {
		r.innermost = make(map[gorm.ConnPool]*scope)
	}
	s.outer = r.innermost[s.conn]
	r.innermost[s.conn] = s
	s.open.Store(true)
}

func (r *register) leave(s *scope) {
	if s == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s.open.Store(false)
	around := r.innermost[s.conn]
	for around != nil && !around.open.Load() {
		around = around.outer
	}
	if around == nil {
		delete(r.innermost, s.conn)
		return
	}
	r.innermost[s.conn] = around
}

// at is the innermost open scope on a connection, or nil.
func (r *register) at(conn gorm.ConnPool) *scope {
	if !hashable(conn) {
		return nil
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.innermost[conn]
}

// occupy takes a single connection for a transaction, and reports whether it was free. Unlike a pool's handle, a *sql.Conn
// begins a second transaction on the same connection, whose COMMIT is the first one's.
func (r *register) occupy(conn gorm.ConnPool) bool {
	single, ok := conn.(*sql.Conn)
	if !ok {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy[single] {
		return false
	}
	if r.busy == nil {
		r.busy = make(map[*sql.Conn]bool)
	}
	r.busy[single] = true
	return true
}

func (r *register) free(conn gorm.ConnPool) {
	if single, ok := conn.(*sql.Conn); ok {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.busy, single)
	}
}

// occupied reports whether a handler's transaction runs on a single connection.
func (r *register) occupied(conn gorm.ConnPool) bool {
	single, ok := conn.(*sql.Conn)
	if !ok {
		return false
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.busy[single]
}

// hashable reports whether a connection can be told apart from others. An application's own may be a struct that holds a
// slice, as a key of a map it would panic.
func hashable(conn gorm.ConnPool) bool { return conn != nil && reflect.ValueOf(conn).Comparable() }
