package idempotency

import (
	"database/sql"
	"runtime"
	"sync"
	"weak"

	"gorm.io/gorm"
)

// maxLocks is how many advisory locks one transaction takes. They are a resource of the whole server, held until the
// transaction ends: a batch of tens of thousands of joined claims would leave nobody else any.
const maxLocks = 1000

// lockBudget counts the locks of transactions that other code began, and whose end nobody tells us: it holds them weakly.
type lockBudget struct {
	mu    sync.Mutex
	taken map[weak.Pointer[sql.Tx]]int
}

// spent reports whether the transaction has taken its share. Its further claims do without, so that a duplicate of one of
// them blocks inside the server until this transaction ends, bounded by its context.
func (b *lockBudget) spent(conn gorm.ConnPool) bool {
	tx, ok := conn.(*sql.Tx)
	if !ok {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.taken[weak.Make(tx)] >= maxLocks
}

// spend counts a lock that stays until the transaction's end. One that was taken after a savepoint which is rolled back
// is released with it, and does not count.
func (b *lockBudget) spend(conn gorm.ConnPool) {
	tx, ok := conn.(*sql.Tx)
	if !ok {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.taken == nil {
		b.taken = make(map[weak.Pointer[sql.Tx]]int)
	}
	w := weak.Make(tx)
	if b.taken[w] == 0 {
		runtime.AddCleanup(tx, b.forget, w)
	}
	b.taken[w]++
}

func (b *lockBudget) forget(w weak.Pointer[sql.Tx]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.taken, w)
}
