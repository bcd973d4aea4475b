package idempotency_test

import (
	"fmt"
	"testing"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
)

// Order is the effect of the examples' handlers.
type Order struct {
	ID    string `gorm:"primaryKey" json:"id"`
	Total int    `json:"total"`
}

// openDB gives the examples what an application has: a handle with the plugin, the table of keys, and tables of its own.
// The function returned closes it.
func openDB() (db *gorm.DB, done func()) { return openDBWith(idempotency.Config{}) }

func openDBWith(config idempotency.Config) (db *gorm.DB, done func()) {
	tb := &exampleTB{}
	db = open(tb, setup{config: config})
	if err := db.Migrator().DropTable(&order{}); err != nil {
		tb.Fatal(err)
	}
	if err := db.AutoMigrate(&Order{}); err != nil {
		tb.Fatal(err)
	}
	return db, tb.end
}

// exampleTB lets an example, which has no testing.TB, use the tests' kit.
type exampleTB struct {
	testing.TB // nil: only what is below may be called

	cleanups []func()
}

func (tb *exampleTB) Helper()           {}
func (tb *exampleTB) Cleanup(fn func()) { tb.cleanups = append(tb.cleanups, fn) }

func (tb *exampleTB) Fatal(args ...any)                 { panic(fmt.Sprint(args...)) }
func (tb *exampleTB) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (tb *exampleTB) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// end runs the cleanups, as a test does: the last one first.
func (tb *exampleTB) end() {
	for len(tb.cleanups) > 0 {
		last := len(tb.cleanups) - 1
		cleanup := tb.cleanups[last]
		tb.cleanups = tb.cleanups[:last]
		cleanup()
	}
}
