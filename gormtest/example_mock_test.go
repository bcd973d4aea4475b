package gormtest_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
)

// Payment is what the examples of a mock write.
type Payment struct {
	ID    string `gorm:"primaryKey" json:"id"`
	Total int    `json:"total"`
}

// book is what these examples test.
func book(db *gorm.DB, event string, body []byte) (*idempotency.Result, error) {
	return idempotency.Do(db, "stripe", event, body, func(tx *gorm.DB) error {
		payment := Payment{ID: "pay_1", Total: 1200}
		if err := tx.Create(&payment).Error; err != nil {
			return err
		}
		return idempotency.Respond(tx, http.StatusCreated, payment)
	})
}

// A unit test of a delivery, and of the next one, without a database. What is expected in vain fails it in the end.
func ExampleNewMock() {
	_ = func(t *testing.T) {
		db, mock := gormtest.NewMock(t)
		payment := Payment{ID: "pay_1", Total: 1200}

		claim := gormtest.Expect(mock).Claim("stripe", "evt_1").Won()
		mock.ExpectExec(`INSERT INTO "payments"`).WithArgs("pay_1", 1200).WillReturnResult(sqlmock.NewResult(0, 1))
		claim.Answers(http.StatusCreated, payment).Commits()
		gormtest.Expect(mock).Claim("stripe", "evt_1").Replayed(http.StatusCreated, payment)

		for range 2 {
			if _, err := book(db, "evt_1", []byte(`{"id": "evt_1"}`)); err != nil {
				t.Error(err)
			}
		}
	}
}

// openMock is what an application's tests have already: a handle on a mock of their own.
func openMock() (*gorm.DB, sqlmock.Sqlmock) {
	pool, mock, err := sqlmock.New(sqlmock.QueryMatcherOption(sqlmock.QueryMatcherEqual))
	if err != nil {
		panic(err)
	}
	db, err := gorm.Open(postgres.New(postgres.Config{Conn: pool}), &gorm.Config{})
	if err != nil {
		panic(err)
	}
	if err := db.Use(idempotency.New(idempotency.Config{})); err != nil {
		panic(err)
	}
	return db, mock
}

// Any mock of go-sqlmock's will do, here one that compares texts. Nobody knows whether this COMMIT took place, so the next
// delivery finds out.
func ExampleExpect() {
	db, mock := openMock()
	claim := gormtest.Expect(mock).Claim("stripe", "evt_1").WithBody([]byte(`{"id": "evt_1"}`))

	won := claim.Won()
	mock.ExpectExec(`INSERT INTO "payments" ("id","total") VALUES ($1,$2)`).WithArgs("pay_1", 1200).WillReturnResult(sqlmock.NewResult(0, 1))
	won.Answers(http.StatusCreated, Payment{ID: "pay_1", Total: 1200}).FailsToCommit(errors.New("connection reset by peer"))
	claim.Replayed(http.StatusCreated, Payment{ID: "pay_1", Total: 1200})

	_, err := book(db, "evt_1", []byte(`{"id": "evt_1"}`))
	fmt.Println(errors.Is(err, idempotency.ErrOutcomeUnknown))
	result, err := book(db, "evt_1", []byte(`{"id": "evt_1"}`))
	fmt.Println(result.Replayed, string(result.Body), err)
	fmt.Println(mock.ExpectationsWereMet())
	// Output:
	// true
	// true {"id":"pay_1","total":1200} <nil>
	// <nil>
}

// In a transaction of the caller's, each delivery has a savepoint.
func ExampleExpectations_InTransaction() {
	db, mock := openMock()
	expect := gormtest.Expect(mock).InTransaction()

	mock.ExpectBegin()
	expect.Claim("stripe", "evt_1").Replayed(http.StatusOK, nil)
	expect.Claim("stripe", "evt_2").InFlight()
	mock.ExpectCommit()

	err := db.Transaction(func(tx *gorm.DB) error {
		for _, event := range []string{"evt_1", "evt_2"} {
			if _, err := book(tx, event, nil); err != nil {
				fmt.Println(err)
			}
		}
		return nil
	})
	fmt.Println(err, mock.ExpectationsWereMet())
	// Output:
	// idempotency: another delivery of this event is in flight: event "evt_2" of source "stripe"
	// <nil> <nil>
}

// A delivery inside another one's handler: a batch, whose events have keys of their own.
func ExampleExpectedHandler_Claim() {
	db, mock := openMock()

	batch := gormtest.Expect(mock).Claim("adyen", "batch_1").Won()
	batch.Claim("adyen", "evt_1").Won().Commits()
	batch.Claim("adyen", "evt_2").Replayed(http.StatusOK, nil)
	batch.Commits()

	_, err := idempotency.Do(db, "adyen", "batch_1", nil, func(tx *gorm.DB) error {
		for _, event := range []string{"evt_1", "evt_2"} {
			_, err := idempotency.Do(tx, "adyen", event, nil, func(*gorm.DB) error { return nil })
			if err != nil {
				return err
			}
		}
		return nil
	})
	fmt.Println(err, mock.ExpectationsWereMet())
	// Output: <nil> <nil>
}
