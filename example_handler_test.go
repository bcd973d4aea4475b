package idempotency_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
)

// webhook answers a shop's deliveries. The event's id is taken from the body, which the shop signs: an id from a header
// that nobody signed could be anybody's. (The check of the signature comes first, and is left out here.)
func webhook(keys *idempotency.DB) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, "unreadable body", http.StatusBadRequest)
			return
		}
		var event struct {
			ID    string `json:"id"`
			Order Order  `json:"order"`
		}
		if err := json.Unmarshal(body, &event); err != nil {
			http.Error(w, "not JSON", http.StatusBadRequest)
			return
		}

		result, err := keys.WithContext(r.Context()).Idempotent("shop", event.ID, body, func(tx *gorm.DB) error {
			if err := tx.Create(&event.Order).Error; err != nil {
				return err
			}
			return idempotency.Respond(tx, http.StatusCreated, map[string]string{"order": event.Order.ID})
		}, idempotency.WithWait(0))
		if err != nil {
			refuse(w, err)
			return
		}
		maps.Copy(w.Header(), result.Header)
		w.WriteHeader(result.Status)
		_, _ = w.Write(result.Body)
	}
}

// refuse answers a delivery that had no effect, so that the sender does the right thing: come back, or give up.
func refuse(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, idempotency.ErrInFlight):
		w.Header().Set("Retry-After", "5")
		http.Error(w, "this event is being worked on", http.StatusServiceUnavailable)
	case errors.Is(err, idempotency.ErrDigestMismatch):
		http.Error(w, "this id came with another payload", http.StatusUnprocessableEntity)
	case errors.Is(err, idempotency.ErrInvalidKey):
		http.Error(w, "this id cannot be a key", http.StatusBadRequest)
	default:
		http.Error(w, "try again", http.StatusInternalServerError)
	}
}

// A whole webhook handler: every outcome has its status.
func Example_handler() {
	db, done := openDB()
	defer done()
	handler := webhook(idempotency.Wrap(db))
	deliver := func(payload string) {
		w := httptest.NewRecorder()
		handler(w, httptest.NewRequest(http.MethodPost, "/webhook", strings.NewReader(payload)))
		fmt.Println(w.Code, w.Header()["Retry-After"], strings.TrimSpace(w.Body.String()))
	}

	deliver(`{"id":"evt_1","order":{"id":"A-1","total":42}}`)
	deliver(`{"id":"evt_1","order":{"id":"A-1","total":42}}`)   // a duplicate
	deliver(`{"id":"evt_1","order":{"id":"A-1","total":4200}}`) // the same id with another payload
	deliver(`{"id":"","order":{"id":"A-2"}}`)                   // no id
	deliver(`{"id":"evt_2","order":{"id":"A-1"}}`)              // the handler fails: the order is there
	_, err := idempotency.Do(db, "shop", "evt_3", []byte(`{"id":"evt_3"}`), func(*gorm.DB) error {
		deliver(`{"id":"evt_3"}`) // while another delivery of the event is worked on
		return nil
	})
	fmt.Println(err)
	// Output:
	// 201 [] {"order":"A-1"}
	// 201 [] {"order":"A-1"}
	// 422 [] this id came with another payload
	// 400 [] this id cannot be a key
	// 500 [] try again
	// 503 [5] this event is being worked on
	// <nil>
}
