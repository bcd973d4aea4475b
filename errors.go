package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

// Errors to compare with [errors.Is]. Unless one says otherwise, nothing of the call was written: a standalone call's
// transaction has been rolled back, and a joined call's caller can go on with theirs.
var (
	// ErrInFlight: another delivery of this event holds its key and has not committed. Let the sender deliver again
	// later: answer 503 with Retry-After to a webhook, 409 to a client that sent an Idempotency-Key.
	ErrInFlight = errors.New("idempotency: another delivery of this event is in flight")

	// ErrDigestMismatch: the event's id was used before with another payload. See [DigestMismatchError].
	ErrDigestMismatch = errors.New("idempotency: event id reused with another payload")

	// ErrInvalidKey: the source or event id cannot be a key. See [InvalidKeyError].
	ErrInvalidKey = errors.New("idempotency: invalid key")

	// ErrInvalidConfig: a field of [Config] or an [Option] cannot be used. See [ConfigError].
	ErrInvalidConfig = errors.New("idempotency: invalid configuration")

	// ErrInvalidResponse: the handler's answer cannot be stored. Respond returned it before anything was written.
	ErrInvalidResponse = errors.New("idempotency: invalid response")

	// ErrResponseTooLarge: the answer exceeds Config.MaxResponseBytes. It will be as large at the next delivery, so
	// redelivery does not help: store a reference to the data instead, or raise the limit.
	ErrResponseTooLarge = errors.New("idempotency: response too large, at every delivery of this event")

	// ErrAlreadyResponded: Respond was called twice in one scope, or inside DoValue, whose value is the answer.
	ErrAlreadyResponded = errors.New("idempotency: already responded")

	// ErrForeignWrite: a write left the scope's transaction, and would have outlived its rollback.
	// See [ForeignWriteError].
	ErrForeignWrite = errors.New("idempotency: write outside the transaction that holds the key")

	// ErrReentrant: the handler called Do for the very key it is holding.
	ErrReentrant = errors.New("idempotency: the key is held by the handler that asks for it")

	// ErrNoScope: the handle is not inside a handler, so there is nothing to respond to or to commit.
	ErrNoScope = errors.New("idempotency: not on the handle that an idempotent handler was given")

	// ErrNotRegistered: the plugin is not registered on this database: db.Use(idempotency.New(idempotency.Config{})).
	ErrNotRegistered = errors.New("idempotency: plugin not registered on this database: db.Use(idempotency.New(idempotency.Config{}))")

	// ErrSchema: the table is missing, or is not what the migrations create. The error says what to run.
	ErrSchema = pgsql.ErrSchema

	// ErrUnsupported: the handle or the request is of a kind that the promise cannot be kept with. It wraps
	// [errors.ErrUnsupported].
	ErrUnsupported error = unsupportedError{}

	// ErrOutcomeUnknown: COMMIT was sent and its answer never came, or the handler ended the transaction itself. The
	// delivery may have taken effect or not; the next one finds out, and will not repeat it. It is joined with its
	// cause.
	ErrOutcomeUnknown = errors.New("idempotency: outcome of commit unknown")

	// ErrKeyNotFound: no committed row has this key.
	ErrKeyNotFound = errors.New("idempotency: key not found")
)

// DigestMismatchError says which event came back with another payload. It never contains either payload.
// errors.Is(err, [ErrDigestMismatch]) is true for it.
type DigestMismatchError struct {
	Source    string
	EventID   string
	Scheme    string    // the name of the digest that differs
	ClaimedAt time.Time // when the first payload was claimed
}

func (e *DigestMismatchError) Error() string {
	return fmt.Sprintf("%v: %v, first claimed at %s, digest %s; if its sender changes some fields "+
		"between deliveries, give the source a JSONDigest that ignores them (Config.Sources, SourceConfig.Digest)",
		ErrDigestMismatch, key{e.Source, e.EventID}, e.ClaimedAt.UTC().Format(time.RFC3339), e.Scheme)
}

// Is makes errors.Is(err, ErrDigestMismatch) true.
func (e *DigestMismatchError) Is(target error) bool { return target == ErrDigestMismatch }

// InvalidKeyError says which half of the key is unusable and why. errors.Is(err, [ErrInvalidKey]) is true for it.
type InvalidKeyError struct {
	Field  string // "source" or "event id"
	Reason string
}

func (e *InvalidKeyError) Error() string {
	return fmt.Sprintf("%v: %s %s", ErrInvalidKey, e.Field, e.Reason)
}

// Is makes errors.Is(err, ErrInvalidKey) true.
func (e *InvalidKeyError) Is(target error) bool { return target == ErrInvalidKey }

// ConfigError names the field of [Config], or the option, that cannot be used.
// errors.Is(err, [ErrInvalidConfig]) is true for it.
type ConfigError struct {
	Field  string // "Retention", "Sources[\"stripe\"].RetryHorizon", "WithWait", …
	Reason string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("%v: %s %s", ErrInvalidConfig, e.Field, e.Reason)
}

// Is makes errors.Is(err, ErrInvalidConfig) true.
func (e *ConfigError) Is(target error) bool { return target == ErrInvalidConfig }

// ForeignWriteError names a write that was about to leave the transaction of the handler that holds a key.
// errors.Is(err, [ErrForeignWrite]) is true for it.
type ForeignWriteError struct {
	Source    string // of the key that the handler holds
	EventID   string
	Operation string // "create", "update", "delete", "raw", "row", "query" or "idempotent"
	Table     string // "" where it cannot be told
	Caller    string // file:line outside of GORM and this library, "" where there is none
}

func (e *ForeignWriteError) Error() string {
	what := e.Operation
	if e.Table != "" {
		what += " on " + e.Table
	}
	if e.Caller != "" {
		what += " at " + e.Caller
	}
	return fmt.Sprintf("%v: %s, while the handler holds %v; use the handler's tx, or "+
		"idempotency.FromContext(ctx, db), or mark a deliberate write with idempotency.WithoutScope(ctx)",
		ErrForeignWrite, what, key{e.Source, e.EventID})
}

// Is makes errors.Is(err, ErrForeignWrite) true.
func (e *ForeignWriteError) Is(target error) bool { return target == ErrForeignWrite }

type unsupportedError struct{}

func (unsupportedError) Error() string { return "idempotency: unsupported" }
func (unsupportedError) Unwrap() error { return errors.ErrUnsupported }

func reentrant(k key) error { return fmt.Errorf("%w: %v", ErrReentrant, k) }

func unsupported(reason string) error { return fmt.Errorf("%w: %s", ErrUnsupported, reason) }

// permanent are the errors that are about the event itself, or its answer, and not about the program or the database.
var permanent = []error{ErrDigestMismatch, ErrInvalidKey, ErrInvalidResponse, ErrResponseTooLarge, errUndecodable}

// errUndecodable: a stored body does not decode into what the caller wants, and is the same at every delivery.
var errUndecodable = errors.New("idempotency: the answer's body does not decode")

// Retryable reports whether a later delivery of the same event has a chance. It is false for nil, and for what is wrong with
// the event or its answer, which the same event meets each time: [ErrDigestMismatch], [ErrInvalidKey],
// [ErrInvalidResponse] and [ErrResponseTooLarge]. It is true for everything else: for [ErrInFlight],
// [ErrOutcomeUnknown] and an ended context; for the handler's own errors and the database's; and for mistakes in the
// program, such as [ErrNotRegistered], [ErrForeignWrite] and [ErrSchema], which a deployment or a migration mends, and for
// which no message should be given up.
//
// A consumer lets a message come back when it is true, and puts it with the dead letters, and an alert, when it is false.
func Retryable(err error) bool {
	if err == nil {
		return false
	}
	if errors.Is(err, ErrOutcomeUnknown) {
		return true // whatever else was wrong
	}
	for _, lasting := range permanent {
		if errors.Is(err, lasting) {
			return false
		}
	}
	return true
}

// statementError says which statement of ours failed, and calls a missing or different table by its name.
func statementError(doing string, err error) error {
	if pgsql.WrongSchema(err) {
		return fmt.Errorf("%w: %s: %w; run the migrations, then CheckSchema says what is still wrong", ErrSchema, doing, err)
	}
	return fmt.Errorf("idempotency: %s: %w", doing, err)
}

// quietError hides a cause whose text may quote an answer: errors.As still finds it, and logs do not show it.
type quietError struct {
	error
	cause error
}

func quiet(err, cause error) error { return quietError{err, cause} }

func (e quietError) Unwrap() []error { return []error{e.error, e.cause} }

// withContextError lets errors.Is find the context's end in an error that it caused under another name: a driver's
// own, or sql.ErrTxDone once database/sql has rolled back.
func withContextError(ctx context.Context, err error) error {
	ended := ctx.Err()
	if err == nil || ended == nil || errors.Is(err, ended) {
		return err
	}
	return fmt.Errorf("%w: %w", err, ended)
}
