package main

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/spf13/cobra"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

// dsnVariable names the application's database where --dsn does not.
const dsnVariable = "DATABASE_URL"

const (
	// connectTimeout is for servers that don't answer, where the DSN names no timeout of its own.
	connectTimeout = 5 * time.Second

	// maxConnections is what a command takes of a server that others use too.
	maxConnections = 4
)

// database is where the keys are: the flags --dsn and --table, which all commands on an application's database share.
type database struct {
	dsn   string
	table string
}

// addFlags gives a command, and those below it, the flags.
func (d *database) addFlags(command *cobra.Command) {
	flags := command.PersistentFlags()
	flags.SortFlags = false
	command.Flags().SortFlags = false
	flags.StringVar(&d.dsn, "dsn", "", "the application's database, a `URL` or keywords and values ("+dsnVariable+")")
	flags.StringVar(&d.table, "table", pgsql.DefaultTable, "the table of keys, `NAME` or schema.name")
	nameValues(command, "dsn", "table")
	noFiles(command, "dsn", "table")
}

// addJSONFlag gives a command the flag --json.
func addJSONFlag(command *cobra.Command, asJSON *bool) {
	command.Flags().BoolVar(asJSON, "json", false, "print the result as JSON")
}

// nameValues takes the backquotes around the names of these flags' values out of their descriptions: the help does so by
// itself, and the shells' completion does not.
func nameValues(command *cobra.Command, flags ...string) {
	for _, flag := range flags {
		f := command.Flag(flag)
		_, name, _ := strings.Cut(f.Usage, "`")
		name, _, _ = strings.Cut(name, "`")
		f.Usage = strings.ReplaceAll(f.Usage, "`", "")
		f.Value = namedValue{f.Value, name}
	}
}

// namedValue is a flag's value that the help calls by a name.
type namedValue struct {
	flagValue

	name string
}

type flagValue interface {
	Set(text string) error
	String() string
	Type() string
}

func (v namedValue) Type() string { return v.name }

// noFiles keeps the shell from completing the flags' values with names of files.
func noFiles(command *cobra.Command, names ...string) {
	for _, name := range names {
		if err := command.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions); err != nil {
			panic(err) // a flag that the command does not have
		}
	}
}

// pool connects to the database, and makes sure that a server answers. The caller closes it. A missing or malformed DSN, or
// table, is a usageError; no error contains a password.
func (d *database) pool(ctx context.Context) (*sql.DB, error) {
	pool, err := d.unconnected()
	if err != nil {
		return nil, err
	}
	if err := connect(ctx, pool); err != nil {
		return nil, err
	}
	return pool, nil
}

// unconnected is a pool that has not said a word yet.
func (d *database) unconnected() (*sql.DB, error) {
	if _, err := pgsql.ParseTable(d.table); err != nil {
		return nil, usageError{fmt.Errorf("--table: %w", err)}
	}
	config, err := d.parse()
	if err != nil {
		return nil, err
	}
	pool := stdlib.OpenDB(*config)
	pool.SetMaxOpenConns(maxConnections)
	return pool, nil
}

// connect closes the pool if no server answers.
func connect(ctx context.Context, pool *sql.DB) error {
	if err := pool.PingContext(ctx); err != nil {
		_ = pool.Close()
		return fmt.Errorf("connect to the database: %w", oneLine(err))
	}
	return nil
}

// parse says nothing of the cause of an error: with a password that should have been escaped, the parser's message may
// contain a part of it.
func (d *database) parse() (*pgx.ConnConfig, error) {
	dsn := strings.TrimSpace(cmp.Or(d.dsn, os.Getenv(dsnVariable)))
	if dsn == "" {
		return nil, usageError{fmt.Errorf("which database? Name it with --dsn, or in the environment variable %s", dsnVariable)}
	}
	config, err := pgx.ParseConfig(dsn)
	if err != nil || misread(dsn, config) {
		return nil, usageError{errors.New("the DSN is neither a URL, postgres://user:password@host:5432/database with special " +
			"characters percent-encoded, nor keywords and values, host=… user=… password=… dbname=…")}
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = connectTimeout
	}
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "idempotency" // what an operator sees in pg_stat_activity
	}
	return config, nil
}

// misread reports whether the parser has taken a part of a password for something else, which the messages of a failure would
// then print. In postgres://user:12/34@host/database the host is user, and the rest of it the database's name; in
// password=12 34 dbname=database there is a parameter "34 dbname".
func misread(dsn string, config *pgx.ConnConfig) bool {
	for parameter := range config.RuntimeParams {
		if strings.ContainsAny(parameter, "@ ") {
			return true
		}
	}
	u, err := url.Parse(dsn)
	isURL := err == nil && (u.Scheme == "postgres" || u.Scheme == "postgresql")
	return isURL && strings.Contains(u.EscapedPath()+u.EscapedFragment(), "@")
}

// open is pool with a handle on it that the plugin is registered on. The caller closes the pool. What the plugin has to
// say meanwhile is written to messages. A field of the Config that the plugin refuses is a usageError that names the flag,
// before anything is connected to.
func (d *database) open(ctx context.Context, config idempotency.Config, messages io.Writer) (*gorm.DB, *sql.DB, error) {
	db, pool, err := d.handle(config, messages)
	if err != nil {
		return nil, nil, err
	}
	if err := connect(ctx, pool); err != nil {
		return nil, nil, err
	}
	return db, pool, nil
}

// handle is open without the connection.
func (d *database) handle(config idempotency.Config, messages io.Writer) (*gorm.DB, *sql.DB, error) {
	pool, err := d.unconnected()
	if err != nil {
		return nil, nil, err
	}
	db, err := gorm.Open(postgres.New(postgres.Config{Conn: pool}),
		&gorm.Config{Logger: messenger{out: messages}, DisableAutomaticPing: true})
	if err != nil {
		return nil, nil, fmt.Errorf("open the database: %w", oneLine(err))
	}
	config.Table = d.table
	if err := db.Use(idempotency.New(config)); err != nil {
		return nil, nil, flagError(err)
	}
	return db, pool, nil
}

// read runs statements in a read-only transaction: behind a pooler only that keeps the steps of one on one connection.
func read(ctx context.Context, pool *sql.DB, statements func(*sql.Tx) error) error {
	tx, err := pool.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return fmt.Errorf("begin to read: %w", oneLine(err))
	}
	defer func() { _ = tx.Rollback() }()
	return statements(tx)
}

// flags are those that fill the fields of the library's configurations.
var flags = map[string]string{
	"Table": "--table", "Retention": "--retention",
	"BatchSize": "--batch-size", "MaxBatches": "--max-batches", "Pause": "--pause", "Interval": "--interval",
}

// flagError names the flag where the library names a field of its configuration.
func flagError(err error) error {
	var refused *idempotency.ConfigError
	if !errors.As(err, &refused) {
		return err
	}
	if flag, ok := flags[refused.Field]; ok {
		return usageError{fmt.Errorf("%s %s", flag, refused.Reason)}
	}
	source, isRetention := strings.CutSuffix(strings.TrimPrefix(refused.Field, "Sources["), "].Retention")
	if isRetention {
		return usageError{fmt.Errorf("--source: the retention of %s %s", source, refused.Reason)}
	}
	return usageError{fmt.Errorf("--source: %s %s", strings.TrimSuffix(source, "]"), refused.Reason)}
}

// messenger passes on what the library logs for people, a line each, and no statements.
type messenger struct{ out io.Writer }

func (m messenger) LogMode(logger.LogLevel) logger.Interface { return m }

func (m messenger) Info(_ context.Context, message string, args ...any)  { m.printf(message, args...) }
func (m messenger) Warn(_ context.Context, message string, args ...any)  { m.printf(message, args...) }
func (m messenger) Error(_ context.Context, message string, args ...any) { m.printf(message, args...) }

func (m messenger) Trace(context.Context, time.Time, func() (string, int64), error) {}

func (m messenger) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(m.out, format+"\n", args...)
}

// printJSON writes a result for a machine. A person may see it too, so that it is escaped as what is for one.
func printJSON(out io.Writer, result any) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(result); err != nil {
		return err
	}
	_, err := io.WriteString(out, escaped(text.String()))
	return err
}

// flatError is an error whose message has one line: pgx lists the addresses that it tried on lines of their own.
type flatError struct{ error }

func oneLine(err error) error { return flatError{err} }

func (e flatError) Error() string { return strings.Join(strings.Fields(e.error.Error()), " ") }
func (e flatError) Unwrap() error { return e.error }
