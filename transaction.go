package idempotency

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"

	"github.com/gorm-idempotency/idempotency/internal/pgsql"
	"github.com/gorm-idempotency/idempotency/internal/pipelined"
)

// transaction is the seam between the protocol and what it runs in: a transaction of the call's own, or a savepoint in the
// caller's. A pipelined connection can take its place.
type transaction interface {
	// begin opens the transaction and claims the key.
	begin() (claim, error)

	// claim claims it again, and lookup finds the row of whoever has it, or nil.
	claim() (claim, error)
	lookup() (*storedRow, error)

	// open makes the scope that the handler works in, once the key is claimed.
	open() *scope

	// keep stores the answer and ends the transaction for good. An error means that it has not been kept, or wraps
	// ErrOutcomeUnknown.
	keep(a answer) error

	// undo ends a transaction that has not been kept. It is a no-op for one that has, and where nothing has begun. Its
	// error means that the end was not ours to make, or did not succeed.
	undo() error
}

// claim is what the claiming statement returned: a row if it won.
type claim struct {
	won bool
	at  time.Time
}

// storedRow is what a duplicate needs of the row.
type storedRow struct {
	digest    []byte
	answer    answer
	claimedAt time.Time
	complete  bool
}

// ownTransaction is begun and ended by the call.
type ownTransaction struct {
	statements
	pool      gorm.ConnPool      // conn, with the statement cache that the handle's session wants around it
	stop      context.CancelFunc // ends ctx, where GORM's Config limits how long a transaction takes
	pipelined bool               // BEGIN travels with the claim, COMMIT with the answer, and ROLLBACK with the look-up
	ended     bool               // COMMIT was sent
}

func newOwnTransaction(c *call) *ownTransaction {
	return &ownTransaction{statements: newStatements(c)}
}

// begin does what GORM's Begin does, but for the session, which only a handler needs, and the error translation.
func (t *ownTransaction) begin() (claim, error) {
	db := t.call.db
	if _, limited := t.ctx.Deadline(); !limited && db.DefaultTransactionTimeout > 0 {
		t.ctx, t.stop = context.WithTimeout(t.ctx, db.DefaultTransactionTimeout)
	}
	ctx := t.ctx
	if t.pipelined = pipelines(connection(db)); t.pipelined {
		ctx = pipelined.WithClaim(ctx)
	}
	var err error
	if t.pool, err = beginTx(ctx, db.Statement.ConnPool, t.call.options.begin()); err != nil {
		return claim{}, err
	}
	t.conn = unwrap(t.pool)
	return t.statements.claim()
}

// lookup ends the transaction too where it is pipelined: a duplicate has nothing more to do in it.
func (t *ownTransaction) lookup() (*storedRow, error) {
	if !t.pipelined {
		return t.statements.lookup(t.ctx)
	}
	row, err := t.statements.lookup(pipelined.WithRollback(t.ctx))
	_ = t.conn.(gorm.TxCommitter).Rollback() // gives the connection back
	t.conn = nil
	return row, err
}

// claim is the second one, after a look-up that found nobody's row: in the same transaction, or in another if that has ended.
func (t *ownTransaction) claim() (claim, error) {
	if t.conn == nil {
		return t.begin()
	}
	return t.statements.claim()
}

// unsent reports whether a claim failed because its BEGIN could not be sent. Where BEGIN does not wait for the claim,
// database/sql takes another connection by itself.
func (t *ownTransaction) unsent(err error) bool {
	return t.pipelined && errors.Is(err, driver.ErrBadConn)
}

// pipelines reports whether a pool was opened by the pipeline package.
func pipelines(pool gorm.ConnPool) bool {
	opened, ok := pool.(*sql.DB)
	if !ok {
		return false
	}
	_, ok = opened.Driver().(pipelined.Driver)
	return ok
}

// beginTx begins a transaction on a pool or connection. It keeps GORM's statement cache around it, and returns nil with
// an error.
func beginTx(ctx context.Context, pool gorm.ConnPool, opts *sql.TxOptions) (gorm.ConnPool, error) {
	var begun gorm.ConnPool
	var err error
	switch beginner := pool.(type) {
	case gorm.TxBeginner:
		// Assigned only when it succeeded: a nil *sql.Tx in an interface is not nil.
		var tx *sql.Tx
		if tx, err = beginner.BeginTx(ctx, opts); err == nil {
			begun = tx
		}
	case gorm.ConnPoolBeginner:
		begun, err = beginner.BeginTx(ctx, opts)
		if err == nil && !inTransaction(unwrap(begun)) {
			err = unsupported(fmt.Sprintf("a transaction of type %T, which cannot commit", unwrap(begun)))
		}
	default:
		err = unsupported(fmt.Sprintf("a connection of type %T, which cannot begin a transaction", beginner))
	}
	if err != nil {
		return nil, fmt.Errorf("idempotency: begin: %w", err)
	}
	return begun, nil
}

// commit is not GORM's, whose error translation loses the SQLSTATE.
func commit(tx gorm.ConnPool) error {
	return outcome(tx.(gorm.TxCommitter).Commit())
}

// outcome says what an error of COMMIT means.
func outcome(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pipelined.ErrLast) && pgsql.NotOneRow(err):
		return errNotOneRow(errNoOneRow)
	case errors.Is(err, pipelined.ErrLast):
		return statementError("store the answer", err)
	case pgsql.CertainlyRolledBack(err) && pgsql.State(err) == "":
		return fmt.Errorf("idempotency: commit: the transaction was aborted by a statement whose error the handler dropped: %w", err)
	case pgsql.CertainlyRolledBack(err):
		return fmt.Errorf("idempotency: commit: %w", err)
	case errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("%w: the handler, or other code, had ended the transaction: %w", ErrOutcomeUnknown, err)
	}
	return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
}

func (t *ownTransaction) open() *scope {
	s := t.newScope(t.pool)
	s.owns = true
	return s
}

func (t *ownTransaction) keep(a answer) error {
	if err := t.complete(a); err != nil {
		return err
	}
	if err := t.ctx.Err(); err != nil {
		return fmt.Errorf("idempotency: before the commit: %w", err)
	}
	if t.call.scope.isUndone() {
		return errors.New("idempotency: before the commit: the transaction was rolled back, since a joined call in it could not be undone")
	}
	t.ended = true
	err := commit(t.conn)
	if err != nil {
		_ = t.conn.(gorm.TxCommitter).Rollback() // a transaction of the application's own may not have ended
	}
	return err
}

// complete stores the answer. Pipelined, the statement waits for COMMIT: nobody would look at how many rows it has changed,
// so that it is one which fails by itself unless that was one.
func (t *ownTransaction) complete(a answer) error {
	if !t.pipelined || a.status == 0 {
		return t.statements.complete(a)
	}
	_, err := t.exec(pipelined.WithLast(t.ctx), "store the answer", t.sql.CompleteOne, a.completion(t.keyArgs())...)
	if pgsql.NotOneRow(err) {
		return errNotOneRow(errNoOneRow)
	}
	return err
}

// errNoOneRow stands for the division by zero that the pipelined completion fails with.
var errNoOneRow = errors.New("other than 1 row matches the claimed key")

func (t *ownTransaction) undo() error {
	if t.stop != nil {
		defer t.stop()
	}
	if t.conn == nil || t.ended {
		return nil
	}
	if err := t.conn.(gorm.TxCommitter).Rollback(); errors.Is(err, sql.ErrTxDone) {
		return t.endedByOthers(err)
	}
	return nil // any other failure is of a broken connection, whose transaction the server rolls back
}

// joinedTransaction is a savepoint in the caller's transaction. GORM's own savepoints swallow errors and are never
// released, so that a loop of calls would pile up subtransactions.
type joinedTransaction struct {
	statements
	depth        int // how many joined calls are open on the transaction, with this one
	begun, ended bool
}

func newJoinedTransaction(c *call) *joinedTransaction {
	t := &joinedTransaction{statements: newStatements(c)}
	t.conn = connection(c.db)
	t.unlocked = c.plugin.locks.spent(t.conn)
	t.depth = scopes.at(t.conn).depth() + 1
	return t
}

func (t *joinedTransaction) begin() (claim, error) {
	if _, err := t.exec(t.ctx, "begin a savepoint", pgsql.Savepoint(t.depth)); err != nil {
		return claim{}, err
	}
	t.begun = true
	return t.claim()
}

func (t *joinedTransaction) lookup() (*storedRow, error) { return t.statements.lookup(t.ctx) }

func (t *joinedTransaction) open() *scope { return t.newScope(t.call.db.Statement.ConnPool) }

func (t *joinedTransaction) keep(a answer) error {
	if err := t.complete(a); err != nil {
		return err
	}
	if err := t.ctx.Err(); err != nil {
		return fmt.Errorf("idempotency: before the savepoint's release: %w", err)
	}
	// This fails if the handler swallowed a database error: the transaction is aborted then.
	if _, err := t.exec(t.ctx, "release the savepoint", pgsql.ReleaseSavepoint(t.depth)); err != nil {
		return err
	}
	t.ended = true
	t.call.plugin.locks.spend(t.conn)
	return nil
}

// undoTimeout bounds the way back to the savepoint, on a connection that may have stopped answering.
const undoTimeout = 10 * time.Second

// undo returns to the savepoint even if the call's context has ended: the caller's may not have, and what the handler
// wrote must not be committed with their transaction.
func (t *joinedTransaction) undo() error {
	if !t.begun || t.ended {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), undoTimeout)
	defer cancel()
	_, err := t.exec(ctx, "roll back to the savepoint", pgsql.RollbackToSavepoint(t.depth))
	if err == nil {
		_, err = t.exec(ctx, "release the savepoint", pgsql.ReleaseSavepoint(t.depth))
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrTxDone):
		return t.endedByOthers(err)
	}
	// Not even now may the caller commit what the handler wrote, or the claim alone: the connection may be well, and only
	// have been busy with rows that the handler left open.
	scopes.at(t.conn).markUndone()
	_ = t.conn.(gorm.TxCommitter).Rollback()
	return err
}

// statements are the protocol's statements on one transaction. They go to the transaction underneath GORM's statement
// cache, which would prepare them again in every transaction and can deadlock a small pool.
type statements struct {
	executor
	call     *call
	ctx      context.Context
	sql      *pgsql.Statements
	args     []any // of the claim: the key, then the digest, then the lock's number
	unlocked bool  // the transaction has taken its share of the server's locks
	claimed  claim // what the claim returned
}

func newStatements(c *call) statements {
	return statements{
		executor: executor{logger: c.db.Logger}, call: c, ctx: c.ctx, sql: &c.plugin.sql,
		args: []any{c.key.source, c.key.eventID, c.digest, c.key.lock()},
	}
}

func (s *statements) keyArgs() []any { return s.args[:2:2] }

// newScope starts the handler's handle from a clean session: conditions and clauses that the caller's handle carries
// would leak into every statement of the handler. What GORM hands on from such a session's Statement is what is set here.
func (s *statements) newScope(pool gorm.ConnPool) *scope {
	db := s.call.db
	held := &scope{plugin: s.call.plugin, key: s.call.key, database: database(db), conn: s.conn}
	held.answered = s.call.answersItself
	held.tx = db.Session(&gorm.Session{NewDB: true})
	held.tx.Statement = &gorm.Statement{
		DB: held.tx, ConnPool: pool, Context: withScope(s.ctx, held), Clauses: map[string]clause.Clause{},
		SkipHooks: db.Statement.SkipHooks, Unscoped: db.Statement.Unscoped,
	}
	return held
}

func (s *statements) claim() (claim, error) {
	query, args := s.sql.Claim, s.args
	if s.unlocked {
		query, args = s.sql.ClaimUnlocked, s.args[:3]
	}
	s.claimed = claim{}
	if err := s.query(s.ctx, "claim key", s.scanClaim, query, args...); err != nil {
		return claim{}, err
	}
	return s.claimed, nil
}

func (s *statements) scanClaim(rows *sql.Rows) error {
	s.claimed.won = true
	return rows.Scan(&s.claimed.at)
}

func (s *statements) lookup(ctx context.Context) (*storedRow, error) {
	var row *storedRow
	err := s.query(ctx, "look up key", func(rows *sql.Rows) error {
		var (
			found  storedRow
			status *int
			header *string
		)
		if err := rows.Scan(&found.digest, &status, &header, &found.answer.body, &found.claimedAt, &found.complete); err != nil {
			return err
		}
		if status != nil {
			found.answer.status = *status
		}
		if header != nil {
			if err := json.Unmarshal([]byte(*header), &found.answer.header); err != nil {
				return quiet(errors.New("the stored headers are not an object of arrays of strings"), err)
			}
		}
		row = &found
		return nil
	}, s.sql.Lookup, s.keyArgs()...)
	return row, err
}

// complete stores the answer on the claimed row, and nothing if there is none. It insists on exactly one row: a handler
// that deleted or answered its own key has no claim any more, and its effect would happen again.
func (s *statements) complete(a answer) error {
	if a.status == 0 {
		return nil
	}
	updated, err := s.exec(s.ctx, "store the answer", s.sql.Complete, a.completion(s.keyArgs())...)
	if err == nil && updated != 1 {
		return errNotOneRow(fmt.Errorf("%d rows match the claimed key, want 1", updated))
	}
	return err
}

func errNotOneRow(cause error) error {
	return fmt.Errorf("idempotency: store the answer: the handler, or a trigger, deleted the claimed key or answered it: %w", cause)
}

// endedByOthers explains a transaction that was over before its call was. database/sql rolls back when the context ends;
// otherwise the handler has committed or rolled back, and what it did before may or may not be there.
func (s *statements) endedByOthers(err error) error {
	if s.ctx.Err() != nil || s.call.scope.isUndone() {
		return nil //nolint:nilerr // it was rolled back, as it should be
	}
	return fmt.Errorf("%w: the handler, or other code, ended the transaction: %w", ErrOutcomeUnknown, err)
}

// executor runs a statement and logs it, with its text and never its values.
type executor struct {
	conn   gorm.ConnPool
	logger logger.Interface
}

func (e executor) exec(ctx context.Context, doing, query string, args ...any) (int64, error) {
	began := time.Now()
	var rows int64
	result, err := e.conn.ExecContext(ctx, query, args...)
	if err == nil {
		rows, err = result.RowsAffected()
	}
	e.trace(ctx, began, query, rows, err)
	if err != nil {
		return 0, statementError(doing, err)
	}
	return rows, nil
}

// query calls scan for each row. It never uses QueryRowContext: where preparing fails, GORM's statement cache returns a
// row whose Scan panics. Rows that end early are an error and not an empty answer.
func (e executor) query(ctx context.Context, doing string, scan func(*sql.Rows) error, query string, args ...any) error {
	began := time.Now()
	var count int64
	err := func() (err error) {
		rows, err := e.conn.QueryContext(ctx, query, args...)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, rows.Close()) }()
		for rows.Next() {
			count++
			if err := scan(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	}()
	e.trace(ctx, began, query, count, err)
	if err != nil {
		return statementError(doing, err)
	}
	return nil
}

func (e executor) trace(ctx context.Context, began time.Time, query string, rows int64, err error) {
	e.logger.Trace(ctx, began, func() (string, int64) { return query, rows }, err)
}
