package gormtest

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"
	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
)

// runMock runs a test that uses a mock, to its end, and returns it with its failures.
func runMock(test func(db *gorm.DB, mock *Mock)) *fakeTest {
	f := newFakeTest()
	f.run(func() { test(NewMock(f)) })
	return f
}

func TestMockNeedsNoDatabase(t *testing.T) {
	t.Parallel()
	db, mock := NewMock(t)
	claim := Expect(mock).Claim("stripe", "evt_1")
	won := claim.Won()
	mock.ExpectExec(`INSERT INTO "orders"`).WithArgs("o1").WillReturnResult(sqlmock.NewResult(0, 1))
	won.Answers(201, map[string]string{"id": "o1"}).Commits()
	claim.Replayed(201, map[string]string{"id": "o1"})
	claim.InFlight()
	claim.Mismatch()

	deliver := func() (*idempotency.Result, error) {
		return idempotency.Do(db, "stripe", "evt_1", payload, insertsOrder(func(tx *gorm.DB) error {
			return idempotency.Respond(tx, 201, map[string]string{"id": "o1"})
		}))
	}
	for i, want := range []string{"<nil>", "<nil>", idempotency.ErrInFlight.Error(), idempotency.ErrDigestMismatch.Error()} {
		if _, err := deliver(); !strings.HasPrefix(fmt.Sprint(err), want) {
			t.Errorf("delivery %d returns %v, want %v", i, err, want)
		}
	}
}

// What a test expected in vain fails it, and the failure says what that means, and what came instead.
func TestMockSaysWhatIsLeft(t *testing.T) {
	t.Parallel()
	deliver := func(db *gorm.DB, handler func(tx *gorm.DB) error) {
		_, _ = idempotency.Do(db, "stripe", "evt_1", payload, handler)
	}
	respond := func(tx *gorm.DB) error { return idempotency.Respond(tx, 200, json.RawMessage(`{"total":13}`)) }
	for _, test := range []struct {
		name string
		test func(db *gorm.DB, mock *Mock)
		want []string
	}{
		{"nothing was delivered", func(_ *gorm.DB, mock *Mock) {
			Expect(mock).Claim("stripe", "evt_1").Won().Commits()
		}, []string{"a transaction was not begun"}},
		{"the handler failed", func(db *gorm.DB, mock *Mock) {
			Expect(mock).Claim("stripe", "evt_1").Won().Commits()
			deliver(db, func(*gorm.DB) error { return errHandler })
		}, []string{"a transaction was not committed", "ExpectedCommit"}},
		{"the handler succeeded", func(db *gorm.DB, mock *Mock) {
			Expect(mock).Claim("stripe", "evt_1").Won().RollsBack()
			deliver(db, nothing)
		}, []string{"a transaction was not rolled back", "ExpectedRollback"}},
		{"the handler did not respond", func(db *gorm.DB, mock *Mock) {
			Expect(mock).Claim("stripe", "evt_1").Won().Answers(200, map[string]int{"total": 12}).Commits()
			deliver(db, nothing)
		}, []string{"an answer was not stored", "stripe", "evt_1", `JSON equal to {"total":12}`}},
		{"another answer", func(db *gorm.DB, mock *Mock) {
			Expect(mock).Claim("stripe", "evt_1").Won().Answers(200, map[string]int{"total": 12}).Commits()
			deliver(db, respond)
		}, []string{"an answer was not stored", `the answer's body is {"total":13}, want JSON equal to {"total":12}`}},
		{"another answer, to the byte", func(db *gorm.DB, mock *Mock) {
			Expect(mock).Claim("stripe", "evt_1").Won().Answers(200, []byte(`{"total": 13}`)).Commits()
			deliver(db, respond)
		}, []string{`the answer's body is {"total":13}, want exactly {"total": 13}`}},
		{"an answer that is not printable", func(db *gorm.DB, mock *Mock) {
			Expect(mock).Claim("stripe", "evt_1").Won().AnswersRaw(200, nil, nil).Commits()
			deliver(db, func(tx *gorm.DB) error { return idempotency.RespondRaw(tx, 200, nil, []byte("\xff\n")) })
		}, []string{`the answer's body is "\xff\n", want no body`}},
		{"an answer that is long", func(db *gorm.DB, mock *Mock) {
			Expect(mock).Claim("stripe", "evt_1").Won().Answers(200, 1).Commits()
			deliver(db, func(tx *gorm.DB) error { return idempotency.Respond(tx, 200, strings.Repeat("a", 2000)) })
		}, []string{`… of 2002 bytes`}},
		{"another header", func(db *gorm.DB, mock *Mock) {
			Expect(mock).Claim("stripe", "evt_1").Won().AnswersRaw(200, map[string][]string{"A": {"1"}}, nil).Commits()
			deliver(db, func(tx *gorm.DB) error { return idempotency.RespondRaw(tx, 200, nil, nil) })
		}, []string{`the answer's header is {}, want JSON equal to {"A":["1"]}`}},
		{"another payload", func(db *gorm.DB, mock *Mock) {
			Expect(mock).Claim("stripe", "evt_1").WithBody([]byte("{}")).Won().Commits()
			deliver(db, nothing)
		}, []string{"a statement was not sent", "the payload that was delivered is not the one of WithBody", "the sha256 digest of the payload of WithBody"}},
		{"another digest", func(db *gorm.DB, mock *Mock) {
			Expect(mock).WithConfig(idempotency.Config{Digest: idempotency.JSONDigest("/a")}).Claim("stripe", "evt_1").Won().Commits()
			deliver(db, nothing)
		}, []string{`the digest of the payload is not a digest by json["/a"]`, "WithConfig"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			failures := runMock(test.test).errors
			if len(failures) != 1 {
				t.Fatalf("%d failures, want 1: %q", len(failures), failures)
			}
			for _, want := range append(test.want, "gormtest: the code under test did not do all that the test expects") {
				if !strings.Contains(failures[0], want) {
					t.Errorf("the failure does not say %q:\n%s", want, failures[0])
				}
			}
		})
	}
}

// A write on the outer handle, which would survive the handler's rollback, begins a transaction that nobody expects.
func TestMockFindsWritesOutside(t *testing.T) {
	t.Parallel()
	f := runMock(func(db *gorm.DB, mock *Mock) {
		won := Expect(mock).Claim("stripe", "evt_1").Won()
		mock.ExpectExec(`INSERT INTO "orders"`).WillReturnResult(sqlmock.NewResult(0, 1))
		won.Commits()
		_, err := idempotency.Do(db, "stripe", "evt_1", payload, func(*gorm.DB) error { return db.Create(&order{ID: "o1"}).Error })
		if err == nil || !strings.Contains(err.Error(), "call to database transaction Begin, was not expected") {
			t.Errorf("the call returns %v", err)
		}
	})
	if len(f.errors) != 1 {
		t.Errorf("%d failures, want 1: %q", len(f.errors), f.errors)
	}
}

// A test whose expectations were met passes, whatever arguments were tried on the way, and its handle is closed.
func TestMockIsClosed(t *testing.T) {
	t.Parallel()
	var closed *gorm.DB
	f := runMock(func(db *gorm.DB, mock *Mock) {
		closed = db
		mock.MatchExpectationsInOrder(false)
		Expect(mock).Claim("stripe", "evt_1").WithBody([]byte("{}")).Won()
		Expect(mock).Claim("stripe", "evt_1").WithBody(payload).Won().Commits()
		mock.ExpectRollback()
		for _, body := range [][]byte{payload, []byte("{}")} {
			_, _ = idempotency.Do(db, "stripe", "evt_1", body, func(*gorm.DB) error {
				if string(body) == "{}" {
					return errHandler
				}
				return nil
			})
		}
	})
	if len(f.errors) > 0 {
		t.Errorf("it failed: %q", f.errors)
	}
	if err := closed.Exec("SELECT 1").Error; err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("the handle is open: %v", err)
	}
}
