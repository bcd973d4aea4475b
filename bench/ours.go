package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
)

// fresh delivers a new event to the library. Its handler answers, unless there is no answer.
func fresh(name string, db *gorm.DB, answer json.RawMessage) arm {
	deliver := func(ctx context.Context, event string) error {
		_, err := idempotency.Do(db.WithContext(ctx), source, event, payload, placing(name, event, answer))
		return err
	}
	return arm{name: name, deliver: deliver, effects: onceEach}
}

func placing(name, event string, answer json.RawMessage) func(*gorm.DB) error {
	return func(tx *gorm.DB) error {
		if err := place(tx, name, event); err != nil {
			return err
		}
		if answer == nil {
			return nil
		}
		return idempotency.Respond(tx, answerStatus, answer)
	}
}

// recorded is the answer as a type.
type recorded struct {
	OrderID string `json:"order_id"`
	Status  string `json:"status"`
}

// typed is fresh with DoValue.
func typed(name string, db *gorm.DB) arm {
	deliver := func(ctx context.Context, event string) error {
		_, _, err := idempotency.DoValue(db.WithContext(ctx), source, event, payload, func(tx *gorm.DB) (recorded, error) {
			return recorded{OrderID: "o1", Status: "recorded"}, place(tx, name, event)
		})
		return err
	}
	return arm{name: name, deliver: deliver, effects: onceEach}
}

// joined is fresh inside a transaction of the caller's.
func joined(name string, db *gorm.DB) arm {
	deliver := func(ctx context.Context, event string) error {
		return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			_, err := idempotency.Do(tx, source, event, payload, placing(name, event, answer))
			return err
		})
	}
	return arm{name: name, deliver: deliver, effects: onceEach}
}

// committedKeys is how many keys the duplicates are of, in turn.
const committedKeys = 100

// duplicate delivers again what has been delivered and committed.
func duplicate(name string, db *gorm.DB, answer json.RawMessage) arm {
	return again(fresh(name, db, answer))
}

// again makes an arm's deliveries duplicates of committed ones.
func again(first arm) arm {
	events := make([]string, committedKeys)
	var next atomic.Int64
	duplicates := first
	duplicates.prepare = func(ctx context.Context) error {
		for i := range events {
			events[i] = newEvent()
			if err := first.deliver(ctx, events[i]); err != nil {
				return err
			}
		}
		return nil
	}
	duplicates.deliver = func(ctx context.Context, _ string) error {
		return first.deliver(ctx, events[next.Add(1)%committedKeys])
	}
	duplicates.effects = times(committedKeys)
	return duplicates
}

var errDeclined = errors.New("declined")

// failing has handlers that fail after they have written.
func failing(name string, db *gorm.DB) arm {
	deliver := func(ctx context.Context, event string) error {
		_, err := idempotency.Do(db.WithContext(ctx), source, event, payload, func(tx *gorm.DB) error {
			if err := place(tx, name, event); err != nil {
				return err
			}
			return errDeclined
		})
		if !errors.Is(err, errDeclined) {
			return fmt.Errorf("got the error %w, want the handler's", err)
		}
		return nil
	}
	return arm{name: name, deliver: deliver, effects: never}
}

// refused delivers an event whose key another process holds, and does not wait: the holder has a pool of its own, so that
// it is the database that refuses.
func refused(name string, db, holder *gorm.DB) arm {
	held := newEvent()
	release := make(chan struct{})
	ended := make(chan struct{})
	hold := func(ctx context.Context) error {
		holding := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = idempotency.Do(holder.WithContext(ctx), source, held, payload, func(*gorm.DB) error {
				close(holding)
				<-release
				return errDeclined
			})
		}()
		select {
		case <-holding:
			return nil
		case <-ended:
			return errors.New("the key could not be held")
		}
	}
	deliver := func(ctx context.Context, _ string) error {
		_, err := idempotency.Do(db.WithContext(ctx), source, held, payload, placing(name, held, answer), idempotency.WithWait(0))
		if !errors.Is(err, idempotency.ErrInFlight) {
			return fmt.Errorf("got the error %w, want ErrInFlight", err)
		}
		return nil
	}
	end := func() {
		close(release)
		select {
		case <-ended:
		case <-time.After(cleanupTimeout):
		}
	}
	return arm{name: name, deliver: deliver, effects: never, prepare: hold, end: end}
}

// claimOnly is a delivery whose handler does nothing: the claim, and its transaction.
func claimOnly(name string, db *gorm.DB) arm {
	deliver := func(ctx context.Context, event string) error {
		_, err := idempotency.Do(db.WithContext(ctx), source, event, payload, func(*gorm.DB) error { return nil })
		return err
	}
	return arm{name: name, deliver: deliver, effects: never}
}
