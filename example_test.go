package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
)

// A duplicate gets the first delivery's answer, and its handler does not run.
func ExampleDo() {
	db, done := openDB()
	defer done()
	payload := []byte(`{"id":"evt_1","order":"A-1","total":42}`)

	for range 2 {
		result, err := idempotency.Do(db, "shop", "evt_1", payload, func(tx *gorm.DB) error {
			fmt.Println("the handler runs")
			if err := tx.Create(&Order{ID: "A-1", Total: 42}).Error; err != nil {
				return err
			}
			return idempotency.Respond(tx, http.StatusCreated, map[string]string{"order": "A-1"})
		})
		if err != nil {
			panic(err)
		}
		fmt.Println(result.Status, string(result.Body), "replayed:", result.Replayed)
	}
	// Output:
	// the handler runs
	// 201 {"order":"A-1"} replayed: false
	// 201 {"order":"A-1"} replayed: true
}

// An event that comes back with another payload is refused, and changes nothing.
func ExampleDo_changedPayload() {
	db, done := openDB()
	defer done()
	deliver := func(payload string) error {
		_, err := idempotency.Do(db, "shop", "evt_1", []byte(payload), func(tx *gorm.DB) error {
			return tx.Create(&Order{ID: "A-1", Total: 42}).Error
		})
		return err
	}

	fmt.Println(deliver(`{"total":42}`))
	err := deliver(`{"total":4200}`)
	var mismatch *idempotency.DigestMismatchError
	if errors.As(err, &mismatch) {
		fmt.Println("refused:", mismatch.Source, mismatch.EventID, mismatch.Scheme)
	}
	// Output:
	// <nil>
	// refused: shop evt_1 sha256
}

// A handler that fails leaves nothing behind, and the next delivery runs it again.
func ExampleDo_failingHandler() {
	db, done := openDB()
	defer done()
	available := false
	deliver := func() error {
		_, err := idempotency.Do(db, "shop", "evt_1", nil, func(tx *gorm.DB) error {
			if err := tx.Create(&Order{ID: "A-1"}).Error; err != nil {
				return err
			}
			if !available {
				return errors.New("out of stock")
			}
			return nil
		})
		return err
	}

	fmt.Println(deliver())
	available = true
	fmt.Println(deliver())
	var orders int64
	db.Model(&Order{}).Count(&orders)
	fmt.Println("orders:", orders)
	// Output:
	// out of stock
	// <nil>
	// orders: 1
}

// In a transaction of the caller's the event is a part of it: it takes effect when that commits, and not at all if not.
func ExampleDo_joined() {
	db, done := openDB()
	defer done()
	place := func(tx *gorm.DB) error { return tx.Create(&Order{ID: "A-1"}).Error }

	err := db.Transaction(func(tx *gorm.DB) error {
		result, err := idempotency.Do(tx, "shop", "evt_1", nil, place)
		if err != nil {
			return err
		}
		fmt.Println("provisional:", result.Provisional)
		return errors.New("something else failed")
	})
	fmt.Println(err)

	result, err := idempotency.Do(db, "shop", "evt_1", nil, place)
	fmt.Println("replayed:", result.Replayed, "error:", err)
	// Output:
	// provisional: true
	// something else failed
	// replayed: false error: <nil>
}

// The value that the handler returns is the answer; every delivery gets it.
func ExampleDoValue() {
	db, done := openDB()
	defer done()

	for range 2 {
		placed, result, err := idempotency.DoValue(db, "shop", "evt_1", nil, func(tx *gorm.DB) (Order, error) {
			placed := Order{ID: "A-1", Total: 42}
			return placed, tx.Create(&placed).Error
		})
		if err != nil {
			panic(err)
		}
		fmt.Println(placed.ID, placed.Total, "replayed:", result.Replayed)
	}
	// Output:
	// A-1 42 replayed: false
	// A-1 42 replayed: true
}

// A DB has Do as a method. It has none of GORM's own, which would leave the handler's transaction.
func ExampleDB_Idempotent() {
	db, done := openDB()
	defer done()
	keys := idempotency.Wrap(db)

	result, err := keys.WithContext(context.Background()).Idempotent("shop", "evt_1", nil, func(tx *gorm.DB) error {
		return tx.Create(&Order{ID: "A-1"}).Error
	})
	fmt.Println(result.Status, err)
	// Output: 200 <nil>
}

// The body is JSON; a json.RawMessage is kept to the byte.
func ExampleRespond() {
	db, done := openDB()
	defer done()

	for range 2 {
		result, err := idempotency.Do(db, "shop", "evt_1", nil, func(tx *gorm.DB) error {
			return idempotency.Respond(tx, http.StatusOK, json.RawMessage(`{"total": 42.00}`))
		})
		if err != nil {
			panic(err)
		}
		fmt.Println(result.Header["Content-Type"], string(result.Body))
	}
	// Output:
	// [application/json] {"total": 42.00}
	// [application/json] {"total": 42.00}
}

// Headers and any bytes are kept as they are.
func ExampleRespondRaw() {
	db, done := openDB()
	defer done()

	for range 2 {
		result, err := idempotency.Do(db, "shop", "evt_1", nil, func(tx *gorm.DB) error {
			header := http.Header{"Content-Type": {"text/csv"}, "Location": {"/orders/A-1"}}
			return idempotency.RespondRaw(tx, http.StatusCreated, header, []byte("id;total\r\nA-1;42\r\n"))
		})
		if err != nil {
			panic(err)
		}
		fmt.Printf("%d %v %q\n", result.Status, result.Header, result.Body)
	}
	// Output:
	// 201 map[Content-Type:[text/csv] Location:[/orders/A-1]] "id;total\r\nA-1;42\r\n"
	// 201 map[Content-Type:[text/csv] Location:[/orders/A-1]] "id;total\r\nA-1;42\r\n"
}

// Decode reads the answer, the first one or a replay.
func ExampleResult_Decode() {
	db, done := openDB()
	defer done()
	result, err := idempotency.Do(db, "shop", "evt_1", nil, func(tx *gorm.DB) error {
		return idempotency.Respond(tx, http.StatusOK, Order{ID: "A-1", Total: 42})
	})
	if err != nil {
		panic(err)
	}

	var placed Order
	if err := result.Decode(&placed); err != nil {
		panic(err)
	}
	fmt.Println(placed.ID, placed.Total)
	// Output: A-1 42
}

// orders is a repository that is given a context and no transaction.
type orders struct{ db *gorm.DB }

func (o orders) Place(ctx context.Context, id string) error {
	return idempotency.FromContext(ctx, o.db).Create(&Order{ID: id}).Error
}

// A repository that is given a context works inside a handler, in its transaction, and outside of one.
func ExampleFromContext() {
	db, done := openDB()
	defer done()
	repository := orders{db}

	_, err := idempotency.Do(db, "shop", "evt_1", nil, func(tx *gorm.DB) error {
		if err := repository.Place(tx.Statement.Context, "A-1"); err != nil {
			return err
		}
		return errors.New("undone")
	})
	fmt.Println(err)
	fmt.Println(repository.Place(context.Background(), "A-2"))
	var ids []string
	db.Model(&Order{}).Pluck("id", &ids)
	fmt.Println(ids)
	// Output:
	// undone
	// <nil>
	// [A-2]
}

// A write that leaves the handler's transaction is refused. One that is meant to survive its rollback says so.
func ExampleWithoutScope() {
	db, done := openDB()
	defer done()

	_, err := idempotency.Do(db, "shop", "evt_1", nil, func(tx *gorm.DB) error {
		ctx := tx.Statement.Context
		err := db.WithContext(ctx).Create(&Order{ID: "slipped"}).Error // db where tx was meant
		fmt.Println("refused:", errors.Is(err, idempotency.ErrForeignWrite))

		audit := db.WithContext(idempotency.WithoutScope(ctx))
		if err := audit.Create(&Order{ID: "audit"}).Error; err != nil {
			return err
		}
		return errors.New("undone")
	})
	fmt.Println(err)
	var ids []string
	db.Model(&Order{}).Pluck("id", &ids)
	fmt.Println(ids)
	// Output:
	// refused: true
	// undone
	// [audit]
}

// What is outside of the database waits for the commit, and is not repeated by a duplicate.
func ExampleAfterCommit() {
	db, done := openDB()
	defer done()

	for range 2 {
		_, err := idempotency.Do(db, "shop", "evt_1", nil, func(tx *gorm.DB) error {
			if err := idempotency.AfterCommit(tx, func(context.Context) { fmt.Println("mail sent") }); err != nil {
				return err
			}
			fmt.Println("order placed")
			return tx.Create(&Order{ID: "A-1"}).Error
		})
		if err != nil {
			panic(err)
		}
	}
	// Output:
	// order placed
	// mail sent
}

// Lookup shows what an event was answered.
func ExampleLookup() {
	db, done := openDB()
	defer done()
	ctx := context.Background()
	_, err := idempotency.Do(db, "shop", "evt_1", nil, func(tx *gorm.DB) error {
		return idempotency.Respond(tx, http.StatusCreated, map[string]string{"order": "A-1"})
	})
	if err != nil {
		panic(err)
	}

	key, err := idempotency.Lookup(ctx, db, "shop", "evt_1")
	if err != nil {
		panic(err)
	}
	fmt.Println(*key.ResponseStatus, string(key.ResponseBody))
	_, err = idempotency.Lookup(ctx, db, "shop", "evt_2")
	fmt.Println(errors.Is(err, idempotency.ErrKeyNotFound))
	// Output:
	// 201 {"order": "A-1"}
	// true
}

// After an effect was undone by hand, the next delivery may have it again.
func ExampleForget() {
	db, done := openDB()
	defer done()
	deliver := func() {
		result, err := idempotency.Do(db, "shop", "evt_1", nil, func(tx *gorm.DB) error {
			return tx.Create(&Order{ID: "A-1"}).Error
		})
		if err != nil {
			panic(err)
		}
		fmt.Println("replayed:", result.Replayed)
	}

	deliver()
	err := db.Transaction(func(tx *gorm.DB) error {
		if err := tx.Delete(&Order{ID: "A-1"}).Error; err != nil {
			return err
		}
		return idempotency.Forget(context.Background(), tx, "shop", "evt_1")
	})
	fmt.Println(err)
	deliver()
	// Output:
	// replayed: false
	// <nil>
	// replayed: false
}

// Stripe counts the deliveries still to make inside the payload. A digest without that field, and without regard to order
// and white space, takes such deliveries for the same event, and none with another amount.
func ExampleJSONDigest() {
	db, done := openDBWith(idempotency.Config{Sources: map[string]idempotency.SourceConfig{
		"stripe": {Digest: idempotency.JSONDigest("/pending_webhooks")},
	}})
	defer done()

	for _, payload := range []string{
		`{"id":"evt_1","amount":42,"pending_webhooks":2}`,
		`{"pending_webhooks": 1, "id": "evt_1", "amount": 42}`,
		`{"id":"evt_1","amount":4200,"pending_webhooks":0}`,
	} {
		result, err := idempotency.Do(db, "stripe", "evt_1", []byte(payload), func(tx *gorm.DB) error { return nil })
		if errors.Is(err, idempotency.ErrDigestMismatch) {
			fmt.Println("another payload")
			continue
		}
		fmt.Println("replayed:", result.Replayed)
	}
	// Output:
	// replayed: false
	// replayed: true
	// another payload
}

// A consumer acknowledges what will never go better, and lets the rest come back.
func ExampleRetryable() {
	db, done := openDB()
	defer done()
	type message struct{ id, body string }
	busy := true

	for queue := []message{{"m1", "a"}, {"m2", "b"}, {"m2", "changed"}, {"", "no id"}}; len(queue) > 0; queue = queue[1:] {
		m := queue[0]
		_, err := idempotency.Do(db, "queue", m.id, []byte(m.body), func(tx *gorm.DB) error {
			if m.id == "m1" && busy {
				busy = false
				return errors.New("busy")
			}
			return tx.Create(&Order{ID: m.id}).Error
		})
		switch {
		case err == nil:
			fmt.Printf("%q: done\n", m.body)
		case idempotency.Retryable(err):
			fmt.Printf("%q: again later\n", m.body)
			queue = append(queue, m)
		default:
			fmt.Printf("%q: given up\n", m.body)
		}
	}
	// Output:
	// "a": again later
	// "b": done
	// "changed": given up
	// "no id": given up
	// "a": done
}

// A call that does not wait is told at once that another delivery is working on the event.
func ExampleWithWait() {
	db, done := openDB()
	defer done()

	_, err := idempotency.Do(db, "shop", "evt_1", nil, func(tx *gorm.DB) error {
		// While this handler runs, the sender delivers again.
		duplicate := make(chan error)
		go func() {
			_, err := idempotency.Do(db, "shop", "evt_1", nil, func(tx *gorm.DB) error { return nil }, idempotency.WithWait(0))
			duplicate <- err
		}()
		fmt.Println("in flight:", errors.Is(<-duplicate, idempotency.ErrInFlight))
		return nil
	})
	fmt.Println(err)
	// Output:
	// in flight: true
	// <nil>
}

// A readiness probe asks whether the table is right before it lets traffic in.
func ExampleCheckSchema() {
	db, done := openDB()
	defer done()
	probe := func() int {
		if err := idempotency.CheckSchema(context.Background(), db); err != nil {
			return http.StatusServiceUnavailable
		}
		return http.StatusOK
	}

	fmt.Println(probe())
	db.Migrator().DropTable(&idempotency.IdempotencyKey{})
	fmt.Println(probe())
	db.AutoMigrate(&idempotency.IdempotencyKey{})
	fmt.Println(probe())
	// Output:
	// 200
	// 503
	// 200
}

// Observe feeds metrics: it is told what became of each delivery.
func ExampleConfig_observe() {
	counts := map[idempotency.Kind]int{}
	db, done := openDBWith(idempotency.Config{Observe: func(_ context.Context, o idempotency.Observation) { counts[o.Kind]++ }})
	defer done()

	for range 3 {
		if _, err := idempotency.Do(db, "shop", "evt_1", nil, func(tx *gorm.DB) error { return nil }); err != nil {
			panic(err)
		}
	}
	fmt.Println(counts)
	// Output: map[executed:1 replayed:2]
}

// A sweeper deletes the keys whose retention is over. Run one beside the application with Sweeper.Run, or call Sweep from a
// job.
func ExampleSweeper_Sweep() {
	db, done := openDB()
	defer done()

	sweeper, err := idempotency.NewSweeper(db, idempotency.SweeperConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	report, err := sweeper.Sweep(context.Background())
	fmt.Println(report.Deleted, "deleted, caught up:", report.CaughtUp, err)
	// Output: 0 deleted, caught up: true <nil>
}
