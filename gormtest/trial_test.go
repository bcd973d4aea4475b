package gormtest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-idempotency/idempotency"
)

// tools are what code under test can be given to.
var tools = map[string]func(t testing.TB, db *gorm.DB, deliver Deliver, opts ...Option){
	"Hammer":      func(t testing.TB, db *gorm.DB, deliver Deliver, opts ...Option) { Hammer(t, db, deliver, opts...) },
	"CrashPoints": CrashPoints,
}

// Code under test that misbehaves fails the test with one sentence, soon, and leaves nothing running.
func TestMisbehavingDeliveries(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	fine := correct["Do"](t)
	tests := map[string]struct {
		deliver Deliver
		want    []string
	}{
		"hangs until its context ends": {
			func(ctx context.Context, _ *gorm.DB, _ int) (any, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			},
			[]string{"event 0 had not returned after 3s", "trial_test.go", "a limit"},
		},
		"hangs for ever, in its transaction": {
			func(_ context.Context, db *gorm.DB, event int) (any, error) {
				return idempotency.Do(db, "shop", eventID(event), nil, func(tx *gorm.DB) error {
					<-over
					return pay(event)(tx)
				})
			},
			[]string{"event 0 had not returned after 3s", "trial_test.go", "ctx.Done()"},
		},
		"hangs in the server, whatever its context": {
			func(_ context.Context, db *gorm.DB, event int) (any, error) {
				return idempotency.Do(db, "shop", eventID(event), nil, func(tx *gorm.DB) error {
					if err := pay(event)(tx); err != nil {
						return err
					}
					return tx.WithContext(context.Background()).Exec("SELECT pg_sleep(1000)").Error
				})
			},
			[]string{"event 0 had not returned after 3s", "trial_test.go"},
		},
		"panics": {
			func(_ context.Context, db *gorm.DB, event int) (any, error) {
				return idempotency.Do(db, "shop", eventID(event), nil, func(*gorm.DB) error { panic("no stock") })
			},
			[]string{"event 0 panicked", "trial_test.go", "no stock"},
		},
		"calls FailNow": {
			func(_ context.Context, db *gorm.DB, event int) (any, error) {
				return idempotency.Do(db, "shop", eventID(event), nil, func(*gorm.DB) error {
					newFakeTest().Fatalf("it went wrong")
					return nil
				})
			},
			[]string{"event 0 left its goroutine", "return an error"},
		},
		"leaves a goroutine": {
			func(ctx context.Context, db *gorm.DB, event int) (any, error) {
				go func() { <-over }()
				return fine(ctx, db, event)
			},
			[]string{"a goroutine of the delivery is still running", "trial_test.go"},
		},
		"fails": {
			func(context.Context, *gorm.DB, int) (any, error) { return nil, errTry },
			[]string{"event 0, delivered for the first time, failed: try again"},
		},
		"fails at a replay": {
			func(ctx context.Context, db *gorm.DB, event int) (any, error) {
				result, err := idempotency.Do(db, "shop", eventID(event), nil, pay(event))
				if err == nil && result.Replayed {
					return nil, errTry
				}
				return result, err
			},
			[]string{"event 0, delivered again, failed: try again"},
		},
		"goes on after a statement that failed": {
			func(_ context.Context, db *gorm.DB, event int) (any, error) {
				return idempotency.Do(db, "shop", eventID(event), nil, func(tx *gorm.DB) error {
					_ = tx.Exec("INSERT INTO nowhere VALUES (1)").Error
					return pay(event)(tx)
				})
			},
			[]string{"event 0, delivered for the first time, failed", "25P02", "the handler went on without its error", "tx.Transaction"},
		},
		"does nothing": {
			func(context.Context, *gorm.DB, int) (any, error) { return nil, nil },
			[]string{"claimed no key"},
		},
	}
	for tool, use := range tools {
		for name, test := range tests {
			t.Run(tool+"/"+name, func(t *testing.T) {
				t.Parallel()
				db := openShop(t)
				requireFailure(t, func(fake *fakeTest) { use(fake, db, test.deliver, WithTimeout(timeoutOf(name))) }, test.want...)
				requireNothingLeft(t, db)
			})
		}
	}
}

// timeoutOf is longer than it takes to reach what hangs, and elsewhere longer than anything takes.
func timeoutOf(name string) time.Duration {
	if strings.HasPrefix(name, "hangs") {
		return 3 * time.Second
	}
	return time.Minute
}

// requireNothingLeft fails unless schema and triggers are gone, and every session but that of db itself.
func requireNothingLeft(t *testing.T, db *gorm.DB) {
	t.Helper()
	var left string
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		err := db.Raw(`SELECT
			(SELECT coalesce(string_agg(nspname, ' '), '') FROM pg_namespace WHERE nspname = 'gormtest') ||
			(SELECT coalesce(string_agg(tgname, ' '), '') FROM pg_trigger WHERE tgname LIKE 'gormtest%') ||
			(SELECT coalesce(string_agg(state || ' ' || query, '; '), '') FROM pg_stat_activity
			 WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle')`).Scan(&left).Error
		if err != nil {
			t.Fatal(err)
		}
		if left == "" {
			return
		}
	}
	t.Errorf("left behind: %s", left)
}

// An event that hangs in the middle of the storm ends it.
func TestStormEndsWithTheFirstFault(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	fine := correct["Do"](t)
	db := openShop(t)
	requireFailure(t, func(test *fakeTest) {
		Hammer(test, db, func(ctx context.Context, db *gorm.DB, event int) (any, error) {
			if event > 0 {
				panic("no stock")
			}
			return fine(ctx, db, event)
		})
	}, "panicked", "no stock")
	requireNothingLeft(t, db)
}

func TestStormDeliversAgainWhatWasRefused(t *testing.T) {
	t.Parallel()
	db := openShop(t)
	const deliveries = 30
	var met atomic.Int64
	report := Hammer(t, db, func(_ context.Context, db *gorm.DB, event int) (any, error) {
		if event == 1 && met.Add(1) <= deliveries { // as long as the storm goes on
			return nil, errTry
		}
		return idempotency.Do(db, "shop", eventID(event), nil, pay(event), idempotency.WithWait(0))
	}, WithEvents(2), WithDeliveries(deliveries))
	if want := (HammerReport{Deliveries: 2 + 2*deliveries + 1 + 2, Ran: 2, Keys: 2, Refused: deliveries}); report != want {
		t.Errorf("report %+v, want %+v", report, want)
	}
	var paid int64
	if err := db.Model(&payment{}).Count(&paid).Error; err != nil || paid != 2 {
		t.Errorf("%d payments, %v, want 2", paid, err)
	}
}

// What cannot be tried at all is said before anything is delivered.
func TestUnusableInput(t *testing.T) {
	t.Parallel()
	unwanted := func(context.Context, *gorm.DB, int) (any, error) {
		t.Error("something was delivered")
		return nil, nil
	}
	gone := openShop(t)
	if pool, err := gone.DB(); err != nil || pool.Close() != nil {
		t.Fatal(err)
	}
	broken := openShop(t)
	_ = broken.AddError(errTry)
	unregistered, err := gorm.Open(postgres.Open(DSN(t)), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		t.Fatal(err)
	}
	closeAfter(t, unregistered)
	noTable := openShop(t)
	if err := noTable.Migrator().DropTable(&idempotency.IdempotencyKey{}); err != nil {
		t.Fatal(err)
	}
	inUse := openShop(t)
	if err := inUse.Exec("CREATE SCHEMA gormtest").Error; err != nil {
		t.Fatal(err)
	}
	good := openShop(t)
	tests := map[string]struct {
		db      *gorm.DB
		deliver Deliver
		opts    []Option
		want    []string
	}{
		"no handle":                       {db: nil, want: []string{"the handle is nil"}},
		"a handle of nobody's":            {db: &gorm.DB{}, want: []string{"gorm.Open did not make it"}},
		"a pool that is closed":           {db: gone, want: []string{"closed"}},
		"a handle with an error":          {db: broken, want: []string{"carries an error", "try again"}},
		"no plugin":                       {db: unregistered, want: []string{"not registered"}},
		"no table of keys":                {db: noTable, want: []string{"idempotency_keys"}},
		"a database that is taken":        {db: inUse, want: []string{"schema gormtest", "each test its own"}},
		"too few events":                  {db: good, opts: []Option{WithEvents(1)}, want: []string{"WithEvents(1)"}},
		"too few deliveries":              {db: good, opts: []Option{WithDeliveries(-1)}, want: []string{"WithDeliveries(-1)"}},
		"no concurrency":                  {db: good, opts: []Option{WithConcurrency(0)}, want: []string{"WithConcurrency(0)"}},
		"no time":                         {db: good, opts: []Option{WithTimeout(0)}, want: []string{"WithTimeout(0s)"}},
		"an exempt header without a name": {db: good, opts: []Option{WithExemptHeaders("X-Request-Id", "")}, want: []string{"WithExemptHeaders"}},
		"an exempt table that is not there": {
			db: good, opts: []Option{nil, WithExempt("auditz")}, want: []string{"WithExempt", `"auditz"`},
		},
	}
	for tool, use := range tools {
		for name, test := range tests {
			t.Run(tool+"/"+name, func(t *testing.T) {
				if test.deliver == nil {
					test.deliver = unwanted
				}
				requireFailure(t, func(fake *fakeTest) { use(fake, test.db, test.deliver, test.opts...) }, test.want...)
			})
		}
		t.Run(tool+"/no code under test", func(t *testing.T) {
			requireFailure(t, func(fake *fakeTest) { use(fake, good, nil) }, "the Deliver is nil")
		})
		t.Run(tool+"/a transaction", func(t *testing.T) {
			tx := good.Begin()
			defer tx.Rollback()
			requireFailure(t, func(fake *fakeTest) { use(fake, tx, unwanted) }, "in a transaction")
		})
	}
	t.Run("Record", func(t *testing.T) {
		requireFailure(t, func(fake *fakeTest) { Record(fake, nil) }, "the handle is nil")
		requireFailure(t, func(fake *fakeTest) { Record(fake, good, WithEvents(0)) }, "WithEvents(0)")
	})
}

func TestRoleWithoutRights(t *testing.T) {
	t.Parallel()
	db := openShop(t)
	role := "weak_" + strings.ToLower(newName())
	for _, statement := range []string{
		"CREATE ROLE %s", "GRANT ALL ON ALL TABLES IN SCHEMA public TO %s",
	} {
		if err := db.Exec(fmt.Sprintf(statement, role)).Error; err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		db.Exec("RESET ROLE; DROP OWNED BY " + role + "; DROP ROLE " + role)
	})
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	var dsn string
	if err := pool.QueryRow("SELECT current_database()").Scan(&dsn); err != nil {
		t.Fatal(err)
	}
	config := currentServer(t).base.configFor(dsn)
	config.RuntimeParams["role"] = role
	weak := openConfig(t, config)
	requireFailure(t, func(test *fakeTest) { Hammer(test, weak, correct["Do"](t)) }, "may not create a schema")
	for _, use := range tools { // a handler may write under a role that knows nothing of the journal
		use(t, db, func(_ context.Context, db *gorm.DB, event int) (any, error) {
			return idempotency.Do(db, "shop", eventID(event), nil, func(tx *gorm.DB) error {
				if err := tx.Exec("SET LOCAL ROLE " + role).Error; err != nil {
					return err
				}
				return sell(tx)
			})
		}, WithEvents(2))
		execAll(t, db, "TRUNCATE idempotency_keys")
	}
	requireNothingLeft(t, db)
}

func TestCodeThatPassesTheHandleBy(t *testing.T) {
	t.Parallel()
	db := openShop(t)
	for tool, use := range tools {
		requireFailure(t, func(test *fakeTest) {
			use(test, db, func(_ context.Context, _ *gorm.DB, event int) (any, error) {
				return idempotency.Do(db, "shop", tool+eventID(event), nil, pay(event))
			})
		}, "past the handle")
	}
}

// What is exempt may change at each delivery. What else does may not.
func TestExemptTables(t *testing.T) {
	t.Parallel()
	log := wrong["a write after the call, at a replay too"].deliver(t)
	for _, use := range tools {
		use(t, openShop(t), log, WithExempt("audits"))
		test := newFakeTest()
		test.run(func() { use(test, openShop(t), log, WithExempt("payments", "public.stocks")) })
		requireFound(t, test, []string{"audits"})
	}
}

// Middleware may set a header to something else each time. Nothing is exempt unless it is named.
func TestExemptHeaders(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	deliver := Serve(func(db *gorm.DB) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Request-ID", fmt.Sprint(requests.Add(1)))
			w.Header().Set("Date", time.Now().String())
			_, err := idempotency.Do(db, "shop", r.Header.Get("Event-Id"), nil, func(tx *gorm.DB) error { return sell(tx) })
			if err != nil {
				http.Error(w, "try again", http.StatusServiceUnavailable)
			}
		})
	}, func(event int) *http.Request {
		r, _ := http.NewRequest(http.MethodPost, "/hooks", http.NoBody)
		r.Header.Set("Event-Id", eventID(event))
		return r
	})
	for _, use := range tools {
		use(t, openShop(t), deliver, WithExemptHeaders("x-request-id"))
		requireFailure(t, func(test *fakeTest) { use(test, openShop(t), deliver, WithExemptHeaders("X-Trace")) },
			"answered differently", "X-Request-Id:", "WithExemptHeaders")
	}
}

func TestAnswersThatDiffer(t *testing.T) {
	t.Parallel()
	result := &idempotency.Result{Status: 200, Header: map[string][]string{"A": {"1"}, "B": {"2"}}, Body: []byte("x")}
	replay := &idempotency.Result{
		Status: 200, Header: map[string][]string{"B": {"2"}, "A": {"1"}}, Body: []byte("x"), Replayed: true, ClaimedAt: time.Now(),
	}
	if answerOf(result) != answerOf(replay) {
		t.Errorf("%q, %q", answerOf(result), answerOf(replay))
	}
	answers := []any{
		nil, result, &idempotency.Result{Status: 201, Header: result.Header, Body: result.Body}, &idempotency.Result{Status: 200, Body: result.Body},
		&idempotency.Result{Status: 200, Header: result.Header, Body: []byte("y")}, []byte("bytes"), "text", map[string]int{"a": 1}, func() {},
		errors.New("an error as an answer"),
	}
	seen := make(map[answer]int)
	for i, value := range answers {
		if other, twice := seen[answerOf(value)]; twice {
			t.Errorf("answers %d and %d are the same: %q", i, other, answerOf(value))
		}
		seen[answerOf(value)] = i
	}
	if got := answer(`{"at": 17}`).against(`{"at": 18}`); !strings.Contains(got, "byte 8") {
		t.Error(got)
	}
	long := answer("200 Content-Type: [\"application/json\"] X-Request-Id: [\"17\"] and more, so much that it is cut")
	if got := long.near(53); got != `… ["application/json"] X-Request-Id: ["17"] and more, so much that it is cut` {
		t.Errorf("%q", got)
	}
	if got := answer("abc").against("ab"); !strings.Contains(got, "byte 2") {
		t.Error(got)
	}
}
