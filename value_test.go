package idempotency_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
)

type receipt struct {
	Order  string
	Total  float64
	Note   *string
	Lines  []string
	At     time.Time
	hidden int
	Cache  string `json:"-"`
}

// valueTwice delivers an event twice and fails unless both deliveries get the value want.
func valueTwice[T any](t *testing.T, db *gorm.DB, id string, returned, want T, body string) {
	t.Helper()
	for i := range 2 {
		got, result, err := idempotency.DoValue(db, "value", id, nil, func(tx *gorm.DB) (T, error) {
			return returned, tx.Create(&order{Event: id}).Error
		})
		if err != nil {
			t.Fatalf("%s, delivery %d: %v", id, i, err)
		}
		if result.Replayed != (i == 1) || result.Status != 200 || string(result.Body) != body || (result.Body == nil) != (body == "") {
			t.Errorf("%s, delivery %d: got %+v, want the body %s", id, i, result, body)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s, delivery %d: got %#v, want %#v", id, i, got, want)
		}
	}
	requireEffects(t, db, id, 1)
}

// The first caller and every duplicate get the same value: the one that the stored JSON decodes to.
func TestDoValueGivesEveryDeliveryTheSameValue(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	note := "fine"
	at := time.Date(2025, 3, 30, 1, 59, 59, 1, time.UTC)
	valueTwice(t, db, "int", 42, 42, `42`)
	valueTwice(t, db, "string", "<ż>\u0000", "<ż>\u0000", `"\u003cż\u003e\u0000"`)
	valueTwice(t, db, "struct",
		receipt{Order: "o", Total: 1.5, Note: &note, Lines: []string{}, At: at, hidden: 1, Cache: "x"},
		receipt{Order: "o", Total: 1.5, Note: &note, Lines: []string{}, At: at},
		`{"Order":"o","Total":1.5,"Note":"fine","Lines":[],"At":"2025-03-30T01:59:59.000000001Z"}`)
	valueTwice(t, db, "pointer", &receipt{Order: "o", At: at}, &receipt{Order: "o", At: at},
		`{"Order":"o","Total":0,"Note":null,"Lines":null,"At":"2025-03-30T01:59:59.000000001Z"}`)
	valueTwice[*receipt](t, db, "nil pointer", nil, nil, `null`)
	valueTwice[any](t, db, "nil interface", nil, nil, ``)
	valueTwice[error](t, db, "nil error", nil, nil, ``)
	valueTwice[any](t, db, "interface", receipt{Order: "o", At: at},
		map[string]any{"Order": "o", "Total": 0.0, "Note": nil, "Lines": nil, "At": "2025-03-30T01:59:59.000000001Z"},
		`{"Order":"o","Total":0,"Note":null,"Lines":null,"At":"2025-03-30T01:59:59.000000001Z"}`)
	valueTwice[any](t, db, "int in an interface", 1, 1.0, `1`)
	valueTwice[map[string]int](t, db, "nil map", nil, nil, `null`)
	valueTwice(t, db, "empty map", map[string]int{}, map[string]int{}, `{}`)
	valueTwice[[]string](t, db, "nil slice", nil, nil, `null`)
	valueTwice(t, db, "nothing", struct{}{}, struct{}{}, `{}`)
	valueTwice(t, db, "message", json.RawMessage(` {"a": 1e400}`), json.RawMessage(`{"a": 1e400}`), ` {"a": 1e400}`)
	valueTwice[json.RawMessage](t, db, "nil message", nil, nil, ``)
	valueTwice(t, db, "named bytes", named{1, 2}, named{1, 2}, `"AQI="`)
}

type named []byte

// A value that cannot be stored, or that no duplicate could be given, is refused before anything is committed.
func TestDoValueRefusesWhatNoDuplicateCouldGet(t *testing.T) {
	t.Parallel()
	db := open(t, setup{config: idempotency.Config{MaxResponseBytes: 1000}})
	refuseValue(t, db, "function", func() {}, idempotency.ErrInvalidResponse)
	refuseValue(t, db, "channel", make(chan int), idempotency.ErrInvalidResponse)
	refuseValue(t, db, "interface with methods", fmt.Stringer(time.Second), idempotency.ErrInvalidResponse)
	refuseValue(t, db, "one-way JSON", oneWay{}, idempotency.ErrInvalidResponse)
	refuseValue(t, db, "marshaler that fails", unmarshalable{}, idempotency.ErrInvalidResponse)
	refuseValue(t, db, "bytes in an interface", any([]byte("x")), idempotency.ErrInvalidResponse)
	refuseValue(t, db, "message that is no JSON", json.RawMessage("{"), idempotency.ErrInvalidResponse)
	refuseValue(t, db, "large", strings.Repeat("x", 1000), idempotency.ErrResponseTooLarge)

	// Bytes are refused by their type, without a run.
	value, result, err := idempotency.DoValue(db, "value", "bytes", nil, func(*gorm.DB) ([]byte, error) {
		t.Error("the handler ran")
		return nil, nil
	})
	requireError(t, err, idempotency.ErrInvalidResponse)
	if value != nil || result != nil || !strings.Contains(err.Error(), "RespondRaw") {
		t.Errorf("got %v, %v, %v; want an error that says what to use", value, result, err)
	}
}

func refuseValue[T any](t *testing.T, db *gorm.DB, id string, returned T, want error) {
	t.Helper()
	for range 2 {
		var zero T
		got, result, err := idempotency.DoValue(db, "value", id, nil, func(tx *gorm.DB) (T, error) {
			return returned, tx.Create(&order{Event: id}).Error
		})
		requireError(t, err, want)
		if result != nil || !reflect.DeepEqual(any(got), any(zero)) {
			t.Errorf("%s: got %#v and %+v beside the error", id, got, result)
		}
		if strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s: %q contains the answer", id, err)
		}
		requireNoKey(t, db, "value", id)
	}
	requireEffects(t, db, id, 0)
}

// oneWay is written as what it cannot be read from.
type oneWay struct{ N int }

func (oneWay) MarshalJSON() ([]byte, error) { return []byte(`{"N":"SECRET"}`), nil }

// The zero value comes with every error, whatever the handler returned beside it.
func TestDoValueGivesZeroOnErrors(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	failure := errors.New("not today")
	value, result, err := idempotency.DoValue(db, "s", "e", nil, func(*gorm.DB) (int, error) { return 1, failure })
	if value != 0 || result != nil || err != failure { //nolint:errorlint // it is returned as it is
		t.Errorf("got %d, %+v, %v", value, result, err)
	}
	// The value is there, and then the transaction fails to commit.
	mustExec(t, db, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END'`)
	mustExec(t, db, `CREATE CONSTRAINT TRIGGER late AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`)
	value, result, err = idempotency.DoValue(db, "s", "e", nil, func(tx *gorm.DB) (int, error) { return 1, tx.Create(&order{Event: "e"}).Error })
	if value != 0 || result != nil || err == nil {
		t.Errorf("got %d, %+v, %v; want the commit's error alone", value, result, err)
	}
	requireNoKey(t, db, "s", "e")
	value, result, err = idempotency.DoValue[int](db, "s", "e", nil, nil)
	requireUnsupported(t, err)
	if value != 0 || result != nil {
		t.Errorf("got %d, %+v beside the error", value, result)
	}
}

// A stored body of another shape is an error of its own beside the Result: the event has taken effect.
func TestDoValueOfAnotherShape(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	for id, respond := range map[string]func(*gorm.DB) error{
		"another type": jsonAnswer(map[string]string{"Order": "SECRET", "Total": "SECRET"}),
		"no JSON":      rawAnswer(200, nil, []byte("SECRET")),
		"empty":        rawAnswer(200, nil, []byte{}),
	} {
		if _, err := idempotency.Do(db, "s", id, nil, respond); err != nil {
			t.Fatal(err)
		}
		value, result, err := idempotency.DoValue(db, "s", id, nil, func(*gorm.DB) (receipt, error) {
			return receipt{}, errors.New("the handler ran")
		})
		if err == nil || result == nil || !result.Replayed {
			t.Fatalf("%s: got %+v, %v; want a Result and an error", id, result, err)
		}
		if !reflect.DeepEqual(value, receipt{}) {
			t.Errorf("%s: got half a value, %+v", id, value)
		}
		if strings.Contains(err.Error(), "SECRET") || !strings.Contains(err.Error(), "receipt") {
			t.Errorf("%s: %q should name the type and not the answer", id, err)
		}
	}
	// No body at all is the zero value.
	if _, err := idempotency.Do(db, "s", "no body", nil, nothing); err != nil {
		t.Fatal(err)
	}
	value, result, err := idempotency.DoValue(db, "s", "no body", nil, func(*gorm.DB) (int, error) { return 1, nil })
	if value != 0 || err != nil || !result.Replayed {
		t.Errorf("got %d, %+v, %v", value, result, err)
	}
}

// The value is the answer: Respond beside it is refused, and changes nothing.
func TestRespondInsideDoValue(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	for range 2 {
		value, result, err := idempotency.DoValue(db, "s", "e", nil, func(tx *gorm.DB) (string, error) {
			requireError(t, idempotency.Respond(tx, 201, "answer"), idempotency.ErrAlreadyResponded)
			requireError(t, idempotency.RespondRaw(tx, 201, nil, nil), idempotency.ErrAlreadyResponded)
			// A handler inside answers for itself.
			_, err := idempotency.Do(tx, "s", "inner", nil, jsonAnswer("inner"))
			return "value", err
		})
		if value != "value" || err != nil || result.Status != 200 || string(result.Body) != `"value"` {
			t.Errorf("got %q, %+v, %v", value, result, err)
		}
	}
}
