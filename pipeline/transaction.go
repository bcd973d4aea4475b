package pipeline

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/gorm-idempotency/idempotency/internal/pipelined"
)

// transaction is one of the library's own. It ends as pgx's do, which cannot be had without sending a BEGIN.
type transaction struct {
	ctx  context.Context // of BeginTx, which is the one that pgx too ends a transaction with
	conn *conn
	last *statement // waits for Commit
}

type statement struct {
	query string
	args  []any
}

// Commit implements driver.Tx.
func (t *transaction) Commit() error {
	if t.conn.begin != "" {
		return t.Rollback() // nothing was sent
	}
	defer t.leave()
	ended, err := t.sendCommit()
	switch {
	case err == nil && ended.String() == "ROLLBACK":
		return pgx.ErrTxCommitRollback
	case err != nil:
		_ = t.Rollback() // unless it has ended
	}
	return err
}

func (t *transaction) sendCommit() (pgconn.CommandTag, error) {
	pgxConn := t.conn.Conn()
	if t.last == nil {
		return pgxConn.Exec(t.ctx, "commit")
	}
	if pgxConn.IsClosed() {
		return pgconn.CommandTag{}, fmt.Errorf("%w: %w", pipelined.ErrLast, driver.ErrBadConn)
	}
	batch := &pgx.Batch{}
	batch.Queue(t.last.query, t.last.args...)
	batch.Queue("commit")
	results := pgxConn.SendBatch(t.ctx, batch)
	ended, err := readEnd(results)
	return ended, t.conn.ended(results, err)
}

// readEnd reads what became of the last statement and of COMMIT. If the server refuses the statement it skips whatever came
// with it, and leaves the transaction to be rolled back. It answers in order, so that a refusal is certain even if the
// server went down with it.
func readEnd(results pgx.BatchResults) (pgconn.CommandTag, error) {
	_, err := results.Exec()
	var refused *pgconn.PgError
	switch {
	case err == nil:
		return results.Exec()
	case errors.As(err, &refused):
		err = fmt.Errorf("%w: %w", pipelined.ErrLast, err)
	}
	return pgconn.CommandTag{}, err
}

// Rollback implements driver.Tx. A connection that cannot be rolled back is closed, and the server rolls back.
func (t *transaction) Rollback() error {
	defer t.leave()
	if t.conn.begin != "" || t.status() == idle {
		return nil
	}
	if _, err := t.conn.Conn().Exec(t.ctx, "rollback"); err != nil {
		t.conn.discard()
		return fmt.Errorf("roll back: %w", err)
	}
	return nil
}

func (t *transaction) leave() { t.conn.begin, t.conn.open = "", nil }

// idle is the status of a connection that is in no transaction.
const idle = 'I'

func (t *transaction) status() byte { return t.conn.Conn().PgConn().TxStatus() }
