package gormtest

import (
	"context"
	"database/sql/driver"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/jackc/pgx/v5/stdlib"
)

// tappedConnector makes connections whose requests pass a tap.
type tappedConnector struct {
	driver.Connector

	tap *tap
}

func (c tappedConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	c.tap.mu.Lock()
	defer c.tap.mu.Unlock()
	c.tap.conns++
	opened := &tappedConn{stdlibConn: conn.(*stdlib.Conn), tap: c.tap, number: c.tap.conns}
	c.tap.open[opened] = struct{}{}
	return opened, nil
}

// stdlibConn by another name: embedded as Conn, it would hide its method Conn.
type stdlibConn = stdlib.Conn

// tappedConn is one connection. What it doesn't override goes straight to pgx.
type tappedConn struct {
	*stdlibConn

	tap    *tap
	number int
	broken atomic.Bool
}

// IsValid implements driver.Validator: a connection that was cut does not go back to the pool.
func (c *tappedConn) IsValid() bool { return !c.broken.Load() }

func (c *tappedConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	tx, err := through(c, begin, func() (driver.Tx, error) { return c.stdlibConn.BeginTx(ctx, opts) })
	if err != nil {
		return nil, err
	}
	return tappedTx{tx, c}, nil
}

func (c *tappedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return through(c, query, func() (driver.Result, error) { return c.stdlibConn.ExecContext(ctx, query, args) })
}

func (c *tappedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return through(c, query, func() (driver.Rows, error) {
		rows, err := c.stdlibConn.QueryContext(ctx, query, args)
		if err != nil || !c.tap.claims(query) {
			return rows, err
		}
		return claimRows{rows, c, keyOf(args)}, nil
	})
}

func (c *tappedConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	stmt, err := c.stdlibConn.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	return tappedStmt{stmt.(*stdlib.Stmt), c, query}, nil
}

func (c *tappedConn) Close() error {
	c.tap.forget(c)
	err := c.stdlibConn.Close()
	if c.broken.Load() {
		return nil // what was cut has nothing to say goodbye to
	}
	return err
}

// tappedTx is a transaction, whose end is a request too.
type tappedTx struct {
	tx   driver.Tx
	conn *tappedConn
}

func (tx tappedTx) Commit() error   { return tx.end(commit, tx.tx.Commit) }
func (tx tappedTx) Rollback() error { return tx.end(rollback, tx.tx.Rollback) }

func (tx tappedTx) end(text string, end func() error) error {
	_, err := through(tx.conn, text, func() (struct{}, error) { return struct{}{}, end() })
	return err
}

// tappedStmt is a prepared statement. Preparing itself is no step of a delivery: it changes nothing.
type tappedStmt struct {
	*stdlib.Stmt

	conn  *tappedConn
	query string
}

func (s tappedStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return through(s.conn, s.query, func() (driver.Result, error) { return s.Stmt.ExecContext(ctx, args) })
}

func (s tappedStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return through(s.conn, s.query, func() (driver.Rows, error) { return s.Stmt.QueryContext(ctx, args) })
}

// claimRows are what a claim returned: a row, if it won.
type claimRows struct {
	driver.Rows

	conn *tappedConn
	key  eventKey
}

func (r claimRows) Next(dest []driver.Value) error {
	err := r.Rows.Next(dest)
	if err == nil {
		r.conn.tap.hold(r.conn, r.key)
	}
	return err
}

func keyOf(args []driver.NamedValue) eventKey {
	return eventKey{fmt.Sprint(args[0].Value), fmt.Sprint(args[1].Value)}
}

// through takes a request to the server, unless its connection breaks on the way there or back.
func through[T any](c *tappedConn, text string, forward func() (T, error)) (result T, err error) {
	r := c.tap.arrive(c, text)
	planned := c.tap.planned(r)
	if planned == beforeRequest {
		c.breakLink() // and pgx finds out for itself
	}
	result, err = forward()
	if planned != afterRequest {
		return result, err
	}
	if err == nil {
		readAll(result)
	}
	c.breakLink() // a refusal is lost like any other reply
	var none T
	return none, fmt.Errorf("gormtest cut the connection: %w", io.ErrUnexpectedEOF)
}

// readAll reads rows to their end. Until then the server has not carried the request out: outside of a transaction, the commit comes
// behind the last row.
func readAll(result any) {
	rows, ok := result.(driver.Rows)
	if !ok {
		return
	}
	values := make([]driver.Value, len(rows.Columns()))
	for rows.Next(values) == nil {
	}
	_ = rows.Close()
}

// breakLink closes the connection without the goodbye that would let the server end the session in an orderly way.
func (c *tappedConn) breakLink() {
	c.broken.Store(true)
	_ = c.Conn().PgConn().Conn().Close()
}

// pid is the server's process for the connection's session.
func (c *tappedConn) pid() int64 { return int64(c.Conn().PgConn().PID()) }
