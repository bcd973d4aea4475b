package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
)

// backend is the server process that a handle's statements run in.
func backend(t testing.TB, db *gorm.DB) int {
	t.Helper()
	return read[int](t, db, "SELECT pg_backend_pid()")
}

// FromContext finds the handler's transaction for code that has only a context, from whatever handle on the database.
func TestFromContextFindsTheTransaction(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	failure := errors.New("undone")
	for name, pool := range map[string]*gorm.DB{
		"handle": db, "prepared": db.Session(&gorm.Session{PrepareStmt: true}), "conditions": db.Where("false"), "debug": db.Session(&gorm.Session{SkipHooks: true}),
	} {
		for kind, start := range map[string]func(func(*gorm.DB) error) error{
			"standalone": func(fc func(*gorm.DB) error) error { _, err := idempotency.Do(db, "s", name, nil, fc); return err },
			"of a prepared handle": func(fc func(*gorm.DB) error) error {
				_, err := idempotency.Do(db.Session(&gorm.Session{PrepareStmt: true}), "s", name, nil, fc)
				return err
			},
			"joined": func(fc func(*gorm.DB) error) error {
				return db.Transaction(func(tx *gorm.DB) error { _, err := idempotency.Do(tx, "s", name, nil, fc); return err })
			},
			"joined to a prepared session": func(fc func(*gorm.DB) error) error {
				return db.Transaction(func(tx *gorm.DB) error {
					_, err := idempotency.Do(tx.Session(&gorm.Session{PrepareStmt: true}), "s", name, nil, fc)
					return err
				})
			},
			"inner": func(fc func(*gorm.DB) error) error {
				_, err := idempotency.Do(db, "s", "outer", nil, func(tx *gorm.DB) error {
					_, err := idempotency.Do(tx, "s", name, nil, fc)
					return err
				})
				return err
			},
		} {
			err := start(func(tx *gorm.DB) error {
				if err := tx.Create(&order{Event: "hidden"}).Error; err != nil {
					return err
				}
				ctx, cancel := context.WithCancel(context.WithValue(tx.Statement.Context, marker{}, "mine"))
				defer cancel()
				found := idempotency.FromContext(ctx, pool)
				if backend(t, found) != backend(t, tx) {
					t.Errorf("%s, %s: FromContext gives another connection", kind, name)
				}
				if found.Statement.Context != ctx {
					t.Errorf("%s, %s: FromContext gives another context", kind, name)
				}
				var hidden []order
				if err := idempotency.FromContext(ctx, pool.Where("event <> 'hidden'")).Find(&hidden).Error; err != nil || len(hidden) > 0 {
					t.Errorf("%s, %s: %d orders, %v: the handle's condition is lost", kind, name, len(hidden), err)
				}
				if err := idempotency.Respond(found, 200, nil); err != nil {
					t.Errorf("%s, %s: %v", kind, name, err)
				}
				return errors.Join(found.Create(&order{Event: "repository"}).Error, failure)
			})
			requireError(t, err, failure)
		}
	}
	requireEffects(t, db, "repository", 0)
}

// Without an open scope of this database in the context, FromContext is WithContext.
func TestFromContextElsewhereIsWithContext(t *testing.T) {
	t.Parallel()
	plugin := idempotency.New(idempotency.Config{})
	db, another := openWith(t, plugin), openWith(t, plugin)
	ctx := context.WithValue(t.Context(), marker{}, "mine")
	require := func(name string, ctx context.Context, db, tx *gorm.DB) {
		t.Helper()
		found := idempotency.FromContext(ctx, db)
		if found.Statement.Context != ctx || found.Statement.ConnPool != db.Statement.ConnPool {
			t.Errorf("%s: FromContext gives another context, or another connection", name)
		}
	}
	require("no scope", ctx, db, nil)
	var kept context.Context
	_, err := idempotency.Do(db, "s", "e", nil, func(tx *gorm.DB) error {
		kept = tx.Statement.Context //nolint:fatcontext // kept beyond its end on purpose
		require("another database", kept, another, tx)
		require("WithoutScope", idempotency.WithoutScope(kept), db, tx)
		require("the transaction itself", kept, tx, tx)
		require("outer context", ctx, db, tx)
		return another.Transaction(func(other *gorm.DB) error {
			require("in a transaction of its own", kept, other, tx)
			return nil
		})
	})
	if err != nil {
		t.Error(err)
	}
	require("scope that has ended", kept, db, nil)
}

// WithoutScope marks a write that is meant to survive the handler's rollback. It keeps the context's values and end.
func TestWithoutScopeKeepsADeliberateWrite(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	failure := errors.New("undone")
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), marker{}, "mine"))
	defer cancel()
	_, err := idempotency.Do(db.WithContext(ctx), "s", "e", nil, func(tx *gorm.DB) error {
		audit := idempotency.WithoutScope(tx.Statement.Context)
		if audit.Value(marker{}) != "mine" || audit.Err() != nil {
			t.Error("the context lost its value")
		}
		if err := db.WithContext(audit).Create(&order{Event: "audit"}).Error; err != nil {
			t.Error(err)
		}
		// Another event's delivery, on a connection of its own, is deliberate too.
		if result, err := idempotency.Do(db.WithContext(audit), "s", "another", nil, placeOrder("audit")); err != nil || result.Provisional {
			t.Errorf("got %+v, %v", result, err)
		}
		// It is the context that is unmarked, not the transaction.
		if err := tx.WithContext(audit).Create(&order{Event: "inside"}).Error; err != nil {
			t.Error(err)
		}
		cancel()
		if audit.Err() == nil {
			t.Error("the context does not end with the call's")
		}
		return failure
	})
	requireError(t, err, failure)
	requireEffects(t, db, "audit", 2)
	requireEffects(t, db, "inside", 0)
}

// Case C23: whatever session the handler makes of its handle, and in hooks and associations, everything runs in its
// transaction, and nothing stays when it fails.
func TestSessionsOfTheHandleStayInTheTransaction(t *testing.T) {
	t.Parallel()
	for _, prepared := range []bool{false, true} {
		db, _ := openParcels(t, setup{gorm: gorm.Config{PrepareStmt: prepared}})
		failure := errors.New("undone")
		_, err := idempotency.Do(db.Where("id > 5").Session(&gorm.Session{}), "s", "e", nil, func(tx *gorm.DB) error {
			pid := backend(t, tx)
			for name, session := range map[string]*gorm.DB{
				"prepared": tx.Session(&gorm.Session{PrepareStmt: true}), "new": tx.Session(&gorm.Session{NewDB: true}), "context": tx.WithContext(context.Background()),
				"debug": tx.Debug(), "no hooks": tx.Session(&gorm.Session{SkipHooks: true}), "settings": tx.Set("k", "v").Unscoped().Session(&gorm.Session{}),
			} {
				if got := backend(t, session); got != pid {
					t.Errorf("%s: backend %d, want %d", name, got, pid)
				}
				if err := session.Create(&parcel{Name: name, Labels: []label{{Text: name}}}).Error; err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				if err := session.Transaction(func(tx *gorm.DB) error {
					if got := backend(t, tx); got != pid {
						t.Errorf("%s, nested: backend %d, want %d", name, got, pid)
					}
					return tx.Create(&order{Event: name}).Error
				}); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
			found, err := gorm.G[order](tx).Raw("SELECT pg_backend_pid() AS id").First(context.Background())
			if err != nil || int(found.ID) != pid {
				t.Errorf("generics: backend %d, %v; want %d", found.ID, err, pid)
			}
			if err := gorm.G[order](tx).Create(context.Background(), &order{Event: "generics"}); err != nil {
				return err
			}
			return failure
		})
		requireError(t, err, failure)
		if got := read[int](t, db, `SELECT (SELECT count(*) FROM parcels) + (SELECT count(*) FROM labels) + (SELECT count(*) FROM orders WHERE id <> 1000)`); got != 0 {
			t.Errorf("PrepareStmt %t: %d rows outlived the rollback", prepared, got)
		}
		requireIdle(t, db)
	}
}

// AfterCommit's functions run once, in order, when the effect is there for everybody and the connection is free.
func TestAfterCommitRunsInOrderOnceTheEffectIsDurable(t *testing.T) {
	t.Parallel()
	log := &journal{}
	db := open(t, setup{conns: 1, gorm: gorm.Config{Logger: log}})
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), marker{}, "mine"))
	var ran []string
	note := func(name string) func(context.Context) {
		return func(ctx context.Context) {
			ran = append(ran, name)
			if ctx.Value(marker{}) != "mine" || ctx.Err() != nil {
				t.Errorf("%s: the context is another one, or has ended: %v", name, ctx.Err())
			}
			requireEffects(t, db, "e", 1)
			if err := db.WithContext(ctx).Create(&order{Event: "after"}).Error; err != nil {
				t.Errorf("%s: a write is taken for a foreign one: %v", name, err)
			}
			// The key is free to ask for.
			if result, err := idempotency.Do(db.WithContext(ctx), "s", "e", nil, unreachable(t)); err != nil || !result.Replayed {
				t.Errorf("%s: got %+v, %v", name, result, err)
			}
		}
	}
	deliver := func() (*idempotency.Result, error) {
		return idempotency.Do(db.WithContext(ctx), "s", "e", nil, func(tx *gorm.DB) error {
			for _, name := range []string{"first", "second"} {
				if err := idempotency.AfterCommit(tx, note(name)); err != nil {
					return err
				}
			}
			if err := idempotency.AfterCommit(tx.WithContext(context.Background()).Session(&gorm.Session{PrepareStmt: true}), func(context.Context) {
				cancel()
				panic("SECRET")
			}); err != nil {
				return err
			}
			if err := tx.Transaction(func(tx *gorm.DB) error { return idempotency.AfterCommit(tx, note("third")) }); err != nil {
				return err
			}
			if len(ran) > 0 {
				t.Errorf("%q ran before the commit", ran)
			}
			return placeOrder("e")(tx)
		})
	}
	result, err := deliver()
	if err != nil || result.Status != 201 {
		t.Errorf("got %+v, %v; a panic after the commit changes nothing", result, err)
	}
	want := []string{"first", "second", "third"}
	if !slices.Equal(ran, want) {
		t.Errorf("%q ran, want %q", ran, want)
	}
	lines := log.of("error")
	if len(lines) != 1 || !strings.Contains(lines[0], "AfterCommit") || strings.Contains(lines[0], "SECRET") {
		t.Errorf("the log says %q, want one line about the panic, without its text", lines)
	}
	ctx = context.WithValue(t.Context(), marker{}, "mine")
	if result, err := deliver(); err != nil || !result.Replayed || !slices.Equal(ran, want) {
		t.Errorf("a replay gives %+v, %v, and %q ran", result, err, ran)
	}
}

// AfterCommit's functions are forgotten with the work that they belong to.
func TestAfterCommitIsForgottenWithTheRollback(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	mustExec(t, db, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END'`)
	mustExec(t, db, `CREATE CONSTRAINT TRIGGER late AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW WHEN (NEW.event = 'late') EXECUTE FUNCTION refuse()`)
	failure := errors.New("undone")
	var ran []string
	register := func(tx *gorm.DB, name string) {
		if err := idempotency.AfterCommit(tx, func(context.Context) { ran = append(ran, name) }); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := idempotency.Do(db, "s", "failed", nil, func(tx *gorm.DB) error { register(tx, "failed"); return failure })
	requireError(t, err, failure)
	_, err = idempotency.Do(db, "s", "not committed", nil, func(tx *gorm.DB) error { register(tx, "not committed"); return placeOrder("late")(tx) })
	if err == nil {
		t.Error("the commit was to fail")
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = idempotency.Do(db, "s", "panicked", nil, func(tx *gorm.DB) error { register(tx, "panicked"); panic("x") })
	}()
	if len(ran) > 0 {
		t.Errorf("%q ran, and nothing was committed", ran)
	}
	// What an inner call registers waits for the outermost commit, and is forgotten when the inner call is undone.
	_, err = idempotency.Do(db, "s", "outer", nil, func(tx *gorm.DB) error {
		register(tx, "1")
		if _, err := idempotency.Do(tx, "s", "inner", nil, func(tx *gorm.DB) error { register(tx, "2"); return nil }); err != nil {
			return err
		}
		_, err := idempotency.Do(tx, "s", "inner failed", nil, func(tx *gorm.DB) error {
			register(tx, "undone")
			if _, err := idempotency.Do(tx, "s", "innermost", nil, func(tx *gorm.DB) error { register(tx, "undone with it"); return nil }); err != nil {
				return err
			}
			return failure
		})
		requireError(t, err, failure)
		register(tx, "3")
		if len(ran) > 0 {
			t.Errorf("%q ran before the outermost commit", ran)
		}
		return nil
	})
	if err != nil || !slices.Equal(ran, []string{"1", "2", "3"}) {
		t.Errorf("%q ran, %v; want 1, 2, 3", ran, err)
	}
}

// Nobody tells the library when the caller's transaction commits, so AfterCommit is refused there; and so is what is no handler.
func TestAfterCommitIsRefusedWhereItCannotBeKept(t *testing.T) {
	t.Parallel()
	db := open(t, setup{dsn: gormtest.DSN(t)})
	never := func(context.Context) { t.Error("it ran") }
	err := db.Transaction(func(tx *gorm.DB) error {
		requireError(t, idempotency.AfterCommit(tx, never), idempotency.ErrNoScope)
		_, err := idempotency.Do(tx, "s", "joined", nil, func(tx *gorm.DB) error {
			requireUnsupported(t, idempotency.AfterCommit(tx, never))
			_, err := idempotency.Do(tx, "s", "inner", nil, func(tx *gorm.DB) error {
				requireUnsupported(t, idempotency.AfterCommit(tx, never))
				return nil
			})
			return err
		})
		return err
	})
	if err != nil {
		t.Error(err)
	}
	requireError(t, idempotency.AfterCommit(db, never), idempotency.ErrNoScope)
	_, err = idempotency.Do(db, "s", "e", nil, func(tx *gorm.DB) error {
		requireUnsupported(t, idempotency.AfterCommit(tx, nil))
		requireError(t, idempotency.AfterCommit(db, never), idempotency.ErrNoScope)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
