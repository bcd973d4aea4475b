package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"testing"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-idempotency/idempotency"
)

// The tests below are of ways to misuse a transaction that once lost or doubled an effect.

var errTrap = errors.New("the handler's")

// A joined call that cannot go back to its savepoint, here since the handler left rows open, ends the caller's transaction:
// otherwise the caller would commit the claim of a handler that failed.
func TestJoinedCallThatCannotGoBackEndsTheTransaction(t *testing.T) {
	t.Parallel()
	fail := func(tx *gorm.DB) error {
		if err := tx.Create(&order{Event: "inner"}).Error; err != nil {
			return err
		}
		rows, err := tx.Raw("SELECT generate_series(1, 100000)").Rows()
		if err != nil {
			return err
		}
		rows.Next()
		return errTrap // and rows.Close is forgotten
	}
	t.Run("the caller's", func(t *testing.T) {
		t.Parallel()
		db := open(t, setup{})
		err := db.Transaction(func(tx *gorm.DB) error {
			_, err := idempotency.Do(tx, "s", "inner", nil, fail)
			requireError(t, err, errTrap)
			return nil // a batch that goes on
		})
		requireError(t, err, sql.ErrTxDone)
		requireEffects(t, db, "inner", 0)
		requireNoKey(t, db, "s", "inner")
		requireIdle(t, db)
	})
	t.Run("a handler's", func(t *testing.T) {
		t.Parallel()
		db := open(t, setup{})
		_, err := idempotency.Do(db, "s", "outer", nil, func(tx *gorm.DB) error {
			_, err := idempotency.Do(tx, "s", "inner", nil, fail)
			requireError(t, err, errTrap)
			return nil
		})
		if err == nil || errors.Is(err, idempotency.ErrOutcomeUnknown) {
			t.Errorf("got %v, want an error that is certain", err)
		}
		for _, event := range []string{"outer", "inner"} {
			requireEffects(t, db, event, 0)
			requireNoKey(t, db, "s", event)
		}
		requireIdle(t, db)
	})
}

// Joined calls in two goroutines on one transaction are a mistake. The failed one must not undo the other in silence, and
// be kept itself.
func TestJoinedCallsAtOnceDoNotUndoEachOther(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	failedIn, otherIn, failedOut := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var other error
	err := db.Transaction(func(tx *gorm.DB) error {
		var together sync.WaitGroup
		together.Go(func() {
			defer close(failedOut)
			_, err := idempotency.Do(tx, "s", "fails", nil, func(tx *gorm.DB) error {
				err := tx.Create(&order{Event: "fails"}).Error
				close(failedIn)
				<-otherIn
				return errors.Join(err, errTrap)
			})
			if !errors.Is(err, errTrap) {
				t.Errorf("the one that fails: %v", err)
			}
		})
		together.Go(func() {
			<-failedIn
			_, other = idempotency.Do(tx, "s", "other", nil, func(tx *gorm.DB) error {
				err := tx.Create(&order{Event: "other"}).Error
				close(otherIn)
				<-failedOut
				return err
			})
		})
		together.Wait()
		return nil
	})
	if other == nil {
		t.Error("the other call reported success, and is undone")
	}
	if err == nil {
		t.Error("the caller's commit succeeded")
	}
	for _, event := range []string{"fails", "other"} {
		requireEffects(t, db, event, 0)
		requireNoKey(t, db, "s", event)
	}
}

// An outer handler's handle inside an inner handler answers the outer event, and a call on it is refused.
func TestOuterHandleInsideAnInnerHandler(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	result, err := idempotency.Do(db, "s", "outer", nil, func(outer *gorm.DB) error {
		result, err := idempotency.Do(outer, "s", "inner", nil, func(inner *gorm.DB) error {
			_, err := idempotency.Do(outer, "s", "third", nil, unreachable(t))
			requireError(t, err, idempotency.ErrUnsupported)
			return errors.Join(idempotency.Respond(outer, 201, "outer"), idempotency.Respond(inner, 202, "inner"))
		})
		if err == nil && (result.Status != 202 || string(result.Body) != `"inner"`) {
			t.Errorf("the inner event got %d %s", result.Status, result.Body)
		}
		return err
	})
	if err != nil || result.Status != 201 || string(result.Body) != `"outer"` {
		t.Errorf("the outer event got %+v, %v", result, err)
	}
}

// A *sql.Conn begins a second transaction on the connection that a handler's runs on, and commits both at once.
func TestSingleConnectionIsTheHandlersAlone(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	err := db.Connection(func(conn *gorm.DB) error {
		conn = conn.Session(&gorm.Session{NewDB: true}) // GORM's own carries conditions and errors along
		_, err := idempotency.Do(conn, "s", "evt", nil, func(tx *gorm.DB) error {
			if err := tx.Create(&order{Event: "evt"}).Error; err != nil {
				return err
			}
			requireUnsupported(t, conn.Create(&order{Event: "slip"}).Error)
			_, err := idempotency.Do(conn, "s", "second", nil, unreachable(t))
			requireUnsupported(t, err)
			var count int64
			return errors.Join(conn.Model(&order{}).Count(&count).Error, errTrap)
		})
		requireError(t, err, errTrap)
		_, err = idempotency.Do(conn, "s", "later", nil, placeOrder("later"))
		return err
	})
	requireError(t, err, nil)
	requireEffects(t, db, "evt", 0)
	requireEffects(t, db, "slip", 0)
	requireEffects(t, db, "later", 1)
	requireNoKey(t, db, "s", "evt")
}

// Two handles with a plugin each share a pool: what is in one's handler is in the other's too.
func TestSecondPluginOnThePoolKnowsTheScope(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	pool, err := db.DB()
	requireError(t, err, nil)
	second := open(t, setup{driver: postgres.New(postgres.Config{Conn: pool})})
	_, err = idempotency.Do(db, "s", "evt", nil, func(tx *gorm.DB) error {
		ctx := tx.Statement.Context
		joined := idempotency.FromContext(ctx, second)
		_, err := idempotency.Do(joined, "s", "evt", nil, unreachable(t))
		requireError(t, err, idempotency.ErrReentrant)
		requireError(t, idempotency.Forget(ctx, joined, "s", "evt"), idempotency.ErrReentrant)
		requireUnsupported(t, joined.Exec("ROLLBACK").Error)
		return idempotency.Respond(joined, 201, nil)
	})
	requireError(t, err, nil)
}

// mapPool is a pool that is no key of a map.
type mapPool struct {
	*sql.DB
	tags []string
}

func TestPoolThatCannotBeComparedIsRefused(t *testing.T) {
	t.Parallel()
	base := open(t, setup{})
	pool, err := base.DB()
	requireError(t, err, nil)
	db, err := gorm.Open(postgres.New(postgres.Config{Conn: mapPool{pool, nil}}), &gorm.Config{Logger: logger.Discard})
	requireError(t, err, nil)
	requireError(t, db.Use(idempotency.New(idempotency.Config{})), nil)
	requireError(t, db.Create(&order{Event: "an ordinary write"}).Error, nil)
	_, err = idempotency.Do(db, "s", "evt", nil, unreachable(t))
	requireUnsupported(t, err)
	// Inside a handler it is another connection than the handler's.
	_, err = idempotency.Do(base, "s", "evt", nil, func(tx *gorm.DB) error {
		return db.WithContext(tx.Statement.Context).Create(&order{Event: "foreign"}).Error
	})
	requireError(t, err, idempotency.ErrForeignWrite)
}

// stubbornPool begins transactions whose Commit fails before it reaches the server.
type stubbornPool struct{ *sql.DB }

type stubbornTx struct{ *sql.Tx }

func (p *stubbornPool) BeginTx(ctx context.Context, opts *sql.TxOptions) (gorm.ConnPool, error) {
	tx, err := p.DB.BeginTx(ctx, opts)
	return &stubbornTx{tx}, err
}

func (*stubbornTx) Commit() error { return errTrap }

// A commit that fails without ending its transaction leaves no connection behind, and no key held.
func TestCommitThatDoesNotEndTheTransaction(t *testing.T) {
	t.Parallel()
	base := open(t, setup{})
	pool, err := base.DB()
	requireError(t, err, nil)
	db, err := gorm.Open(postgres.New(postgres.Config{Conn: &stubbornPool{pool}}), &gorm.Config{Logger: logger.Discard})
	requireError(t, err, nil)
	requireError(t, db.Use(idempotency.New(idempotency.Config{})), nil)
	_, err = idempotency.Do(db, "s", "evt", nil, placeOrder("evt"))
	requireError(t, err, errTrap)
	requireIdle(t, base)
	_, err = idempotency.Do(base, "s", "evt", nil, placeOrder("evt"))
	requireError(t, err, nil)
	requireEffects(t, base, "evt", 1)
}

// A handler's own savepoint does not get in the way of the joined call's.
func TestHandlersSavepointsDoNotClash(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	err := db.Transaction(func(tx *gorm.DB) error {
		_, err := idempotency.Do(tx, "s", "evt", nil, func(tx *gorm.DB) error {
			return errors.Join(tx.Create(&order{Event: "evt"}).Error, tx.SavePoint("idempotency").Error, errTrap)
		})
		requireError(t, err, errTrap)
		return nil
	})
	requireError(t, err, nil)
	requireEffects(t, db, "evt", 0)
	requireNoKey(t, db, "s", "evt")
}

// An answer that a goroutine gives when the handler has returned is refused, and not dropped in silence.
func TestLateAnswersAreRefused(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	returned, late := make(chan struct{}), make(chan error, 1)
	var handle *gorm.DB
	result, err := idempotency.Do(db, "s", "evt", nil, func(tx *gorm.DB) error {
		handle = tx
		return idempotency.AfterCommit(tx, func(context.Context) {
			late <- idempotency.Respond(handle, 500, "late")
			close(returned)
		})
	})
	<-returned
	requireError(t, err, nil)
	if err := <-late; err == nil || result.Status != 200 {
		t.Errorf("the late answer: %v, and the event got %d", err, result.Status)
	}
}

// A key that is being forgotten does not make its next delivery block inside the server.
func TestDeliveryBesideAForgottenKeyDoesNotBlock(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	_, err := idempotency.Do(db, "s", "evt", nil, placeOrder("evt"))
	requireError(t, err, nil)
	tx := db.Begin()
	defer tx.Rollback()
	requireError(t, idempotency.Forget(t.Context(), tx, "s", "evt"), nil)
	// The row is deleted and not gone: a replay, at once. Blocked, it would wait for this very test.
	result, err := idempotency.Do(db, "s", "evt", nil, placeOrder("evt"), idempotency.WithWait(0))
	if err != nil || !result.Replayed {
		t.Errorf("got %+v, %v", result, err)
	}
}

// What was committed may be anything, whatever else is wrong with the event.
func TestOpenOutcomeIsRetryable(t *testing.T) {
	t.Parallel()
	if !idempotency.Retryable(errors.Join(idempotency.ErrOutcomeUnknown, idempotency.ErrInvalidResponse)) {
		t.Error("an open outcome would be given up")
	}
	db := open(t, setup{})
	_, _, err := idempotency.DoValue(db, "s", "evt", nil, func(*gorm.DB) (string, error) { return "x", nil })
	requireError(t, err, nil)
	_, result, err := idempotency.DoValue(db, "s", "evt", nil, func(*gorm.DB) (int, error) { return 1, nil })
	if err == nil || result == nil || idempotency.Retryable(err) {
		t.Errorf("a body that never decodes: %+v, %v", result, err)
	}
}
