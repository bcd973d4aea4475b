package gormtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	_ "github.com/jackc/pgx/v5/stdlib"
	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/internal/pglocal"
)

func TestOpenIsReadyForUse(t *testing.T) {
	t.Parallel()
	db := Open(t)
	for i := range 2 {
		result, err := idempotency.Do(db, "stripe", "evt_1", []byte("{}"), nothing)
		if err != nil {
			t.Fatal(err)
		}
		if result.Replayed != (i == 1) {
			t.Errorf("delivery %d: replayed is %t", i, result.Replayed)
		}
	}
}

func TestDatabasesAreIsolated(t *testing.T) {
	t.Parallel()
	const databases = 12
	names := make(chan string, databases)
	t.Run("group", func(t *testing.T) {
		for range databases {
			t.Run("test", func(t *testing.T) {
				t.Parallel()
				db := connect(t, DSN(t))
				names <- queryText(t, db, "SELECT current_database()")
				if count := queryText(t, db, "SELECT count(*)::text FROM idempotency_keys"); count != "0" {
					t.Errorf("a fresh database has %s keys", count)
				}
				exec(t, db, "INSERT INTO idempotency_keys (source, event_id, payload_digest) VALUES ('s', 'e', 'd')")
				exec(t, db, "CREATE TABLE orders (id text)")
			})
		}
	})
	close(names)
	seen := map[string]bool{}
	for name := range names {
		if seen[name] {
			t.Errorf("database %s was given to two tests", name)
		}
		seen[name] = true
		requireDatabase(t, name, false)
	}
	if len(seen) != databases {
		t.Errorf("got %d databases, want %d", len(seen), databases)
	}
}

func TestDatabaseIsDroppedThoughItIsInUse(t *testing.T) {
	t.Parallel()
	var db *sql.DB
	var name string
	t.Run("leaves a transaction open", func(t *testing.T) {
		var err error
		if db, err = sql.Open("pgx", DSN(t)); err != nil {
			t.Fatal(err)
		}
		name = queryText(t, db, "SELECT current_database()")
		// Not the test's context, at whose end the driver would give up the connection.
		if _, err := db.BeginTx(context.Background(), nil); err != nil {
			t.Fatal(err)
		}
	})
	defer db.Close()
	requireDatabase(t, name, false)
}

// PostgreSQL 12 refuses FORCE, so what is done there is called by name.
func TestDisconnectAndDrop(t *testing.T) {
	t.Parallel()
	s := currentServer(t)
	name := newName()
	if err := s.createDatabase(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	db := connect(t, s.base.with(name))
	exec(t, db, "SELECT 1")
	err := s.whileInUse(func() error { return s.disconnectAndDrop(t.Context(), name) })
	if err != nil {
		t.Error(err)
	}
	requireDatabase(t, name, false)
}

func TestLoggerIsSilentAfterTheTest(t *testing.T) {
	t.Parallel()
	test := newFakeTest()
	test.run(func() {
		db := Open(test)
		db.Exec("SELECT nonsense")
		test.finish()
		db.Exec("SELECT nonsense")
	})
	if len(test.logs) != 1 || !strings.Contains(test.logs[0], "nonsense") {
		t.Errorf("got %q, want one line about the failure before the end", test.logs)
	}
	if len(test.errors) > 0 {
		t.Errorf("failures: %q", test.errors)
	}
}

// BenchmarkOpen measures what is to be at most 60 ms on a quiet machine. It is no test: on a busy one it takes ten times as
// long. Dropping the database is not counted.
func BenchmarkOpen(b *testing.B) {
	if _, err := theServer(); err != nil {
		b.Fatal(err)
	}
	for range b.N {
		test := newFakeTest()
		Open(test)
		b.StopTimer()
		test.finish()
		b.StartTimer()
	}
}

func TestTemplateIsMadeOnceByMany(t *testing.T) {
	t.Parallel()
	local := startLocal(t)
	servers := make([]*server, 8)
	var group sync.WaitGroup
	for i := range servers {
		group.Go(func() {
			var err error
			if servers[i], err = newServer(local.DSN("postgres")); err != nil {
				t.Errorf("server %d: %v", i, err)
			}
		})
	}
	group.Wait()
	db := connect(t, local.DSN("postgres"))
	if got := queryText(t, db, "SELECT string_agg(datname, ' ') FROM pg_database WHERE datname LIKE 'gormtest%'"); got != servers[0].template {
		t.Errorf("databases are %q, want only the template %q", got, servers[0].template)
	}
	if other, err := sql.Open("pgx", local.DSN(servers[0].template)); err != nil || other.Ping() == nil {
		t.Errorf("the template accepts connections, which keeps others from copying it (%v)", err)
	}
}

func TestLeftovers(t *testing.T) {
	t.Parallel()
	local := startLocal(t)
	db := connect(t, local.DSN("postgres"))
	exec(t, db, "CREATE ROLE somebody")
	old := time.Now().Add(-25 * time.Hour).Unix()
	young := time.Now().Add(-23 * time.Hour).Unix()
	name := func(seconds int64, suffix string) string { return fmt.Sprintf("gormtest_%d_%s", seconds, suffix) }
	tests := []struct {
		what, name, create string
		kept               bool
	}{
		{what: "an old one", name: name(old, "0123456789abcdef")},
		{what: "a young one", name: name(young, "0123456789abcdef"), kept: true},
		{what: "an old one in use", name: name(old, "00000000000000aa"), kept: true},
		{what: "an old one of another role", name: name(old, "00000000000000bb"), create: " OWNER somebody", kept: true},
		{what: "another name", name: name(old, "mine"), kept: true},
		{what: "another prefix", name: "my_" + name(old, "0123456789abcdef"), kept: true},
	}
	for _, test := range tests {
		exec(t, db, "CREATE DATABASE "+test.name+test.create)
	}
	exec(t, connect(t, local.DSN(tests[2].name)), "SELECT 1") // its pool keeps the connection
	if _, err := newServer(local.DSN("postgres")); err != nil {
		t.Fatal(err)
	}
	for _, test := range tests {
		got := queryText(t, db, "SELECT count(*)::text FROM pg_database WHERE datname = $1", test.name)
		if kept := got == "1"; kept != test.kept {
			t.Errorf("%s, %s: kept is %t, want %t", test.what, test.name, kept, test.kept)
		}
	}
}

func TestBadServers(t *testing.T) {
	t.Parallel()
	local := startLocal(t)
	admin := connect(t, local.DSN("postgres"))
	exec(t, admin, "CREATE ROLE weak LOGIN PASSWORD 'hush-hush'")
	exec(t, admin, "CREATE ROLE barred NOLOGIN")
	good, err := url.Parse(local.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	as := func(user string) string {
		return fmt.Sprintf("postgres://%s:hush-hush@%s/postgres?sslmode=disable", user, good.Host)
	}
	closed := closedPort(t)
	silent := silentPort(t)
	tests := map[string]struct {
		dsn  string
		want []string
	}{
		"a role without CREATEDB":   {as("weak"), []string{`"weak"`, "CREATEDB"}},
		"a role without LOGIN":      {as("barred"), []string{`"barred"`, "check its name"}},
		"a password that is wrong":  {as("postgres"), []string{`"postgres"`, "check its name and password"}},
		"a server that is too old":  {"postgres://postgres:hush-hush@" + oldServer(t) + "/postgres?sslmode=disable", []string{"11.22", "too old", "12 or newer"}},
		"a role that doesn't exist": {as("nobody_here"), []string{`"nobody_here"`, "check its name"}},
		"a database that doesn't exist": {
			fmt.Sprintf("host=127.0.0.1 port=%s user=weak password=hush-hush dbname=missing sslmode=disable", good.Port()),
			[]string{`"missing"`, "does not exist"},
		},
		"no server": {"postgres://postgres:hush-hush@" + closed + "/postgres?sslmode=disable", []string{"no PostgreSQL answers", "refused"}},
		"a server that says nothing": {
			"postgres://postgres:hush-hush@" + silent + "/postgres?sslmode=disable&connect_timeout=1",
			[]string{"no PostgreSQL answers", "timeout"},
		},
		"a host that doesn't exist":      {"postgres://postgres:hush-hush@nowhere.invalid/postgres", []string{"no PostgreSQL answers"}},
		"a password that isn't escaped":  {"postgres://postgres:hush-hush/xy@127.0.0.1/postgres", []string{"percent-encoded"}},
		"an escape that isn't one":       {"postgres://postgres:hush-hush%zz@127.0.0.1/postgres", []string{"percent-encoded"}},
		"neither form":                   {"hush-hush", []string{"neither a URL"}},
		"keywords with an unknown mode":  {"host=127.0.0.1 password=hush-hush sslmode=hush-hush", []string{"neither a URL"}},
		"keywords with an unended quote": {"host=127.0.0.1 password='hush-hush", []string{"neither a URL"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			_, err := newServer(test.dsn)
			if err == nil {
				t.Fatal("no error")
			}
			message := err.Error()
			t.Log(message)
			for _, want := range append(test.want, dsnVariable) {
				if !strings.Contains(message, want) {
					t.Errorf("%q does not say %q", message, want)
				}
			}
			if strings.Contains(message, "hush") {
				t.Errorf("%q contains the password", message)
			}
			if strings.Contains(message, "\n") {
				t.Errorf("%q has several lines", message)
			}
			if elapsed := time.Since(began); elapsed > 15*time.Second {
				t.Errorf("it took %v", elapsed)
			}
		})
	}
}

func TestNoServerFailsEachTestWithTheSameSentence(t *testing.T) {
	original := theServer
	defer func() { theServer = original }()
	theServer = sync.OnceValues(func() (*server, error) { return nil, explainStart(pglocal.ErrNoPrograms) })
	for range 2 {
		test := newFakeTest()
		test.run(func() { Open(test) })
		if len(test.errors) != 1 || !test.stopped || test.skipped {
			t.Fatalf("got %+v, want one fatal failure", test)
		}
		for _, want := range []string{"install PostgreSQL", "the DSN of a running server in IDEMPOTENCY_TEST_DSN"} {
			if !strings.Contains(test.errors[0], want) {
				t.Errorf("%q does not say %q", test.errors[0], want)
			}
		}
	}
}

func TestServerThatGoesAwayFailsTheTest(t *testing.T) {
	local := startLocal(t)
	s, err := newServer(local.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	original := theServer
	defer func() { theServer = original }()
	theServer = func() (*server, error) { return s, nil }

	late := newFakeTest()
	late.run(func() {
		DSN(late)
		if err := local.Stop(); err != nil {
			t.Error(err)
		}
		late.finish()
	})
	if len(late.errors) != 1 || !strings.Contains(late.errors[0], "drop database") {
		t.Errorf("got %q, want one failure to drop", late.errors)
	}
	next := newFakeTest()
	next.run(func() { DSN(next) })
	if len(next.errors) != 1 || !next.stopped || !strings.Contains(next.errors[0], "create database") {
		t.Errorf("got %q, want one fatal failure to create", next.errors)
	}
}

func nothing(*gorm.DB) error { return nil }

func currentServer(t *testing.T) *server {
	t.Helper()
	s, err := theServer()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// startLocal starts a server of the test's own.
func startLocal(t *testing.T) *pglocal.Server {
	t.Helper()
	local, err := pglocal.Start(t.Context(), pglocal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := local.Stop(); err != nil {
			t.Error(err)
		}
	})
	return local
}

func connect(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func exec(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func queryText(t *testing.T, db *sql.DB, query string, args ...any) string {
	t.Helper()
	var text sql.NullString
	if err := db.QueryRowContext(t.Context(), query, args...).Scan(&text); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return text.String
}

func requireDatabase(t *testing.T, name string, want bool) {
	t.Helper()
	exists, err := currentServer(t).exists(t.Context(), name)
	if err != nil || exists != want {
		t.Errorf("database %s exists: %t, %v, want %t", name, exists, err, want)
	}
}

func closedPort(t *testing.T) string {
	t.Helper()
	listener := listen(t)
	_ = listener.Close()
	return listener.Addr().String()
}

// silentPort accepts connections, as the kernel does for a listener that nobody serves, and never answers.
func silentPort(t *testing.T) string {
	t.Helper()
	listener := listen(t)
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().String()
}

// oldServer speaks as a server of version 11 does until it is asked something.
func oldServer(t *testing.T) string {
	t.Helper()
	listener := listen(t)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // the test is over
			}
			serving.Go(func() { greet(conn, "11.22 (Debian 11.22-0+deb10u2)") })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		serving.Wait()
	})
	return listener.Addr().String()
}

func greet(conn net.Conn, version string) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	backend := pgproto3.NewBackend(conn, conn)
	if _, err := backend.ReceiveStartupMessage(); err != nil {
		return
	}
	backend.Send(&pgproto3.AuthenticationOk{})
	backend.Send(&pgproto3.ParameterStatus{Name: "server_version", Value: version})
	backend.Send(&pgproto3.BackendKeyData{ProcessID: 1})
	backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	if backend.Flush() == nil {
		_, _ = backend.Receive() // its end
	}
}

func TestConnectionsAreKept(t *testing.T) {
	t.Parallel()
	local := startLocal(t)
	s, err := newServer(local.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	process := func() (pid int) {
		err := s.do(t.Context(), func(conn *pgx.Conn) error {
			return conn.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&pid)
		})
		if err != nil {
			t.Error(err)
		}
		return pid
	}
	first := process()
	if again := process(); again != first {
		t.Errorf("another connection was made: process %d, then %d", first, again)
	}
	// One that the server has closed meanwhile is passed by.
	other := connect(t, local.DSN("postgres"))
	exec(t, other, fmt.Sprintf("SELECT pg_terminate_backend(%d)", first))
	for queryText(t, other, fmt.Sprintf("SELECT count(*)::text FROM pg_stat_activity WHERE pid = %d", first)) != "0" {
		time.Sleep(time.Millisecond)
	}
	if later := process(); later == first || later == 0 {
		t.Errorf("process %d, and that is dead", later)
	}
	// However many there are at once, few are kept.
	var together sync.WaitGroup
	met := make(chan struct{})
	var arrived atomic.Int32
	const tasks = maxIdle + 3
	for range tasks {
		together.Go(func() {
			err := s.do(t.Context(), func(*pgx.Conn) error {
				if arrived.Add(1) == tasks {
					close(met)
				}
				select {
				case <-met:
					return nil
				case <-time.After(20 * time.Second):
					return errors.New("the others did not get a connection")
				}
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	together.Wait()
	if len(s.idle) != maxIdle {
		t.Errorf("%d connections are kept, want %d", len(s.idle), maxIdle)
	}
}

func TestOneLineAboutADownload(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	tell := announce(&out)
	for _, p := range []pglocal.Progress{
		{Stage: pglocal.Downloading, Version: "18.3.0", Repository: "https://repo.example"},
		{Stage: pglocal.Downloading, Version: "18.3.0", Repository: "https://repo.example", Received: 1, Total: 2},
		{Stage: pglocal.Downloading, Version: "18.3.0", Repository: "https://repo.example", Received: 2, Total: 2},
		{Stage: pglocal.Unpacking, Version: "18.3.0"},
	} {
		tell(p)
	}
	if want := "gormtest: downloading PostgreSQL 18.3.0 from https://repo.example\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

// fakeTest is a test whose failures can be looked at.
type fakeTest struct {
	testing.TB // nil: whatever isn't overridden panics

	logs     []string
	errors   []string
	cleanups []func()
	skipped  bool
	stopped  bool
}

func newFakeTest() *fakeTest { return &fakeTest{} }

func (f *fakeTest) Cleanup(fn func()) { f.cleanups = append(f.cleanups, fn) }
func (f *fakeTest) Helper()           {}
func (f *fakeTest) Name() string      { return "fake" }

func (f *fakeTest) Context() context.Context { return context.Background() }

func (f *fakeTest) Errorf(format string, args ...any) {
	f.errors = append(f.errors, fmt.Sprintf(format, args...))
}

func (f *fakeTest) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	f.stopped = true
	runtime.Goexit()
}

// Output and Fail are how a failure is told that has a line of its own.
func (f *fakeTest) Output() io.Writer { return failureWriter{f} }
func (f *fakeTest) Fail()             {}

type failureWriter struct{ test *fakeTest }

func (w failureWriter) Write(text []byte) (int, error) {
	w.test.errors = append(w.test.errors, string(text))
	return len(text), nil
}

func (f *fakeTest) Logf(format string, args ...any) {
	f.logs = append(f.logs, fmt.Sprintf(format, args...))
}

func (f *fakeTest) Skip(...any) {
	f.skipped = true
	runtime.Goexit()
}

// run runs a test's function, which may end its goroutine.
func (f *fakeTest) run(fn func()) {
	var group sync.WaitGroup
	group.Go(fn)
	group.Wait()
	f.finish()
}

// finish runs the cleanups as the end of a test does.
func (f *fakeTest) finish() {
	for len(f.cleanups) > 0 {
		last := len(f.cleanups) - 1
		fn := f.cleanups[last]
		f.cleanups = f.cleanups[:last]
		fn()
	}
}
