package pipeline

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/gorm-idempotency/idempotency/internal/pipelined"
)

// conn is a connection of pgx that sends BEGIN with the statement after it, and COMMIT with the statement before it, where
// the library asks for that. Everything else is the connection's own.
type conn struct {
	*stdlib.Conn

	begin     string // the BEGIN that has not been sent yet, or ""
	committed bool   // the transaction's COMMIT was sent with a statement, and the server has confirmed it
}

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
		return c.Conn.BeginTx(ctx, opts)
	}
	if c.Conn.Conn().IsClosed() {
		return nil, driver.ErrBadConn // database/sql takes another connection
	}
	if opts.ReadOnly {
		begin += " read only"
	}
	c.begin, c.committed = begin, false
	return &transaction{ctx: ctx, conn: c}, nil
}

// QueryContext implements driver.QueryerContext. The first one of a transaction travels with its BEGIN.
func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if c.begin == "" {
		return c.Conn.QueryContext(ctx, query, args)
	}
	if c.Conn.Conn().IsClosed() {
		return nil, driver.ErrBadConn
	}
	batch := &pgx.Batch{}
	batch.Queue(c.begin)
	batch.Queue(query, values(args)...)
	c.begin = ""

	results := c.Conn.Conn().SendBatch(ctx, batch)
	found, err := readBegun(results)
	if closed := closed(results); err == nil {
		err = closed
	}
	switch {
	case err == nil:
		return found, nil
	case pgconn.SafeToRetry(err):
		return nil, driver.ErrBadConn // as pgx says of a BEGIN that was not sent
	}
	return nil, err
}

func readBegun(results pgx.BatchResults) (*rows, error) {
	if _, err := results.Exec(); err != nil {
		return nil, err
	}
	answer, err := results.Query()
	if err != nil {
		return nil, err
	}
	return readAll(answer)
}

// closed ends a batch, so that the connection can be used again. It takes two calls: after rows that ended with an error the
// first one of pgx 5.7 returns that error and leaves the connection busy.
func closed(results pgx.BatchResults) error {
	_ = results.Close()
	return results.Close()
}

// ExecContext implements driver.ExecerContext. One that is marked travels with COMMIT.
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if commit := pipelined.CommitOf(ctx); commit != nil {
		return c.execAndCommit(ctx, commit, query, args)
	}
	if err := c.sendBegin(ctx); err != nil {
		return nil, err
	}
	return c.Conn.ExecContext(ctx, query, args)
}

// execAndCommit sends a statement and COMMIT. The server executes COMMIT only if the statement has succeeded: after an error
// it skips whatever came with it, and the transaction is left to be rolled back. An error may mean anything: nobody may
// repeat it.
func (c *conn) execAndCommit(ctx context.Context, commit *pipelined.Commit, query string, args []driver.NamedValue) (driver.Result, error) {
	if c.Conn.Conn().IsClosed() {
		return nil, pipelined.ErrNotSent
	}
	batch := &pgx.Batch{}
	batch.Queue(query, values(args)...)
	batch.Queue("commit")

	results := c.Conn.Conn().SendBatch(ctx, batch)
	changed, err := results.Exec()
	var ended pgconn.CommandTag
	if err == nil {
		ended, err = results.Exec()
	}
	if closed := closed(results); err == nil {
		err = closed
	}
	switch {
	case err != nil:
		return nil, err
	case ended.String() == "ROLLBACK":
		return nil, pgx.ErrTxCommitRollback
	}
	c.committed, commit.Made = true, true
	return driver.RowsAffected(changed.RowsAffected()), nil
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
	return c.Conn.PrepareContext(ctx, query)
}

// sendBegin sends a BEGIN that has waited for another statement than this.
func (c *conn) sendBegin(ctx context.Context) error {
	if c.begin == "" {
		return nil
	}
	begin := c.begin
	c.begin = ""
	_, err := c.Conn.ExecContext(ctx, begin, nil)
	return err
}

// transaction is one whose BEGIN could wait.
type transaction struct {
	ctx  context.Context // of BeginTx, which is the one that pgx too ends a transaction with
	conn *conn
}

// Commit implements driver.Tx.
func (t *transaction) Commit() error {
	if t.conn.begin != "" || t.conn.committed {
		t.conn.begin = ""
		return nil
	}
	pgxConn := t.conn.Conn.Conn()
	ended, err := pgxConn.Exec(t.ctx, "commit")
	switch {
	case err != nil && pgxConn.PgConn().TxStatus() != 'I':
		t.discard()
		return err
	case err == nil && ended.String() == "ROLLBACK":
		return pgx.ErrTxCommitRollback
	}
	return err
}

// Rollback implements driver.Tx. A connection that cannot be rolled back is closed, and the server rolls back.
func (t *transaction) Rollback() error {
	pgxConn := t.conn.Conn.Conn()
	if t.conn.begin != "" || t.conn.committed || pgxConn.PgConn().TxStatus() == 'I' {
		t.conn.begin = ""
		return nil
	}
	if _, err := pgxConn.Exec(t.ctx, "rollback"); err != nil {
		t.discard()
		return fmt.Errorf("roll back: %w", err)
	}
	return nil
}

func (t *transaction) discard() {
	ctx, cancel := context.WithCancel(t.ctx)
	cancel() // does not wait for the server
	_ = t.conn.Conn.Conn().Close(ctx)
}

func values(args []driver.NamedValue) []any {
	values := make([]any, len(args))
	for i, arg := range args {
		values[i] = arg.Value
	}
	return values
}
