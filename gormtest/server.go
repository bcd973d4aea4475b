package gormtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/gorm-idempotency/idempotency/internal/pglocal"
)

// dsnVariable names the server. Without it one is started.
const dsnVariable = "IDEMPOTENCY_TEST_DSN"

// server is where databases for tests are made.
type server struct {
	base     *baseDSN
	template string // a migrated database that is copied for each test
	strategy string // how it is copied

	mu   sync.Mutex
	idle []*pgx.Conn // to the DSN's own database
}

// maxIdle is how many connections are kept for the next test. A user's server may have few to give.
const maxIdle = 2

// theServer returns the process's server, or why there is none: every test fails with the same sentence.
var theServer = sync.OnceValues(func() (*server, error) {
	if dsn := os.Getenv(dsnVariable); dsn != "" {
		return newServer(dsn)
	}
	return startServer(pglocal.Options{Progress: announce(os.Stderr)})
})

// announce writes a line when a download begins, and none about how it gets on: the output of tests is no terminal.
func announce(out io.Writer) func(pglocal.Progress) {
	var told pglocal.Stage
	return func(p pglocal.Progress) {
		if p.Stage != told && p.Stage != pglocal.Unpacking {
			_, _ = fmt.Fprintf(out, "gormtest: %v\n", p) // nobody to tell that it could not be told
		}
		told = p.Stage
	}
}

// startServer starts a PostgreSQL that ends with the process.
func startServer(options pglocal.Options) (*server, error) {
	local, err := pglocal.Start(context.Background(), options)
	if err != nil {
		return nil, explainStart(err)
	}
	return newServer(local.DSN("postgres"))
}

// explainStart completes those of pglocal's sentences that end with the DSN that one could give.
func explainStart(err error) error {
	if errors.Is(err, pglocal.ErrNoPrograms) || errors.Is(err, pglocal.ErrUnsupported) {
		return fmt.Errorf("%w in %s", err, dsnVariable)
	}
	return err
}

func newServer(dsn string) (*server, error) {
	base, err := parseDSN(dsn)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
	defer cancel()
	s := &server{base: base}
	if err := s.checkVersion(ctx); err != nil {
		return nil, err
	}
	if err := s.dropLeftovers(ctx); err != nil {
		return nil, err
	}
	if s.template, err = s.prepareTemplate(ctx); err != nil {
		return nil, err
	}
	if s.strategy, err = s.copyStrategy(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// oldestMajor is the oldest PostgreSQL that the library is made for.
const oldestMajor = 12

// checkVersion refuses servers that are too old before anything is made there. They say their version when they are
// connected to, as poolers do for theirs.
func (s *server) checkVersion(ctx context.Context) error {
	return s.do(ctx, func(conn *pgx.Conn) error {
		version := conn.PgConn().ParameterStatus("server_version")
		var major int
		if _, err := fmt.Sscanf(version, "%d", &major); err == nil && major < oldestMajor {
			return fmt.Errorf("the server of %s is PostgreSQL %s, which is too old: name one of version %d or newer",
				dsnVariable, version, oldestMajor)
		}
		return nil
	})
}

// do runs fn on a connection to the DSN's own database, and keeps it for the next time: for each connection the server
// starts a process, which takes longer than copying a database. It is no pool, which would have goroutines, and users look
// for leaked ones in their tests.
func (s *server) do(ctx context.Context, fn func(*pgx.Conn) error) error {
	conn, err := s.connection(ctx)
	if err != nil {
		return s.explain(err)
	}
	err = fn(conn)
	s.keep(ctx, conn)
	return s.explain(err)
}

// connection returns an idle connection that still answers, or a new one.
func (s *server) connection(ctx context.Context) (*pgx.Conn, error) {
	for {
		conn := s.popIdle()
		if conn == nil {
			return pgx.ConnectConfig(ctx, s.base.config)
		}
		if conn.Ping(ctx) == nil {
			return conn, nil
		}
		_ = conn.Close(ctx) // the server has closed it
	}
}

func (s *server) popIdle() *pgx.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.idle) == 0 {
		return nil
	}
	last := len(s.idle) - 1
	conn := s.idle[last]
	s.idle = s.idle[:last]
	return conn
}

func (s *server) keep(ctx context.Context, conn *pgx.Conn) {
	if !conn.IsClosed() && s.pushIdle(conn) {
		return
	}
	_ = conn.Close(context.WithoutCancel(ctx)) // what was done on it is done
}

func (s *server) pushIdle(conn *pgx.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.idle) >= maxIdle {
		return false
	}
	s.idle = append(s.idle, conn)
	return true
}

// execute runs one statement without parameters, as CREATE and DROP DATABASE want it.
func (s *server) execute(ctx context.Context, statement string) error {
	return s.do(ctx, func(conn *pgx.Conn) error {
		_, err := conn.PgConn().Exec(ctx, statement).ReadAll()
		return err
	})
}

// explain says what to do about an error that has a known remedy.
func (s *server) explain(err error) error {
	var unreachable *pgconn.ConnectError
	config := s.base.config
	switch state := sqlState(err); {
	case err == nil:
		return nil
	case state == "42501":
		return fmt.Errorf("role %q may not do this on the server of %s: ALTER ROLE %q CREATEDB, or name another role (%w)",
			config.User, dsnVariable, config.User, err)
	case state == "28P01", state == "28000":
		return fmt.Errorf("the server of %s refuses role %q: check its name and password (%w)",
			dsnVariable, config.User, oneLine(err))
	case state == "3D000":
		return fmt.Errorf("database %q of %s does not exist: name one that does, such as postgres (%w)",
			config.Database, dsnVariable, oneLine(err))
	case state == "53300":
		return fmt.Errorf("the server of %s has no connection left: raise max_connections or run fewer tests at once (%w)",
			dsnVariable, oneLine(err))
	case errors.As(err, &unreachable):
		return fmt.Errorf("no PostgreSQL answers at %s port %d: start it, or correct %s (%w)",
			config.Host, config.Port, dsnVariable, oneLine(err))
	default:
		return err
	}
}

func sqlState(err error) string {
	var answered *pgconn.PgError
	if errors.As(err, &answered) {
		return answered.Code
	}
	return ""
}

// flatError is an error whose message has one line: pgx lists the addresses that it tried on lines of their own.
type flatError struct{ error }

func oneLine(err error) error { return flatError{err} }

func (e flatError) Error() string { return strings.Join(strings.Fields(e.error.Error()), " ") }
func (e flatError) Unwrap() error { return e.error }
