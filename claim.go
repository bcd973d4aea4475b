package idempotency

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency/internal/gate"
	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

const (
	// firstPause and longestPause bound the sleep between two claims of a call that waits. Each is jittered, so that the
	// waiting processes do not come back together.
	firstPause   = 10 * time.Millisecond
	longestPause = 250 * time.Millisecond

	// maxRestarts is how often a transaction is started over because claiming met a serialization failure or a deadlock.
	maxRestarts = 3
)

// gateKey tells deliveries apart inside this process. The pool is part of it: the same key in two databases is two keys.
type gateKey struct {
	pool gorm.ConnPool
	key  key
}

// standalone is the protocol of a call that owns its transaction.
func (c *call) standalone() (*Result, error) {
	if err := c.ctx.Err(); err != nil {
		return nil, fmt.Errorf("idempotency: before the claim: %w", err)
	}
	entered := time.Now()
	pass, err := c.plugin.gate.Enter(c.ctx, gateKey{pool: connection(c.db), key: c.key}, c.options.wait)
	if err != nil || pass.Queued() {
		c.waited = time.Since(entered)
	}
	if err != nil {
		return nil, c.gaveUp()
	}
	defer pass.Leave()
	return c.poll(pass)
}

// poll claims the key, and claims it again while somebody else holds it, until the wait is over. It sleeps between
// transactions and never inside one, so that waiting holds no connection.
func (c *call) poll(pass *gate.Pass[gateKey]) (*Result, error) {
	deadline := c.started.Add(c.options.wait)
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		result, at, err := c.startOver(pass)
		if at != heldByAnother {
			return result, err
		}
		left := time.Until(deadline)
		if left <= 0 || !c.sleep(min(pause/2+rand.N(pause/2), left)) { //nolint:gosec // jitter is no secret
			return nil, c.gaveUp()
		}
	}
}

// sleep reports whether the call may go on after it.
func (c *call) sleep(pause time.Duration) bool {
	slept := time.Now()
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.ctx.Done():
	}
	c.waited += time.Since(slept)
	return c.ctx.Err() == nil
}

// gaveUp is the error of a call that has seen another delivery hold its key and waits no longer. A deadline ends a wait; a
// cancelled context is nobody's answer.
func (c *call) gaveUp() error {
	ended := c.ctx.Err()
	if errors.Is(ended, context.Canceled) {
		return fmt.Errorf("idempotency: while waiting for another delivery of the event: %w", ended)
	}
	c.kind = InFlight
	if ended != nil {
		return fmt.Errorf("%w: %v: %w", ErrInFlight, c.key, ended)
	}
	return fmt.Errorf("%w: %v", ErrInFlight, c.key)
}

// startOver makes an attempt in a transaction of the call's own, and another one if claiming met a serialization failure
// or a deadlock, which a fresh snapshot can mend, or a pooled connection that turned out to be closed. The handler has not
// run then.
func (c *call) startOver(pass *gate.Pass[gateKey]) (*Result, standing, error) {
	conn := connection(c.db)
	if !scopes.occupy(conn) {
		return nil, unclaimed, unsupported("a single connection on which another call's transaction has begun")
	}
	defer scopes.free(conn)
	for restarts := 0; ; restarts++ {
		t := newOwnTransaction(c)
		result, at, err := c.attempt(t, pass)
		if at != unclaimed || restarts == maxRestarts || !pgsql.Restartable(err) && !t.unsent(err) {
			return result, at, err
		}
	}
}

// joined is the protocol of a call inside a transaction that is not its own. It never waits, since sleeping would hold the
// caller's locks: two callers that wait for each other's key would both fail, after the whole wait.
func (c *call) joined() (*Result, error) {
	c.provisional = true
	if c.options.txOptions != nil {
		return nil, unsupported("WithTxOptions in a transaction that has begun")
	}
	if scopes.at(connection(c.db)).holds(c.plugin, c.key) {
		return nil, reentrant(c.key)
	}
	if s := scopeIn(c.ctx); s != nil && s.conn == connection(c.db) && s != scopes.at(s.conn) {
		return nil, unsupported("a call on the transaction of a handler in which another call is at work: use that one's handle, and one goroutine")
	}
	result, at, err := c.attempt(newJoinedTransaction(c), nil)
	if at == heldByAnother {
		return nil, c.gaveUp()
	}
	if result != nil {
		result.Provisional = true
	}
	return result, err
}

// standing is how far an attempt got.
type standing int

const (
	unclaimed     standing = iota // claiming failed, or the call went away: the handler has not run
	heldByAnother                 // a transaction that has not committed holds the key
	settled                       // the call is over: the handler ran, or the stored row decided
)

// attempt is the protocol in one transaction: claim, run the handler, keep; or find out who has the key. Whatever happens,
// a panic and runtime.Goexit included, the transaction has ended when it returns.
func (c *call) attempt(t transaction, pass *gate.Pass[gateKey]) (result *Result, at standing, err error) {
	defer func() {
		// Not before the transaction has ended: until then the handler's goroutines can still write.
		defer scopes.leave(c.scope)
		lost := t.undo()
		if lost != nil {
			// Whatever was found out about the key, this is what became of the call: joined, the caller's transaction is lost.
			result, at, err = nil, settled, join(lost, err)
			c.kind = Failed
			c.noteOutcome(lost)
		}
	}()

	claimed, row, err := c.contest(t)
	switch {
	case err != nil:
		return nil, unclaimed, err
	case claimed.won:
		pass.Won()
		result, err = c.execute(t, claimed.at)
		return result, settled, err
	case row == nil:
		return nil, heldByAnother, nil
	}
	return c.consult(row)
}

// contest claims the key, or finds the row of whoever has it. Neither, without an error, means that a transaction that has
// not committed holds it.
func (c *call) contest(t transaction) (claimed claim, row *storedRow, err error) {
	claimed, err = t.begin()
	for again := false; err == nil && !claimed.won; again = true {
		row, err = t.lookup()
		if err != nil || row != nil || again {
			return claim{}, row, err
		}
		// Nobody's row: its holder has not committed, or a sweep has just deleted it. Then it is ours to claim.
		claimed, err = t.claim()
	}
	return claimed, nil, err
}

// execute runs the handler in the scope of the claimed key, and keeps what it did. No result exists before that is sure.
func (c *call) execute(t transaction, claimedAt time.Time) (*Result, error) {
	c.scope = t.open()
	scopes.enter(c.scope)
	if err := c.handler(c.scope.tx); err != nil {
		return nil, err
	}
	a := c.scope.given()
	if err := t.keep(a); err != nil {
		c.noteOutcome(err)
		return nil, err
	}
	c.scope.succeed()
	c.kind = Executed
	return a.result(claimedAt), nil
}

// consult decides by the row of an earlier delivery: another payload is refused, whether the row is complete or not.
func (c *call) consult(row *storedRow) (*Result, standing, error) {
	equal, known := c.matches(row.digest)
	switch {
	case !known:
		c.warnUnknownDigest(schemeOf(row.digest))
	case !equal:
		c.kind = Mismatch
		return nil, settled, &DigestMismatchError{
			Source: c.key.source, EventID: c.key.eventID, Scheme: schemeOf(row.digest), ClaimedAt: row.claimedAt.UTC(),
		}
	}
	if !row.complete {
		return nil, heldByAnother, nil
	}
	c.kind = Replayed
	result := row.answer.result(row.claimedAt)
	result.Replayed = true
	return result, settled, nil
}

// warnUnknownDigest says once for each scheme that its rows are replayed without a comparison.
func (c *call) warnUnknownDigest(scheme string) {
	if _, warned := c.plugin.warned.LoadOrStore(scheme, true); !warned {
		c.db.Logger.Warn(c.ctx,
			"idempotency: keys were claimed with the digest %.128q, which no source is configured with: their duplicates are replayed unchecked", scheme)
	}
}

func (c *call) noteOutcome(err error) {
	if errors.Is(err, ErrOutcomeUnknown) {
		c.kind = OutcomeUnknown
	}
}

// join puts what became of the transaction before the error that it was ended for.
func join(lost, err error) error {
	if err == nil || errors.Is(err, ErrOutcomeUnknown) && errors.Is(lost, ErrOutcomeUnknown) {
		return lost
	}
	return fmt.Errorf("%w: %w", lost, err)
}
