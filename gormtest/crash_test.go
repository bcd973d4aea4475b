package gormtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-idempotency/idempotency"
)

func TestCrashPointsPassCorrectHandlers(t *testing.T) {
	t.Parallel()
	for name, deliver := range correct {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			CrashPoints(t, openShop(t), deliver(t))
		})
	}
}

func TestCrashPointsFindFaults(t *testing.T) {
	t.Parallel()
	for name, fault := range wrong {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test := newFakeTest()
			test.run(func() { CrashPoints(test, openShop(t), fault.deliver(t)) })
			requireFound(t, test, fault.crash)
		})
	}
}

// What may be lost is named, and then it is no fault.
func TestCrashPointsPassWhatMayBeLost(t *testing.T) {
	t.Parallel()
	CrashPoints(t, openShop(t), afterCommit(t), WithExempt("audits"))
}

// A crash is the tool's doing: what GORM says about it does not bury what the test says. What it says otherwise is logged.
func TestCrashesAreNotLogged(t *testing.T) {
	t.Parallel()
	log := &errorLog{Interface: logger.Discard}
	deliver := correct["Do"](t)
	CrashPoints(t, openShop(t).Session(&gorm.Session{Logger: log}), deliver)
	if len(log.errors) > 0 {
		t.Errorf("logged %q", log.errors)
	}
	requireFailure(t, func(test *fakeTest) {
		CrashPoints(test, openShop(t).Session(&gorm.Session{Logger: log}), func(_ context.Context, db *gorm.DB, _ int) (any, error) {
			return nil, db.Exec("SELECT nonsense").Error
		})
	}, "nonsense")
	if len(log.errors) != 1 {
		t.Errorf("logged %q", log.errors)
	}
}

// errorLog keeps the statements' errors.
type errorLog struct {
	logger.Interface

	mu     sync.Mutex
	errors []string
}

func (l *errorLog) Trace(_ context.Context, _ time.Time, _ func() (string, int64), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.errors = append(l.errors, err.Error())
	}
}

// Two lines send the same text, and the first one is right.
func TestMessagesNameTheLineThatIsWrong(t *testing.T) {
	t.Parallel()
	var wrongLine string
	write := func(db *gorm.DB) error { return db.Create(&audit{Text: "paid"}).Error }
	test := newFakeTest()
	test.run(func() {
		CrashPoints(test, openShop(t), func(ctx context.Context, db *gorm.DB, event int) (any, error) {
			return idempotency.Do(db, "shop", eventID(event), nil, func(tx *gorm.DB) error {
				right, wrong := tx.Create(&audit{Text: "paid"}).Error, error(nil)
				wrongLine, wrong = caller(), db.WithContext(ctx).Create(&audit{Text: "paid"}).Error
				return errors.Join(right, wrong)
			})
		})
	})
	requireFound(t, test, []string{"at " + wrongLine})
	if strings.Contains(test.errors[0], " or ") {
		t.Error("it names another line too")
	}
	// A handle that was not given is told from the line that sends the same to one that was.
	db := openShop(t)
	requireFailure(t, func(test *fakeTest) {
		CrashPoints(test, db, func(ctx context.Context, given *gorm.DB, event int) (any, error) {
			return idempotency.Do(given, "shop", eventID(event), nil, func(tx *gorm.DB) error {
				return errors.Join(write(tx), write(db.WithContext(ctx)))
			})
		})
	}, "through a handle that the Deliver was not given")
	// Lines that can't be told apart are both named.
	requireFailure(t, func(test *fakeTest) {
		Hammer(test, openShop(t), func(_ context.Context, db *gorm.DB, event int) (any, error) {
			first := db.Create(&audit{Text: "paid"}).Error
			second := db.Create(&audit{Text: "paid"}).Error
			return nil, errors.Join(first, second, db.Connection(func(db *gorm.DB) error {
				_, err := idempotency.Do(db, "shop", eventID(event), nil, pay(event))
				return err
			}))
		})
	}, "INSERT: 2 rows of audits", "crash_test.go", " or ")
}

// A cause is told once, and five of them at most.
func TestMessagesAreShort(t *testing.T) {
	t.Parallel()
	requireFailure(t, func(test *fakeTest) {
		Hammer(test, openShop(t), func(_ context.Context, db *gorm.DB, event int) (any, error) {
			for i := range 9 {
				if err := db.Exec(fmt.Sprintf("INSERT INTO audits (text) VALUES ('%d')", i)).Error; err != nil {
					return nil, err
				}
			}
			return idempotency.Do(db, "shop", eventID(event), nil, pay(event))
		})
	}, "INSERT: 9 rows of audits, such as (10,0)")

	tr := &trial{}
	var changes []change
	for i := range 42 {
		changes = append(changes, change{table: "audits", operation: "INSERT", row: "(1)", statement: fmt.Sprintf("SELECT note(%d)", i)})
	}
	text := tr.describe(changes)
	if strings.Count(text, "SELECT note") != 5 || !strings.HasSuffix(text, "\n\tand 37 more") {
		t.Error(text)
	}
}
