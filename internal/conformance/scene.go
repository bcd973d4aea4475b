package conformance

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/schema"

	"github.com/gorm-idempotency/idempotency"
)

var defaultNaming = schema.NamingStrategy{}

// effect is what the handlers write. Nothing but the library keeps it from happening twice.
type effect struct {
	ID        uint `gorm:"primaryKey"`
	Event     string
	Version   int
	Ref       *uint          // a deferred foreign key to another effect
	Xid       int64          `gorm:"->"` // the transaction that wrote it
	Marks     []mark         // an association
	DeletedAt gorm.DeletedAt // deleted softly
}

// AfterCreate is a model's hook that writes.
func (e *effect) AfterCreate(tx *gorm.DB) error {
	if _, hooked := tx.Get("hooked"); !hooked {
		return nil
	}
	return tx.Create(&mark{EffectID: e.ID, Event: e.Event}).Error
}

// mark is an effect of an effect.
type mark struct {
	ID       uint `gorm:"primaryKey"`
	EffectID uint
	Event    string
	Xid      int64 `gorm:"->"`
}

// scene is a case in a cell.
type scene struct {
	*testing.T
	*suite

	pool   *gorm.DB // of the cell's kind
	db     *gorm.DB // the cell's handle on it, which deliveries are made on
	source string

	afterwards []func() // checks from outside, once the handle's transaction has been committed
}

// do makes a delivery.
func (s *scene) do(event string, body []byte, fc func(*gorm.DB) error, opts ...idempotency.Option) (*idempotency.Result, error) {
	return s.on(s.db, event, body, fc, opts...)
}

// on makes a delivery on another handle than the cell's. Where serialization failures are the application's daily bread it
// is redelivered after them, as senders do.
func (s *scene) on(db *gorm.DB, event string, body []byte, fc func(*gorm.DB) error, opts ...idempotency.Option) (result *idempotency.Result, err error) {
	if !inTransaction(db) {
		opts = append(slices.Clone(s.Options), opts...)
	}
	for {
		result, err = idempotency.Do(db, s.source, event, body, fc, opts...)
		if !s.Strict || s.Handle.Joined || s.State(err) != "40001" {
			return result, err
		}
	}
}

func inTransaction(db *gorm.DB) bool {
	_, ok := db.Statement.ConnPool.(gorm.TxCommitter)
	return ok
}

// name is an event's in the tables of effects, which all cases share.
func (s *scene) name(event string) string { return s.source + "/" + event }

func (s *scene) write(tx *gorm.DB, event string) error {
	return tx.Create(&effect{Event: s.name(event)}).Error
}

// writing is a handler with the effect of the event "e" alone.
func (s *scene) writing(tx *gorm.DB) error { return s.write(tx, "e") }

func unwanted(s *scene) func(*gorm.DB) error {
	return func(*gorm.DB) error {
		s.Error("the handler ran")
		return nil
	}
}

// requireExecuted makes a delivery that has to take effect.
func (s *scene) requireExecuted(event string, body []byte, fc func(*gorm.DB) error) *idempotency.Result {
	s.Helper()
	result, err := s.do(event, body, fc)
	if err != nil {
		s.Fatalf("delivery of %s: %v", event, err)
	}
	if result.Replayed || result.Provisional != s.Handle.Joined {
		s.Errorf("delivery of %s: %+v", event, result)
	}
	return result
}

// requireReplayed makes a delivery that has to be a duplicate.
func (s *scene) requireReplayed(event string, body []byte) *idempotency.Result {
	s.Helper()
	result, err := s.do(event, body, unwanted(s))
	if err != nil {
		s.Fatalf("redelivery of %s: %v", event, err)
	}
	if !result.Replayed || result.Provisional != s.Handle.Joined {
		s.Errorf("redelivery of %s: %+v", event, result)
	}
	return result
}

// requireEffects counts an event's effects, through the cell's handle, and from outside once its transaction has ended.
func (s *scene) requireEffects(event string, want int64) {
	s.Helper()
	count := func(db *gorm.DB) {
		s.Helper()
		var count int64
		if err := db.Model(&effect{}).Where("event = ?", s.name(event)).Count(&count).Error; err != nil {
			s.Errorf("effects of %s: %v", event, err)
		} else if count != want {
			s.Errorf("%s took effect %d times, want %d", event, count, want)
		}
	}
	count(s.db)
	s.afterwards = append(s.afterwards, func() { count(s.pool) })
}

// requireKey looks a key up, through the cell's handle, and from outside once its transaction has ended.
func (s *scene) requireKey(event string, want bool) {
	s.Helper()
	lookUp := func(db *gorm.DB) {
		s.Helper()
		_, err := idempotency.Lookup(context.Background(), db, s.source, event)
		if want && err != nil || !want && !errors.Is(err, idempotency.ErrKeyNotFound) {
			s.Errorf("key %s: error %v, and it should be there: %t", event, err, want)
		}
	}
	lookUp(s.db)
	s.afterwards = append(s.afterwards, func() { lookUp(s.pool) })
}

// requireNoVerdict fails unless err is an error of the database's or the driver's, and none that says what became of the key.
func (s *scene) requireNoVerdict(result *idempotency.Result, err error) {
	s.Helper()
	if result != nil || err == nil {
		s.Errorf("got %+v, %v; want an error", result, err)
	}
	for _, verdict := range []error{idempotency.ErrInFlight, idempotency.ErrDigestMismatch, idempotency.ErrOutcomeUnknown} {
		if errors.Is(err, verdict) {
			s.Errorf("error %v reads as %q", err, verdict)
		}
	}
}

func (s *scene) requireSameAnswer(first, later *idempotency.Result) {
	s.Helper()
	same := first.Status == later.Status && bytes.Equal(first.Body, later.Body) && (first.Body == nil) == (later.Body == nil) &&
		maps.EqualFunc(first.Header, later.Header, slices.Equal) && first.ClaimedAt.Equal(later.ClaimedAt)
	if !same {
		s.Errorf("the answers differ: %+v and then %+v", first, later)
	}
}

// other is a pool of the same kind that belongs to another process, as far as the library can tell.
func (s *scene) other() *gorm.DB {
	s.Helper()
	return s.open(s.T, s.Config, s.Dialector(s.dsn))
}
