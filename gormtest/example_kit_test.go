package gormtest_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
)

// Sale is what the examples' handlers write.
type Sale struct {
	ID    string `gorm:"primaryKey"`
	Event string
}

// sellOne is a handler as it should be.
func sellOne(_ context.Context, db *gorm.DB, event int) (any, error) {
	f := gormtest.Stripe(event, 1)
	return idempotency.Do(db, f.Source, f.EventID, f.Body, func(tx *gorm.DB) error {
		if err := tx.Create(&Sale{ID: f.EventID}).Error; err != nil {
			return err
		}
		return idempotency.Respond(tx, http.StatusCreated, map[string]string{"sale": f.EventID})
	})
}

// In a test of yours t is the *testing.T, and the deliver function calls your handler.
func ExampleHammer() {
	t := &exampleTest{}
	defer t.end()
	report := gormtest.Hammer(t, openSales(t), sellOne)
	fmt.Println(report.Ran, "runs,", report.Keys, "keys,", len(t.failures), "failures")
	// Output: 20 runs, 20 keys, 0 failures
}

// The handler answers with the time, which is another one at each delivery.
func ExampleHammer_answerOfTheClock() {
	t := &exampleTest{}
	defer t.end()
	gormtest.Hammer(t, openSales(t), func(ctx context.Context, db *gorm.DB, event int) (any, error) {
		_, err := sellOne(ctx, db, event)
		return time.Now().String(), err
	})
	fmt.Println(t.finding())
	// Output: event 0 was answered differently when it was delivered again
}

// The handler's repository writes on the handle of the application: what it wrote survives the crash.
func ExampleCrashPoints() {
	t := &exampleTest{}
	defer t.end()
	gormtest.CrashPoints(t, openSales(t), func(ctx context.Context, db *gorm.DB, event int) (any, error) {
		return idempotency.Do(db, "shop", fmt.Sprint(event), nil, func(*gorm.DB) error {
			return db.WithContext(ctx).Exec("INSERT INTO sales SELECT md5(random()::text), ?", fmt.Sprint(event)).Error
		})
	})
	fmt.Println(strings.Contains(t.failures[0], "outside of the transaction that holds its key"))
	// Output: true
}

// The same mistake is seen at a single delivery by who looks at the driver.
func ExampleRecord() {
	t := &exampleTest{}
	defer t.end()
	recorder := gormtest.Record(t, openSales(t))
	db, ctx := recorder.DB(), context.Background()
	_, err := idempotency.Do(db, "shop", "evt_1", nil, func(*gorm.DB) error {
		return db.WithContext(ctx).Create(&Sale{ID: "A-1"}).Error
	})
	fmt.Println(err, t.finding())
	// Output: <nil> while the handler of shop evt_1 is at work, this runs on another connection
}

func ExampleAgeKeys() {
	t := &exampleTest{}
	defer t.end()
	db := openSales(t)
	deliver := func() (*idempotency.Result, error) {
		return idempotency.Do(db, "shop", "evt_1", nil, func(*gorm.DB) error { return nil })
	}
	_, _ = deliver()
	result, err := deliver()
	gormtest.RequireReplayed(t, result, err)

	gormtest.AgeKeys(t, db, 31*24*time.Hour) // the retention is 30 days
	sweeper, _ := idempotency.NewSweeper(db, idempotency.SweeperConfig{})
	swept, _ := sweeper.SweepOnce(context.Background())
	gormtest.RequireNoKey(t, db, "shop", "evt_1")
	fmt.Println(swept, "swept,", len(t.failures), "failures")
	// Output: 1 swept, 0 failures
}

func openSales(t testing.TB) *gorm.DB {
	db := gormtest.Open(t)
	if err := db.AutoMigrate(&Sale{}); err != nil {
		panic(err)
	}
	return db
}

// exampleTest stands in for the *testing.T that an example does not have.
type exampleTest struct {
	testing.TB // nil: only what is below may be called

	failures []string
	cleanups []func()
}

func (t *exampleTest) Helper()                  {}
func (t *exampleTest) Name() string             { return "example" }
func (t *exampleTest) Context() context.Context { return context.Background() }
func (t *exampleTest) Cleanup(fn func())        { t.cleanups = append(t.cleanups, fn) }
func (t *exampleTest) Logf(string, ...any)      {}

func (t *exampleTest) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func (t *exampleTest) Errorf(format string, args ...any) {
	t.failures = append(t.failures, strings.TrimPrefix(fmt.Sprintf(format, args...), "gormtest: "))
}

// Output is where the recorder writes its failures, each behind the line that it is about.
func (t *exampleTest) Output() io.Writer { return t }
func (t *exampleTest) Fail()             {}

func (t *exampleTest) Write(text []byte) (int, error) {
	_, failure, _ := strings.Cut(string(text), "gormtest: ")
	t.failures = append(t.failures, failure)
	return len(text), nil
}

// finding is what the first failure says, up to what differs between machines.
func (t *exampleTest) finding() string {
	found, _, _ := strings.Cut(t.failures[0], ":")
	return found
}

// end runs the cleanups, as a test does: the last one first.
func (t *exampleTest) end() {
	for len(t.cleanups) > 0 {
		last := len(t.cleanups) - 1
		cleanup := t.cleanups[last]
		t.cleanups = t.cleanups[:last]
		cleanup()
	}
}
