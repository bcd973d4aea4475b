package gormtest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
)

func TestRecorderPassesCorrectHandlers(t *testing.T) {
	t.Parallel()
	for name, deliver := range correct {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, deliver := Record(t, openShop(t)), deliver(t)
			for range 2 {
				if _, err := deliver(t.Context(), r.DB(), 0); err != nil {
					t.Error(err)
				}
			}
			if len(r.Statements()) == 0 {
				t.Error("no statements")
			}
		})
	}
}

func TestRecorderFindsFaults(t *testing.T) {
	t.Parallel()
	for name, fault := range wrong {
		if fault.record == nil {
			continue // another tool's
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test := newFakeTest()
			test.run(func() {
				if _, err := fault.deliver(t)(t.Context(), Record(test, openShop(t)).DB(), 0); err != nil {
					t.Error(err)
				}
			})
			requireFound(t, test, fault.record)
		})
	}
}

// A loop of the same mistake is told once, and an exempt table not at all.
func TestRecorderSaysEachMistakeOnce(t *testing.T) {
	t.Parallel()
	careless := func(ctx context.Context, db *gorm.DB) {
		_, err := idempotency.Do(db, "shop", "evt", nil, func(*gorm.DB) error {
			for i := range 3 { // another text each time
				insert := fmt.Sprintf("INSERT INTO audits (text) VALUES ('%d')", i)
				if err := db.WithContext(ctx).Exec(insert).Error; err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	test := newFakeTest()
	test.run(func() { careless(t.Context(), Record(test, openShop(t)).DB()) })
	if len(test.errors) != 1 {
		t.Errorf("%d failures: %q", len(test.errors), test.errors)
	}
	requireFound(t, test, []string{"INSERT INTO audits (text) VALUES ('0')"})
	if !strings.HasPrefix(test.errors[0], "recorder_test.go:") {
		t.Errorf("%q begins with another line than the one that writes", test.errors[0])
	}
	careless(t.Context(), Record(t, openShop(t), WithExempt("public.audits")).DB())
}

// The planted fault: an e-mail that is sent from inside of the handler.
func TestRecorderListsCallsUnderAKey(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(server.Close)
	mail := func(r *Recorder) {
		client := &http.Client{Transport: r.Transport(server.Client().Transport)}
		send := func() error {
			answer, err := client.Post(server.URL+"/send?token=secret", "text/plain", http.NoBody)
			if err != nil {
				return err
			}
			return answer.Body.Close()
		}
		if err := send(); err != nil { // before the call: nobody's key is held
			t.Error(err)
		}
		_, err := idempotency.Do(r.DB(), "shop", "evt", nil, func(tx *gorm.DB) error {
			if err := idempotency.AfterCommit(tx, func(context.Context) { _ = send() }); err != nil {
				return err
			}
			return send()
		})
		if err != nil {
			t.Error(err)
		}
	}
	test := newFakeTest()
	test.run(func() {
		r := Record(test, openShop(t))
		mail(r)
		calls := r.Calls()
		if len(calls) != 1 || calls[0].URL != server.URL+"/send" || !slices.Equal(calls[0].Keys, []string{"shop evt"}) ||
			!strings.Contains(calls[0].Caller, "recorder_test.go") {
			t.Errorf("calls %+v, want the one inside of the handler", calls)
		}
	})
	requireFound(t, test, []string{"POST " + server.URL + "/send", "recorder_test.go", "AfterCommit"})
	if strings.Contains(strings.Join(test.errors, ""), "secret") {
		t.Errorf("%q tells the query", test.errors)
	}
	r := Record(t, openShop(t), WithExemptHosts("127.0.0.1"))
	mail(r)
	if len(r.Calls()) != 1 {
		t.Errorf("calls %+v: an exempt host's is listed too", r.Calls())
	}
}

func TestRecorderKnowsWhoseConnectionItIs(t *testing.T) {
	t.Parallel()
	r := Record(t, openShop(t))
	_, err := idempotency.Do(r.DB(), "shop", "evt", nil, func(tx *gorm.DB) error {
		var n int64
		if err := r.DB().Model(&payment{}).Count(&n).Error; err != nil { // a read is no fault
			return err
		}
		return pay(0)(tx)
	})
	if err != nil {
		t.Fatal(err)
	}
	var log []string
	for _, s := range r.Statements() {
		log = append(log, fmt.Sprint(s.Conn, " ", strings.Fields(s.Text)[0], " ", s.Beside))
	}
	want := []string{"1 BEGIN []", "1 INSERT []", "2 SELECT [shop evt]", "1 INSERT []", "1 UPDATE []", "1 UPDATE []", "1 COMMIT []"}
	if !slices.Equal(log, want) {
		t.Errorf("got  %q\nwant %q", log, want)
	}
}
