package gormtest

import (
	"context"
	"errors"
	"fmt"
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
}

// theServer returns the process's server, or why there is none: every test fails with the same sentence.
var theServer = sync.OnceValues(func() (*server, error) {
	if dsn := os.Getenv(dsnVariable); dsn != "" {
		return newServer(dsn)
	}
	return startServer(pglocal.Options{})
})

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

// do runs fn on a connection to the DSN's own database. It is opened for each time, which takes some milliseconds: a pool
// would have goroutines, and users look for leaked ones in their tests.
func (s *server) do(ctx context.Context, fn func(*pgx.Conn) error) error {
	conn, err := pgx.ConnectConfig(ctx, s.base.config)
	if err != nil {
		return s.explain(err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return s.explain(fn(conn))
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
