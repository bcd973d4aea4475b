package pipeline

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/gorm-idempotency/idempotency/internal/pipelined"
)

// conn is a connection of pgx that sends BEGIN with the statement after it, and COMMIT or ROLLBACK with the one before it,
// where the library asks for that. Everything else is the connection's own.
type conn struct {
	*pgxConn

	open  *transaction // the one that is under way, if it is the library's
	begin string       // its BEGIN, until that is sent
}

// pgxConn by another name: embedded as Conn, it would hide its method Conn, which code that uses sql.Conn.Raw looks for.
type pgxConn = stdlib.Conn

// beginnings are the transactions whose BEGIN can wait. Any other isolation is for pgx to refuse.
var beginnings = map[sql.IsolationLevel]string{
	sql.LevelDefault:         "begin",
	sql.LevelReadUncommitted: "begin isolation level read uncommitted",
	sql.LevelReadCommitted:   "begin isolation level read committed",
	sql.LevelRepeatableRead:  "begin isolation level repeatable read",
	sql.LevelSnapshot:        "begin isolation level repeatable read",
	sql.LevelSerializable:    "begin isolation level serializable",
}

// BeginTx implements driver.ConnBeginTx.
func (c *conn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	begin, known := beginnings[sql.IsolationLevel(opts.Isolation)]
	if !known || !pipelined.ClaimFollows(ctx) {
		return c.pgxConn.BeginTx(ctx, opts)
	}
	if c.Conn().IsClosed() {
		return nil, driver.ErrBadConn // database/sql takes another connection
	}
	if opts.ReadOnly {
		begin += " read only"
	}
	c.begin, c.open = begin, &transaction{ctx: ctx, conn: c}
	return c.open, nil
}

// QueryContext implements driver.QueryerContext. The first one of a transaction travels with its BEGIN, and one that is
// marked with ROLLBACK.
func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	last := c.open != nil && pipelined.RollbackFollows(ctx)
	if c.begin == "" && !last {
		return c.pgxConn.QueryContext(ctx, query, args)
	}
	if c.Conn().IsClosed() {
		return nil, driver.ErrBadConn
	}
	batch := &pgx.Batch{}
	begins := c.begin != ""
	if begins {
		batch.Queue(c.begin)
		c.begin = ""
	}
	batch.Queue(query, values(args)...)
	if last {
		batch.Queue("rollback")
	}
	results := c.Conn().SendBatch(ctx, batch)
	found, err := readQuery(results, begins)
	err = c.ended(results, err)
	switch {
	case err == nil:
		return found, nil
	case begins && pgconn.SafeToRetry(err):
		return nil, driver.ErrBadConn // as pgx says of a statement that was not sent
	}
	return nil, err
}

func readQuery(results pgx.BatchResults, begun bool) (*rows, error) {
	if begun {
		if _, err := results.Exec(); err != nil {
			return nil, err
		}
	}
	answer, err := results.Query()
	if err != nil {
		return nil, err
	}
	return readAll(answer)
}

// ended ends a batch, so that the connection can be used again. It takes two calls: after rows that ended with an error the
// first one of pgx 5.7 returns that error and leaves the connection busy.
//
// After a batch, unlike after a statement by itself, pgx goes on with a prepared statement that the server no longer has, or
// whose table has changed. Such a connection is closed, and the pool opens another.
func (c *conn) ended(results pgx.BatchResults, err error) error {
	_ = results.Close()
	if closed := results.Close(); err == nil {
		err = closed
	}
	var refused *pgconn.PgError
	if errors.As(err, &refused) && (refused.Code == "26000" || refused.Routine == "RevalidateCachedQuery") {
		c.discard()
	}
	return err
}

// discard closes the connection without waiting for the server, which rolls back.
func (c *conn) discard() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = c.Conn().Close(ctx)
}

// ExecContext implements driver.ExecerContext. One that is marked waits for Commit: from then on database/sql lets nobody
// else use the transaction. What a goroutine that the handler left behind executes after COMMIT would be a transaction of
// its own.
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if c.open != nil && c.begin == "" && pipelined.CommitFollows(ctx) {
		c.open.last = &statement{query, values(args)}
		return driver.RowsAffected(1), nil
	}
	if err := c.sendBegin(ctx); err != nil {
		return nil, err
	}
	return c.pgxConn.ExecContext(ctx, query, args)
}

// Prepare implements driver.Conn.
func (c *conn) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

// PrepareContext implements driver.ConnPrepareContext.
func (c *conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if err := c.sendBegin(ctx); err != nil {
		return nil, err
	}
	return c.pgxConn.PrepareContext(ctx, query)
}

// sendBegin sends a BEGIN that has waited for another statement than this.
func (c *conn) sendBegin(ctx context.Context) error {
	if c.begin == "" {
		return nil
	}
	begin := c.begin
	c.begin = ""
	_, err := c.pgxConn.ExecContext(ctx, begin, nil)
	return err
}

func values(args []driver.NamedValue) []any {
	values := make([]any, len(args))
	for i, arg := range args {
		values[i] = arg.Value
	}
	return values
}
