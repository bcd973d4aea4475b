package demo

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
	"gorm.io/gorm/schema"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/internal/pglocal"
	"github.com/gorm-idempotency/idempotency/migrations"
)

const (
	connectTimeout = 5 * time.Second
	cleanupTimeout = 10 * time.Second

	// maxConnections is what the demo takes of a server that others use too.
	maxConnections = 16
)

// shopTables are what the receiver writes to. They have no unique key on the event: nothing but the library keeps an
// effect from happening twice.
const shopTables = `
CREATE TABLE %[1]s.orders (
  id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  source       text NOT NULL,
  event_id     text NOT NULL,
  reference    text NOT NULL,
  amount_cents bigint NOT NULL,
  currency     text NOT NULL
);
CREATE TABLE %[1]s.payments (
  id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  order_id     bigint NOT NULL REFERENCES %[1]s.orders,
  source       text NOT NULL,
  event_id     text NOT NULL,
  amount_cents bigint NOT NULL,
  currency     text NOT NULL
)`

// database is a schema of the demo's own, in the user's database or on a server of its own. Everything is named with the
// schema, since a pooler may not let a connection choose its search path.
type database struct {
	pool    *sql.DB
	config  *pgx.ConnConfig
	schema  string
	version string
	server  *pglocal.Server // nil: the user's
}

func newDatabase() *database { return &database{schema: newSchemaName()} }

// open finds the database and makes the schema, with the library's table and the shop's.
func (d *database) open(ctx context.Context, dsn string, report func(pglocal.Progress)) (err error) {
	if dsn == "" {
		if d.server, err = pglocal.Start(ctx, pglocal.Options{Progress: report}); err != nil {
			return err
		}
		dsn = d.server.DSN("postgres")
	}
	if d.config, err = parseDSN(dsn); err != nil {
		return err
	}
	d.pool = stdlib.OpenDB(*d.config)
	d.pool.SetMaxOpenConns(maxConnections)
	d.pool.SetMaxIdleConns(maxConnections)
	if err := d.pool.QueryRowContext(ctx, `SELECT current_setting('server_version')`).Scan(&d.version); err != nil {
		return err
	}
	return d.prepare(ctx)
}

// parseDSN says nothing of the parser's message: it may contain a part of a password that should have been escaped.
func parseDSN(dsn string) (*pgx.ConnConfig, error) {
	config, err := pgx.ParseConfig(strings.TrimSpace(dsn))
	if err != nil {
		return nil, errors.New("the DSN is neither a URL, postgres://user:password@host:5432/database with special " +
			"characters percent-encoded, nor keywords and values, host=… user=… password=… dbname=…: correct it")
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = connectTimeout
	}
	return config, nil
}

func (d *database) prepare(ctx context.Context) error {
	if _, err := d.pool.ExecContext(ctx, `CREATE SCHEMA `+d.schema); err != nil {
		return err
	}
	if err := migrations.Up(ctx, d.pool, migrations.WithTable(d.table("idempotency_keys"))); err != nil {
		return err
	}
	for statement := range strings.SplitSeq(fmt.Sprintf(shopTables, d.schema), ";") {
		if _, err := d.pool.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("create the shop's tables: %w", err)
		}
	}
	return nil
}

// openGORM is what an application does: open, then register the plugin.
func openGORM(d *database, config idempotency.Config) (*gorm.DB, error) {
	orm, err := gorm.Open(postgres.New(postgres.Config{Conn: d.pool}), &gorm.Config{
		NamingStrategy: schema.NamingStrategy{TablePrefix: d.schema + "."},
		Logger:         logger.Discard, // the demo's handlers fail on purpose
	})
	if err != nil {
		return nil, err
	}
	config.Table = d.table("idempotency_keys")
	return orm, orm.Use(idempotency.New(config))
}

// newSchemaName needs no quoting, and is short enough for the names of the indexes that are made of it.
func newSchemaName() string {
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails
	return "idempotency_demo_" + hex.EncodeToString(random[:])
}

func (d *database) table(name string) string { return d.schema + "." + name }

func (d *database) describe() string {
	version, _, _ := strings.Cut(d.version, " ")
	if d.server != nil {
		return "PostgreSQL " + version + ", in a temporary folder, and gone afterwards"
	}
	return fmt.Sprintf("PostgreSQL %s at %s, database %s: in a schema of the demo's own, %s, which is dropped afterwards",
		version, d.address(), d.config.Database, d.schema)
}

func (d *database) address() string {
	return net.JoinHostPort(d.config.Host, strconv.Itoa(int(d.config.Port)))
}

// close drops the schema and stops what was started. It may be called on a database that was not opened, or by half.
func (d *database) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	var errs []error
	if d.pool != nil {
		if d.server == nil && d.version != "" { // else nothing was made there, or it goes with the server
			if _, err := d.pool.ExecContext(ctx, `DROP SCHEMA IF EXISTS `+d.schema+` CASCADE`); err != nil {
				errs = append(errs, fmt.Errorf("the demo's schema is still there, drop it with DROP SCHEMA %s CASCADE: %w", d.schema, err))
			}
		}
		errs = append(errs, d.pool.Close())
	}
	if d.server != nil {
		errs = append(errs, d.server.Stop())
	}
	return errors.Join(errs...)
}

// explain says what to do about an error that has a known remedy, in one line.
func (d *database) explain(err error) error {
	if errors.Is(err, pglocal.ErrNoPrograms) || errors.Is(err, pglocal.ErrUnsupported) {
		return fmt.Errorf("%w with --dsn", err)
	}
	if d.config == nil {
		return err
	}
	var refused *pgconn.PgError
	var unreachable *pgconn.ConnectError
	switch {
	case errors.As(err, &refused):
		return d.explainRefusal(refused, err)
	case errors.As(err, &unreachable):
		return fmt.Errorf("no PostgreSQL answers at %s: start it, correct the DSN, or leave it out (%w)", d.address(), whyUnreachable(err))
	default:
		return fmt.Errorf("database %q at %s: %w", d.config.Database, d.address(), oneLine(err))
	}
}

func (d *database) explainRefusal(refused *pgconn.PgError, err error) error {
	switch user, name := d.config.User, d.config.Database; refused.Code {
	case "28P01", "28000":
		return fmt.Errorf("the server at %s refuses role %q: check its name and password in the DSN (%w)", d.address(), user, refused)
	case "3D000":
		return fmt.Errorf("database %q does not exist at %s: name one that does in the DSN (%w)", name, d.address(), refused)
	case "42501":
		return fmt.Errorf("role %q may not make the demo's schema in database %q: GRANT CREATE ON DATABASE %s TO %s, "+
			"or leave out the DSN (%w)", user, name, pgx.Identifier{name}.Sanitize(), pgx.Identifier{user}.Sanitize(), refused)
	case "25006":
		return fmt.Errorf("the server at %s is read-only: name the primary in the DSN (%w)", d.address(), refused)
	case "53300":
		return fmt.Errorf("the server at %s has no connection left, and the demo takes up to %d: try again later, or leave out the DSN (%w)",
			d.address(), maxConnections, refused)
	default:
		return fmt.Errorf("the server at %s refuses: %w", d.address(), oneLine(err))
	}
}

// whyUnreachable is the network's own words, where there are some: pgx repeats them for each way that it tried.
func whyUnreachable(err error) error {
	var unresolved *net.DNSError
	var refused *net.OpError
	switch {
	case errors.As(err, &unresolved):
		return unresolved
	case errors.As(err, &refused):
		return refused
	default:
		return oneLine(err)
	}
}

// flatError is an error whose message has one line: pgx lists the addresses that it tried on lines of their own.
type flatError struct{ error }

func oneLine(err error) error { return flatError{err} }

func (e flatError) Error() string { return strings.Join(strings.Fields(e.error.Error()), " ") }
func (e flatError) Unwrap() error { return e.error }
