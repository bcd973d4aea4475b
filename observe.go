package idempotency

import (
	"context"
	"time"

	"gorm.io/gorm"
)

// Kind is what became of a delivery, or what else happened that an operator wants to count. It is a word that can
// serve as a metric's label.
type Kind string

// The kinds of [Observation].
const (
	Executed       Kind = "executed"        // the handler ran, and its effect is committed (or Provisional)
	Replayed       Kind = "replayed"        // a duplicate got the stored answer
	InFlight       Kind = "in_flight"       // another delivery holds the key: ErrInFlight
	Mismatch       Kind = "mismatch"        // the id came with another payload: ErrDigestMismatch
	Failed         Kind = "failed"          // any other error, or a panic; nothing was written
	OutcomeUnknown Kind = "outcome_unknown" // ErrOutcomeUnknown
	ForeignWrite   Kind = "foreign_write"   // the guard saw a write outside the transaction, refused or not
	Swept          Kind = "swept"           // the sweeper deleted Count expired keys
)

// Observation is what Config.Observe is told: one for each call of Do that was not refused for its arguments, and one for
// each foreign write. It contains no payload and no answer.
type Observation struct {
	Kind        Kind
	Source      string
	EventID     string
	Duration    time.Duration // of the whole call
	Waited      time.Duration // the part of Duration that was spent waiting for another delivery of the event
	Provisional bool          // the call was joined: the caller's transaction has not committed yet
	Count       int64         // keys deleted, for Swept
	Err         error         // what the call returned, or that its handler panicked
}

// observe tells Config.Observe, after the transaction has ended. A panic there is logged and changes nothing: the effect
// is already committed or already undone. Its writes are not the handler's: were they taken for foreign ones, the guard
// would observe them in turn, without end.
func (p *Plugin) observe(ctx context.Context, db *gorm.DB, observation Observation) {
	if p.config.Observe == nil {
		return
	}
	ctx = WithoutScope(ctx)
	guarded(ctx, db, "Config.Observe", func() { p.config.Observe(ctx, observation) })
}

// guarded runs a user's function that must not change the outcome any more.
func guarded(ctx context.Context, db *gorm.DB, name string, fn func()) {
	defer func() {
		if panicked := recover(); panicked != nil {
			// The panic's type alone: its text may hold a payload.
			db.Logger.Error(ctx, "idempotency: %s panicked with a %T", name, panicked)
		}
	}()
	fn()
}
