package gormtest

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

// Recorder logs what reaches the driver: see [Record].
type Recorder struct {
	settings

	t   testingT
	db  *gorm.DB
	tap *tap

	mu         sync.Mutex
	ended      bool // the test's log is closed
	statements []Statement
	calls      []Call
	said       map[mistake]bool // failures that were reported
}

// Statement is a request that has reached the driver, whoever made it: GORM, code with a *sql.DB, or the library.
type Statement struct {
	Conn   int      // counts the connections, from 1
	Text   string   // BEGIN, COMMIT and ROLLBACK for transactions
	Caller string   // the line that asked for it, as file:line; "" if there is none outside of GORM and the library
	Beside []string // keys that handlers hold meanwhile on other connections, as "source id"; nil on a handler's own
}

// Call is a call out of the process that was made while a handler held a key.
type Call struct {
	Method, URL string   // without the query, which may hold secrets
	Caller      string   // the line that made it
	Keys        []string // the keys that were held, as "source id"
}

// Record gives code under test a handle, [Recorder.DB], whose every statement is logged at the driver, and fails the test when
//
//   - something is written, or locked, on another connection while a handler is at work: it survives the handler's rollback
//     and happens again at the next delivery. The guard of the plugin sees that too where the handler's context is passed
//     on; here a bare *sql.DB and an outer context are no way out;
//   - a call through [Recorder.Transport] is made while a handler holds its key: it is made again at each run of the
//     handler, cannot be undone, and holds the key and a connection for as long as it takes.
//
// The failure names statement or address, line and key, once for each line. [WithExempt] names tables, and [WithExemptHosts] hosts, for which it is
// meant to be so.
//
// Deliver one event at a time: of deliveries that overlap it cannot tell whose a write outside of all handlers is. What it
// cannot know is a function in the database that a SELECT calls. db is as for [Hammer]; the recorder's pool is closed when the
// test ends.
func Record(t testing.TB, db *gorm.DB, opts ...Option) *Recorder {
	t.Helper()
	settings, err := collect(opts)
	if err != nil {
		t.Fatalf("gormtest: %v", err)
	}
	r := &Recorder{settings: settings, t: t, said: make(map[mistake]bool)}
	r.tap = newTap(r.see)
	ctx, cancel := context.WithTimeout(t.Context(), setupTimeout)
	defer cancel()
	recorded, pool, err := tapInto(ctx, db, r.tap)
	if err != nil {
		t.Fatalf("gormtest: %v", err)
	}
	r.db = recorded.WithContext(t.Context())
	t.Cleanup(func() {
		r.end()
		_ = pool.Close() // what is idle; and whatever still runs loses its connection
		r.tap.breakAll()
	})
	return r
}

// DB is the handle to give to the code under test. It is like the one that Record was given, callbacks and plugins included.
func (r *Recorder) DB() *gorm.DB { return r.db }

// Statements returns what has reached the driver so far, in order.
func (r *Recorder) Statements() []Statement {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.statements)
}

// Calls returns the calls out of the process that were made while a handler held its key, exempt hosts included.
func (r *Recorder) Calls() []Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}

// Transport is an http.RoundTripper for the client of the code under test. It makes the calls by next, or by
// http.DefaultTransport if that is nil.
func (r *Recorder) Transport(next http.RoundTripper) http.RoundTripper {
	if next == nil {
		next = http.DefaultTransport
	}
	return watchedTransport{r, next}
}

type watchedTransport struct {
	recorder *Recorder
	next     http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (w watchedTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	if keys := w.recorder.tap.keysHeld(); len(keys) > 0 {
		w.recorder.seeCall(request, texts(keys))
	}
	return w.next.RoundTrip(request)
}

// see logs a request, and says if it is one that leaves a handler's transaction.
func (r *Recorder) see(request request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	beside := texts(request.others)
	r.statements = append(r.statements, Statement{
		Conn: request.conn.number, Text: request.text, Caller: request.caller, Beside: beside,
	})
	if len(beside) == 0 || !request.writes() || r.tap.ours(request.text) || r.isExempt(request.text) {
		return
	}
	r.say(mistake{request.caller, cmp.Or(pgsql.WrittenTable(request.text), request.text)}, fmt.Sprintf("gormtest: while the handler of %s is at "+
		"work, this runs on another connection: %s%s: it survives the handler's rollback, and happens again at the next delivery: write "+
		"through the handle that the handler is given", beside[0], shorten(request.text), asked(request.caller)))
}

func (r *Recorder) seeCall(request *http.Request, keys []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	call := Call{Method: request.Method, URL: request.URL.Scheme + "://" + request.URL.Host + request.URL.Path, Caller: caller(), Keys: keys}
	r.calls = append(r.calls, call)
	if slices.Contains(r.hosts, request.URL.Hostname()) {
		return
	}
	r.say(mistake{call.Caller, request.URL.Host}, fmt.Sprintf("gormtest: the handler of %s calls %s %s%s: the call is made again at each run of "+
		"the handler, and no rollback undoes it: make it after the commit, by AfterCommit or from a row that a worker reads",
		keys[0], call.Method, call.URL, asked(call.Caller)))
}

// isExempt reports whether a statement writes to a table that may be written at any time.
func (r *Recorder) isExempt(text string) bool {
	written := strings.TrimPrefix(pgsql.WrittenTable(text), "public.")
	return slices.ContainsFunc(r.tables, func(name string) bool { return strings.TrimPrefix(name, "public.") == written })
}

// mistake is what a failure is about: a line, and the table it writes to or the host it calls.
type mistake struct{ caller, subject string }

// say fails the test, once for each mistake: a loop makes the same one many times. The line in front is the user's. Errorf would
// name one of database/sql or net/http, which is who calls.
func (r *Recorder) say(m mistake, text string) {
	if r.ended || r.said[m] {
		return
	}
	r.said[m] = true
	if m.caller == "" {
		r.t.Errorf("%s", text)
		return
	}
	fmt.Fprintf(r.t.Output(), "%s: %s\n", filepath.Base(m.caller), text)
	r.t.Fail()
}

// end makes the recorder silent: failing a test that has ended panics, and goroutines of the code under test may outlive it.
func (r *Recorder) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
}

func asked(caller string) string {
	if caller == "" {
		return ""
	}
	return ", at " + caller
}

func texts(keys []eventKey) (texts []string) {
	for _, key := range keys {
		texts = append(texts, key.String())
	}
	return texts
}
