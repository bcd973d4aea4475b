// Package gate queues the deliveries of one key inside one process, before they take a database connection.
//
// A retry storm then costs one connection per key, not one per delivery. The gate only queues: whoever is let through
// asks the database, so that nothing wrong can be answered from memory.
package gate

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Why Enter let nobody in, when the context did not end.
var (
	// ErrHeld is told at once to a caller that does not wait: the occupant has won the key.
	ErrHeld = errors.New("gate: the occupant holds the key")

	// ErrTimeout is told to a caller whose wait ran out in the queue.
	ErrTimeout = errors.New("gate: the wait ran out")
)

// Gate lets one caller per key in at a time, first come, first served. The zero value is ready to use.
type Gate[K comparable] struct {
	mu sync.Mutex

	// occupants holds, for each key that somebody is inside of, the pass of whoever is. Those that wait are linked
	// behind it. A key without an occupant has no entry: it is handed over, or deleted, in one step.
	occupants map[K]*Pass[K]
}

// Pass is a place at the gate. Its methods may be called from any goroutine; on a nil Pass they do nothing.
type Pass[K comparable] struct {
	gate *Gate[K]
	key  K

	// turn is closed when a waiting pass becomes the occupant. Nil for one that found the gate open.
	turn chan struct{}

	// The rest is guarded by gate.mu. The passes of a key form a ring: the occupant first, then the queue in order, so
	// that the occupant's prev is the end of the queue and anybody can step out of the middle.
	prev, next *Pass[K]
	won, left  bool
}

// Enter takes the caller through the gate of key.
//
// With a positive wait it queues until it is let in, the wait runs out (ErrTimeout) or ctx ends (its error).
// Otherwise it returns at once: with a pass if nobody is inside, with ErrHeld if the occupant has won the key, and else
// with neither a pass nor an error. The caller then goes on to the database without occupying the gate: the occupant may
// itself be waiting for another process, and only the database knows.
//
// A non-nil error comes with a nil Pass. Whoever gets no error goes on, and calls Leave when its transaction has ended.
func (g *Gate[K]) Enter(ctx context.Context, key K, wait time.Duration) (*Pass[K], error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	pass, err := g.place(key, wait > 0)
	if pass == nil || pass.turn == nil {
		return pass, err
	}
	return pass.await(ctx, wait)
}

// place lets the caller in, or gives it a place in the queue if it may queue.
func (g *Gate[K]) place(key K, queue bool) (*Pass[K], error) {
	g.mu.Lock()
	defer g.mu.Unlock()

	occupant := g.occupants[key]
	switch {
	case occupant == nil:
		pass := &Pass[K]{gate: g, key: key}
		pass.prev, pass.next = pass, pass
		if g.occupants == nil {
			g.occupants = make(map[K]*Pass[K])
		}
		g.occupants[key] = pass
		return pass, nil
	case queue:
		pass := &Pass[K]{gate: g, key: key, turn: make(chan struct{})}
		pass.prev, pass.next = occupant.prev, occupant
		pass.prev.next, pass.next.prev = pass, pass
		return pass, nil
	case occupant.won:
		return nil, ErrHeld
	default:
		return nil, nil
	}
}

// await blocks until the pass is the occupant's, or gives it up.
func (p *Pass[K]) await(ctx context.Context, wait time.Duration) (*Pass[K], error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()

	var err error
	select {
	case <-p.turn:
	case <-ctx.Done():
	case <-timer.C:
		err = ErrTimeout
	}
	// Several may have happened at the same moment, of which select picks any. A context that has ended always counts.
	if ended := ctx.Err(); ended != nil {
		err = ended
	}
	if err != nil {
		p.Leave() // hands on the admission, if that came at the same moment: lost, it would close the gate for ever
		return nil, err
	}
	return p, nil
}

// Queued reports whether somebody was inside when the pass was given, so that its caller had to wait.
func (p *Pass[K]) Queued() bool { return p != nil && p.turn != nil }

// Won marks the occupant as the holder of the key: it has claimed, so that callers that don't wait are told ErrHeld. The
// mark goes when the occupant leaves.
func (p *Pass[K]) Won() {
	if p == nil {
		return
	}
	p.gate.mu.Lock()
	defer p.gate.mu.Unlock()
	p.won = true
}

// Leave gives up the place and lets the next in line in. Only the first call does anything.
func (p *Pass[K]) Leave() {
	if p == nil {
		return
	}
	p.gate.mu.Lock()
	defer p.gate.mu.Unlock()

	if p.left {
		return
	}
	p.left = true
	if p.gate.occupants[p.key] == p {
		p.handOver()
	}
	p.prev.next, p.next.prev = p.next, p.prev
	p.prev, p.next = nil, nil // a pass that is kept must not keep its neighbours
}

// handOver makes the next in line the occupant. Nobody can slip in between, which keeps the queue fair.
func (p *Pass[K]) handOver() {
	if p.next == p {
		delete(p.gate.occupants, p.key)
		return
	}
	p.gate.occupants[p.key] = p.next
	close(p.next.turn)
}
