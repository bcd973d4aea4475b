package idempotency_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-idempotency/idempotency"
)

// never is longer than any wait here lasts: whoever is still waiting then waits for ever.
const never = time.Minute

// delivery is a call under way in a goroutine of its own.
type delivery struct {
	done   chan struct{}
	result *idempotency.Result
	err    error
}

// deliver starts a delivery of an event of the source "s", whose handler places an order.
func deliver(db *gorm.DB, id string, opts ...idempotency.Option) *delivery {
	d := &delivery{done: make(chan struct{})}
	go func() {
		defer close(d.done)
		d.result, d.err = idempotency.Do(db, "s", id, nil, placeOrder(id), opts...)
	}()
	return d
}

// end waits for the call to return.
func (d *delivery) end(t testing.TB) (*idempotency.Result, error) {
	t.Helper()
	requireClosed(t, d.done, "the delivery ends")
	return d.result, d.err
}

func (d *delivery) ended() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

func requireClosed(t testing.TB, done <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(never):
		t.Fatalf("did not happen: %s", what)
	}
}

// execute delivers an event that must take effect.
func execute(t testing.TB, db *gorm.DB, id string) *idempotency.Result {
	t.Helper()
	result, err := idempotency.Do(db, "s", id, nil, placeOrder(id))
	if err != nil {
		t.Fatalf("delivery of %s: %v", id, err)
	}
	if result.Replayed {
		t.Fatalf("the delivery of %s was a replay", id)
	}
	return result
}

// requireReplay delivers an event that took effect earlier.
func requireReplay(t testing.TB, db *gorm.DB, id string) *idempotency.Result {
	t.Helper()
	result, err := idempotency.Do(db, "s", id, nil, unwanted(t))
	if err != nil {
		t.Fatalf("redelivery of %s: %v", id, err)
	}
	if !result.Replayed {
		t.Fatalf("the redelivery of %s was no replay", id)
	}
	return result
}

// unwanted is a handler that must not run.
func unwanted(t testing.TB) func(*gorm.DB) error {
	return func(*gorm.DB) error {
		t.Error("the handler ran")
		return nil
	}
}

// state is an error's SQLSTATE.
func state(err error) string {
	var coded interface{ SQLState() string }
	if errors.As(err, &coded) {
		return coded.SQLState()
	}
	return ""
}

func requireState(t testing.TB, err error, want string) {
	t.Helper()
	if got := state(err); got != want {
		t.Fatalf("error %v has SQLSTATE %q, want %q", err, got, want)
	}
}

// requireErrorIs is requireError for goroutines, which must not end the test.
func requireErrorIs(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error %v, want %v", err, want)
	}
}

// requireNoVerdict fails unless err is one of the database's or the driver's, and none that says what became of the key.
func requireNoVerdict(t testing.TB, err error) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, verdict := range []error{idempotency.ErrInFlight, idempotency.ErrDigestMismatch, idempotency.ErrOutcomeUnknown} {
		if errors.Is(err, verdict) {
			t.Fatalf("error %v is %q, which nobody knows", err, verdict)
		}
	}
}

// witness keeps what Config.Observe is told.
type witness struct {
	mu   sync.Mutex
	seen []idempotency.Observation
}

func (w *witness) observe(_ context.Context, o idempotency.Observation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, o)
}

// take returns the kinds observed since the last take.
func (w *witness) take() (kinds []idempotency.Kind) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.seen {
		kinds = append(kinds, o.Kind)
	}
	w.seen = nil
	return kinds
}

func (w *witness) require(t testing.TB, want ...idempotency.Kind) {
	t.Helper()
	if got := w.take(); !slices.Equal(got, want) {
		t.Errorf("observed %v, want %v", got, want)
	}
}

// stepOf is what a statement does in the protocol, or its text.
func stepOf(text string) string {
	for _, known := range []struct{ name, prefix, part string }{
		{"claim", `INSERT INTO "idempotency_keys"`, "pg_try_advisory_xact_lock"},
		{"claim without lock", `INSERT INTO "idempotency_keys"`, ""},
		{"look up", `SELECT payload_digest`, "IS NOT NULL"},
		{"complete", `UPDATE "idempotency_keys"`, ""},
		{"order", `INSERT INTO "orders"`, ""},
		{"begin", "begin isolation level read committed", ""},
	} {
		if strings.HasPrefix(text, known.prefix) && strings.Contains(text, known.part) {
			return known.name
		}
	}
	return text
}

// steps are the protocol's steps since the last look at the wire.
func (w *wire) steps() (steps []string) {
	for _, s := range w.take() {
		steps = append(steps, stepOf(s.text))
	}
	return steps
}

func (w *wire) requireSteps(t testing.TB, want ...string) {
	t.Helper()
	if got := w.steps(); !slices.Equal(got, want) {
		t.Errorf("statements %q, want %q", got, want)
	}
}

// seen counts a step so far, without taking it off the wire.
func (w *wire) seen(step string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.statements {
		if stepOf(s.text) == step {
			n++
		}
	}
	return n
}

// at calls do once, at the next statement of this step, ahead of the server.
func (w *wire) at(step string, do func(*pgx.Conn)) {
	var once sync.Once
	w.watch(func(conn *pgx.Conn, text string) {
		if stepOf(text) == step {
			once.Do(func() { do(conn) })
		}
	})
}

// afterStatements is a logger that is told each step of the protocol when the server has carried it out.
type afterStatements struct {
	logger.Interface
	do func(step string)
}

func (l afterStatements) LogMode(logger.LogLevel) logger.Interface { return l }

func (l afterStatements) Trace(_ context.Context, _ time.Time, statement func() (string, int64), _ error) {
	text, _ := statement()
	l.do(stepOf(text))
}

// kill ends the backend of a connection, and returns when it is gone.
func kill(t testing.TB, admin *gorm.DB, pid uint32) {
	t.Helper()
	if !read[bool](t, admin, "SELECT pg_terminate_backend(?)", pid) {
		t.Errorf("backend %d does not end", pid)
	}
	eventually(t, "the backend is gone", func() bool {
		return !read[bool](t, admin, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = ?)", pid)
	})
}
