package conformance

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync"
)

// Statement is a call that reached the driver.
type Statement struct {
	Conn          int    // counts the connections
	Pid           string // of the connection's backend
	Text          string // BEGIN, COMMIT and ROLLBACK for what database/sql has calls of its own for
	InTransaction bool
	Prepared      bool // it ran through a prepared statement
}

// Log has every call that reached a driver, whoever made it: GORM, database/sql or the library. Preparing is a call of its
// own, "PREPARE …".
type Log struct {
	mu         sync.Mutex
	conns      int
	statements []Statement
}

// Take returns the statements since the last Take.
func (l *Log) Take() []Statement {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := l.statements
	l.statements = nil
	return taken
}

// OpenRecorded opens a pool on a driver, with a driver in between that logs every call. It is as such wrappers are, for
// tracing and metrics: it passes on what the driver has and claims nothing else.
func OpenRecorded(connector driver.Connector) (*sql.DB, *Log) {
	log := &Log{}
	return sql.OpenDB(recordedConnector{connector, log}), log
}

type recordedConnector struct {
	driver.Connector

	log *Log
}

func (c recordedConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	pid, err := backendPid(ctx, conn)
	if err != nil {
		return nil, err
	}
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	c.log.conns++
	return &recordedConn{Conn: conn, log: c.log, number: c.log.conns, pid: pid}, nil
}

func backendPid(ctx context.Context, conn driver.Conn) (pid string, err error) {
	rows, err := conn.(driver.QueryerContext).QueryContext(ctx, "SELECT pg_backend_pid()", nil)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	values := make([]driver.Value, 1)
	if err := rows.Next(values); err != nil {
		return "", err
	}
	return fmt.Sprint(values[0]), nil
}

type recordedConn struct {
	driver.Conn

	log    *Log
	number int
	pid    string
	inTx   bool
}

func (c *recordedConn) record(text string, prepared bool) {
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	c.log.statements = append(c.log.statements, Statement{c.number, c.pid, text, c.inTx, prepared})
}

func (c *recordedConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	c.record("BEGIN "+strings.ToUpper(sql.IsolationLevel(opts.Isolation).String()), false)
	tx, err := c.Conn.(driver.ConnBeginTx).BeginTx(ctx, opts)
	if err != nil {
		return nil, err
	}
	c.inTx = true
	return recordedTx{tx, c}, nil
}

func (c *recordedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	c.record(query, false)
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
}

func (c *recordedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	c.record(query, false)
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
}

func (c *recordedConn) PrepareContext(ctx context.Context, query string) (stmt driver.Stmt, err error) {
	c.record("PREPARE "+query, false)
	if preparer, ok := c.Conn.(driver.ConnPrepareContext); ok {
		stmt, err = preparer.PrepareContext(ctx, query)
	} else {
		stmt, err = c.Prepare(query)
	}
	if err != nil {
		return nil, err
	}
	return recordedStmt{stmt, c, query}, nil
}

func (c *recordedConn) CheckNamedValue(value *driver.NamedValue) error {
	if checker, ok := c.Conn.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(value)
	}
	return driver.ErrSkip
}

func (c *recordedConn) Ping(ctx context.Context) error {
	return c.Conn.(driver.Pinger).Ping(ctx)
}

func (c *recordedConn) ResetSession(ctx context.Context) error {
	if resetter, ok := c.Conn.(driver.SessionResetter); ok {
		return resetter.ResetSession(ctx)
	}
	return nil
}

func (c *recordedConn) IsValid() bool {
	validator, ok := c.Conn.(driver.Validator)
	return !ok || validator.IsValid()
}

type recordedTx struct {
	driver.Tx

	conn *recordedConn
}

func (tx recordedTx) Commit() error   { return tx.end("COMMIT", tx.Tx.Commit) }
func (tx recordedTx) Rollback() error { return tx.end("ROLLBACK", tx.Tx.Rollback) }

func (tx recordedTx) end(text string, end func() error) error {
	tx.conn.record(text, false)
	tx.conn.inTx = false
	return end()
}

type recordedStmt struct {
	driver.Stmt

	conn  *recordedConn
	query string
}

func (s recordedStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	s.conn.record(s.query, true)
	return s.Stmt.(driver.StmtExecContext).ExecContext(ctx, args)
}

func (s recordedStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	s.conn.record(s.query, true)
	return s.Stmt.(driver.StmtQueryContext).QueryContext(ctx, args)
}
