package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"
)

// Do makes fc's database effect happen exactly once for the event (source, id), however often and wherever it is
// delivered. It claims the key, runs fc in the same transaction, stores the answer that fc gave with [Respond], and
// commits; a duplicate gets the stored answer and fc does not run. body is the payload as it was received: of it only a
// digest is stored, and an event that comes back with another payload is refused. It may be nil.
//
// fc must write through the handle it is given, or a session of it. It should not wait for anything outside of the
// database, since it holds the key and a connection. Its error is returned as it is, and undoes everything: the next
// delivery runs fc again. So does a panic, which goes on once the transaction is rolled back.
//
// On a handle of a pool or of one connection the call is standalone: it begins and ends its own transaction, at READ COMMITTED
// unless [WithTxOptions] says otherwise. While another delivery holds the key it waits, holding no connection, up to
// Config.Wait, SourceConfig.Wait or [WithWait], or to the context's deadline. When Do returns without an error, the
// effect is durable.
//
// On a handle that is in a transaction the call is joined, within a savepoint: it never waits, the Result is Provisional
// until the caller commits, and after any error the caller's transaction is usable and free of fc's writes. Inside
// another handler that is how one event's handler claims another's key.
//
// Result is nil exactly when the error is not. Errors, all of which leave nothing written:
//   - [InvalidKeyError], [ConfigError] for an option, [ErrUnsupported] for a handle or fc that is nil, a handle in dry-run mode,
//     or WithTxOptions in a joined call; [ErrNotRegistered]; the error that db already carries. No SQL has run.
//   - [ErrInFlight] when another delivery holds the key for longer than the wait.
//   - [DigestMismatchError] when the payload differs from the one that claimed the key.
//   - [ForeignWriteError] on another connection than the handler's that the context comes from, and [ErrReentrant] when
//     that handler holds this very key.
//   - [ErrSchema] when the table is missing or different.
//   - [ErrOutcomeUnknown] when nobody knows whether the commit took place. This one may have taken effect.
//   - the context's error, fc's, and the database's.
func Do(db *gorm.DB, source, id string, body []byte, fc func(tx *gorm.DB) error, opts ...Option) (*Result, error) {
	c, err := newCall(db, source, id, body, opts)
	if err != nil {
		return nil, err
	}
	if fc == nil {
		return nil, unsupported("a nil handler")
	}
	c.handler = fc
	return c.run()
}

// DoValue is [Do] for a handler whose answer is a value: it is stored as JSON with status 200, and a duplicate gets it
// decoded. The first caller too gets the value that its JSON decodes to, so that all deliveries get the same. A value
// whose JSON does not decode into a T is refused with [ErrInvalidResponse] before anything is committed, and so is a T
// of []byte. A nil interface is stored as no body, which decodes to the zero T.
//
// The zero T comes with every error, which are those of Do. [Respond] inside fc is [ErrAlreadyResponded]. One error comes with a
// non-nil Result: a stored body, written by an earlier version of the handler perhaps, that does not decode into a T. The
// event has taken effect, and the Result holds its answer.
func DoValue[T any](db *gorm.DB, source, id string, body []byte, fc func(tx *gorm.DB) (T, error), opts ...Option) (T, *Result, error) {
	var value, zero T
	c, err := newCall(db, source, id, body, opts)
	if err != nil {
		return zero, nil, err
	}
	if fc == nil {
		return zero, nil, unsupported("a nil handler")
	}
	if _, isBytes := any(zero).([]byte); isBytes {
		return zero, nil, fmt.Errorf("%w: a value of type []byte: use Do with RespondRaw", ErrInvalidResponse)
	}
	c.answersItself = true
	c.handler = func(tx *gorm.DB) error {
		returned, err := fc(tx)
		if err != nil {
			return err
		}
		text, err := jsonBody(any(returned))
		if err != nil {
			return err
		}
		if err := decodeValue(&Result{Body: text}, &value); err != nil {
			return quiet(fmt.Errorf("%w: the JSON of a %T does not decode into one", ErrInvalidResponse, returned), err)
		}
		return c.scope.answerWith(answer{status: 200, body: text})
	}
	result, err := c.run()
	if err != nil {
		return zero, nil, err
	}
	if !result.Replayed {
		return value, result, nil
	}
	if err := decodeValue(result, &value); err != nil {
		return zero, result, err
	}
	return value, result, nil
}

func decodeValue(result *Result, value any) error {
	if result.Body == nil {
		return nil
	}
	return result.Decode(value)
}

// call is one delivery on its way through the protocol.
type call struct {
	plugin  *Plugin
	db      *gorm.DB // the caller's handle, with whatever conditions it carries
	ctx     context.Context
	key     key
	body    []byte
	scheme  string // of the digest
	digest  []byte // of the body, as the row holds it
	options options
	handler func(tx *gorm.DB) error

	answersItself bool // the handler's value is the answer, so Respond is refused

	started     time.Time
	waited      time.Duration
	kind        Kind
	provisional bool
	scope       *scope // the handler's, once the key is claimed
}

// newCall refuses whatever can be refused before any SQL.
func newCall(db *gorm.DB, source, id string, body []byte, opts []Option) (*call, error) {
	started := time.Now()
	p, err := usable(db)
	if err != nil {
		return nil, err
	}
	k := key{source: source, eventID: id}
	if err := k.validate(); err != nil {
		return nil, err
	}
	settings := p.config.of(source)
	c := &call{
		plugin: p, db: db, ctx: db.Statement.Context, key: k, body: body,
		options: options{wait: max(settings.Wait, 0)}, started: started, kind: Failed,
	}
	if err := c.options.collect(opts); err != nil {
		return nil, err
	}
	c.scheme, c.digest = settings.Digest.Name, settings.Digest.stored(body)
	return c, nil
}

// usable finds the plugin of a handle that statements can run on.
func usable(db *gorm.DB) (*Plugin, error) {
	p, err := pluginOf(db)
	if err != nil {
		return nil, err
	}
	if db.Error != nil {
		// Begin on such a handle would open a transaction that nobody ends.
		return nil, fmt.Errorf("idempotency: the handle already carries an error: %w", db.Error)
	}
	if db.DryRun {
		return nil, unsupported("a handle in dry-run mode")
	}
	if conn := connection(db); !hashable(conn) {
		return nil, unsupported(fmt.Sprintf("a connection of type %T", conn))
	}
	return p, nil
}

// errAbandoned is what a call that panicked, or that runtime.Goexit ended, is observed with.
var errAbandoned = errors.New("idempotency: the handler panicked or left its goroutine")

// run takes the call through the protocol, then does what has to wait for the end of the transaction.
func (c *call) run() (result *Result, err error) {
	observed := errAbandoned
	defer func() { c.observe(observed) }()

	result, err = c.deliver()
	err = withContextError(c.ctx, err)
	observed = err
	c.observeForeign()
	if c.kind == Executed && c.scope.owns {
		c.scope.runAfterCommit(c.ctx, c.db)
	}
	return result, err
}

func (c *call) deliver() (*Result, error) {
	if err := c.plugin.refuseOutside(c.ctx, c.db, c.key); err != nil {
		return nil, err
	}
	if inTransaction(connection(c.db)) {
		return c.joined()
	}
	return c.standalone()
}

// observeForeign tells of the writes that left the transaction which has now ended.
func (c *call) observeForeign() {
	if c.scope == nil || c.scope.outer != nil {
		return
	}
	for _, o := range c.scope.takeForeign() {
		c.plugin.observe(c.ctx, c.db, o)
	}
}

func (c *call) observe(err error) {
	c.plugin.observe(c.ctx, c.db, Observation{
		Kind: c.kind, Source: c.key.source, EventID: c.key.eventID,
		Duration: time.Since(c.started), Waited: c.waited, Provisional: c.provisional, Err: err,
	})
}
