package migrations_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// transactionPooler does what PgBouncer does in transaction mode: a client keeps its connection, and each transaction,
// each statement outside of one, runs on whichever server connection is free.
type transactionPooler struct {
	servers chan serverConn // first in, first out: a client that comes back gets another one
}

type serverConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ExecerContext
	driver.QueryerContext
}

func newTransactionPooler(t *testing.T, config *pgx.ConnConfig, size int) *transactionPooler {
	t.Helper()
	p := &transactionPooler{servers: make(chan serverConn, size)}
	t.Cleanup(func() {
		for range size {
			ok(t, (<-p.servers).Close())
		}
	})
	for range size {
		// Without prepared statements, as older versions of PgBouncer want it.
		unprepared := config.Copy()
		unprepared.DefaultQueryExecMode = pgx.QueryExecModeExec
		server, err := stdlib.GetConnector(*unprepared).Connect(context.Background())
		ok(t, err)
		p.servers <- server.(serverConn)
	}
	return p
}

func (p *transactionPooler) Connect(context.Context) (driver.Conn, error) {
	return &pooledConn{pooler: p}, nil
}

func (p *transactionPooler) Driver() driver.Driver { return stdlib.GetDefaultDriver() }

func (p *transactionPooler) lend(ctx context.Context) (serverConn, error) {
	select {
	case server := <-p.servers:
		return server, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// pooledConn is a client's connection.
type pooledConn struct {
	pooler *transactionPooler
	server serverConn // while in a transaction
}

func (c *pooledConn) Prepare(string) (driver.Stmt, error) { return nil, errors.ErrUnsupported }
func (c *pooledConn) Begin() (driver.Tx, error)           { return nil, errors.ErrUnsupported }
func (c *pooledConn) Close() error                        { return nil }

func (c *pooledConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	server, err := c.pooler.lend(ctx)
	if err != nil {
		return nil, err
	}
	tx, err := server.BeginTx(ctx, opts)
	if err != nil {
		c.pooler.servers <- server
		return nil, err
	}
	c.server = server
	return pooledTx{tx, c}, nil
}

func (c *pooledConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if c.server != nil {
		return c.server.ExecContext(ctx, query, args)
	}
	server, err := c.pooler.lend(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { c.pooler.servers <- server }()
	return server.ExecContext(ctx, query, args)
}

func (c *pooledConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if c.server != nil {
		return c.server.QueryContext(ctx, query, args)
	}
	server, err := c.pooler.lend(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := server.QueryContext(ctx, query, args)
	if err != nil {
		c.pooler.servers <- server
		return nil, err
	}
	return pooledRows{rows, func() { c.pooler.servers <- server }}, nil
}

type pooledTx struct {
	driver.Tx
	conn *pooledConn
}

func (tx pooledTx) Commit() error {
	defer tx.giveBack()
	return tx.Tx.Commit()
}

func (tx pooledTx) Rollback() error {
	defer tx.giveBack()
	return tx.Tx.Rollback()
}

func (tx pooledTx) giveBack() {
	tx.conn.pooler.servers <- tx.conn.server
	tx.conn.server = nil
}

type pooledRows struct {
	driver.Rows
	giveBack func()
}

func (r pooledRows) Close() error {
	defer r.giveBack()
	return r.Rows.Close()
}
