package gormtest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
)

// Deliver hands one event to the code under test, as a sender does, and returns what the sender is answered. Events are
// numbered: a number is always the same event, with the same source, id and payload, and two numbers are events that differ
// in their id alone. It is called from many goroutines at once.
//
//	func deliver(ctx context.Context, db *gorm.DB, event int) (any, error) {
//		return NewPayments(db).Receive(ctx, fmt.Sprintf("evt_%d", event), []byte(`{"amount": 5}`))
//	}
//
// All of the code under test must use db, or what it gets out of it: a handle made elsewhere is not looked at as closely. db
// carries ctx, which is cancelled when the delivery takes too long.
//
// The answer is what all deliveries of an event must be told alike. Of an *idempotency.Result it is status, headers and
// body; a []byte and a string are compared as they are, and everything else as JSON. An error means that the delivery was
// refused and that the sender will come back.
type Deliver func(ctx context.Context, db *gorm.DB, event int) (answer any, err error)

// Serve is a [Deliver] for code under test that is an http.Handler. handler makes it, on the handle that it is given, for each
// delivery; request makes the request that delivers an event.
//
// Statuses on which senders come back are errors: 5xx, 409, 425 and 429. Any other status is an answer, with the body and
// the headers but Date and Idempotency-Replayed, which may differ between deliveries. [WithExemptHeaders] names more of them.
func Serve(handler func(db *gorm.DB) http.Handler, request func(event int) *http.Request) Deliver {
	return func(ctx context.Context, db *gorm.DB, event int) (any, error) {
		recorded := httptest.NewRecorder()
		handler(db).ServeHTTP(recorded, request(event).WithContext(ctx))
		if comesBack(recorded.Code) {
			return nil, fmt.Errorf("answered %d: %s", recorded.Code, shorten(recorded.Body.String()))
		}
		header := recorded.Header().Clone()
		header.Del("Date")
		header.Del("Idempotency-Replayed")
		return &idempotency.Result{Status: recorded.Code, Header: header, Body: recorded.Body.Bytes()}, nil
	}
}

func comesBack(status int) bool {
	switch status {
	case http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return status >= http.StatusInternalServerError
}
