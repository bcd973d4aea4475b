package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gorm-idempotency/idempotency/internal/pglocal"
)

const (
	connectTimeout = 5 * time.Second
	cleanupTimeout = time.Minute // a large database takes long to drop
)

// durableSettings are those of a server of the benchmark's own. Its files are on the disk and it is durable, as in production: how
// much of that a group wants is for its databases to say. A checkpoint within a round would hurt one arm alone.
var durableSettings = map[string]string{
	"fsync":              "on",
	"full_page_writes":   "on",
	"synchronous_commit": "on",
	"max_connections":    "320",
	"shared_buffers":     "512MB",
	"max_wal_size":       "8GB",
	"checkpoint_timeout": "30min",
}

// server is where the databases of the benchmark are made.
type server struct {
	config   *pgx.ConnConfig   // of a database that exists
	local    *pglocal.Server   // nil: the user's
	settings map[string]string // of a local one
	version  string
	conns    int // how many connections it has for us
}

// startServer takes the server of a DSN, or starts one by the ladder of the tests: the programs on the machine, or else
// such as are downloaded once.
func startServer(ctx context.Context, dsn string, settings map[string]string, report func(pglocal.Progress)) (_ *server, err error) {
	s := &server{settings: settings}
	if dsn == "" {
		if s.local, err = pglocal.Start(ctx, pglocal.Options{Settings: settings, Progress: report}); err != nil {
			return nil, explainStart(err)
		}
		dsn = s.local.DSN("postgres")
	}
	if s.config, err = parseDSN(dsn); err == nil {
		err = s.look(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

// explainStart completes those of pglocal's sentences that end with the DSN that one could give.
func explainStart(err error) error {
	if errors.Is(err, pglocal.ErrNoPrograms) || errors.Is(err, pglocal.ErrUnsupported) {
		return fmt.Errorf("%w with --dsn", err)
	}
	return err
}

// parseDSN says nothing of the parser's message, which may contain a part of a password. It refuses other machines: what
// runs here is a load, and a network in between would be a part of every figure.
func parseDSN(dsn string) (*pgx.ConnConfig, error) {
	config, err := pgx.ParseConfig(strings.TrimSpace(dsn))
	if err != nil {
		return nil, errors.New("the DSN is neither a URL, postgres://user:password@localhost:5432/database with special " +
			"characters percent-encoded, nor keywords and values, host=… user=… password=… dbname=…: correct it")
	}
	if !isHere(config.Host) {
		return nil, fmt.Errorf("the server of the DSN, %s, is not on this machine: the benchmark puts a load on it, and measures "+
			"delays that it makes itself; name one at localhost", config.Host)
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = connectTimeout
	}
	return config, nil
}

// isHere knows loopback addresses and Unix sockets.
func isHere(host string) bool {
	if strings.HasPrefix(host, "/") || strings.HasPrefix(host, "@") || host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

func (s *server) look(ctx context.Context) error {
	conn, err := pgx.ConnectConfig(ctx, s.config)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var allowed, taken int
	err = conn.QueryRow(ctx, `SELECT current_setting('server_version'), current_setting('max_connections')::int,
		(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')`).Scan(&s.version, &allowed, &taken)
	if err != nil {
		return fmt.Errorf("ask the server for its version: %w", err)
	}
	const reserved = 10 // for superusers, for autovacuum's sake, and for the benchmark's own questions
	s.version, _, _ = strings.Cut(s.version, " ")
	s.conns = allowed - taken - reserved
	return nil
}

// execute runs one statement without parameters, as CREATE and DROP DATABASE want it.
func (s *server) execute(ctx context.Context, statement string) error {
	conn, err := pgx.ConnectConfig(ctx, s.config)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.PgConn().Exec(ctx, statement).ReadAll()
	return err
}

func (s *server) stop() error {
	if s.local == nil {
		return nil
	}
	return s.local.Stop()
}

// address is what net.Dial takes.
func (s *server) address() (network, address string) {
	port := strconv.Itoa(int(s.config.Port))
	if strings.HasPrefix(s.config.Host, "/") || strings.HasPrefix(s.config.Host, "@") {
		return "unix", s.config.Host + "/.s.PGSQL." + port
	}
	return "tcp", net.JoinHostPort(s.config.Host, port)
}

func newName() string {
	var random [6]byte
	_, _ = rand.Read(random[:]) // never fails
	return "idempotency_bench_" + hex.EncodeToString(random[:])
}
