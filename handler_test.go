package idempotency_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
)

// The documented handler, put to the same tests that gormtest offers for anybody's.
func TestDocumentedHandlerKeepsThePromise(t *testing.T) {
	t.Parallel()
	deliver := gormtest.Serve(
		func(db *gorm.DB) http.Handler { return webhook(idempotency.Wrap(db)) },
		func(event int) *http.Request {
			body := fmt.Sprintf(`{"id":"evt_%d","order":{"id":"A-%[1]d","total":42}}`, event)
			return httptest.NewRequest(http.MethodPost, "/webhook", strings.NewReader(body))
		},
	)
	t.Run("storm", func(t *testing.T) {
		t.Parallel()
		if report := gormtest.Hammer(t, openOrders(t), deliver); report.Keys != 20 {
			t.Errorf("%+v", report)
		}
	})
	t.Run("crashes", func(t *testing.T) {
		t.Parallel()
		gormtest.CrashPoints(t, openOrders(t), deliver)
	})
	t.Run("statements", func(t *testing.T) {
		t.Parallel()
		recorder := gormtest.Record(t, openOrders(t))
		if _, err := deliver(t.Context(), recorder.DB(), 0); err != nil {
			t.Error(err)
		}
		gormtest.RequireKey(t, recorder.DB(), "shop", "evt_0")
	})
}

func openOrders(t testing.TB) *gorm.DB {
	t.Helper()
	db := gormtest.Open(t)
	if err := db.AutoMigrate(&Order{}); err != nil {
		t.Fatal(err)
	}
	return db
}
