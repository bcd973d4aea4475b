package main

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"net/http"

	"gorm.io/gorm"
)

// Every delivery is of this source and has this payload. Its event id is as random as those of senders are, so that keys
// fall anywhere into an index.
const source = "bench"

var payload = []byte(`{"id":"evt_1","type":"order.paid","data":{"order":"o1","total":4200,"currency":"EUR","customer":"c1"}}`)

// answer is what handlers answer with, unless their arm is about its size.
var answer = json.RawMessage(`{"order_id":"o1","status":"recorded"}`)

const answerStatus = http.StatusOK

func newEvent() string { return "evt_" + randomText(18) }

// answerOf is a JSON text of a number of bytes that do not compress; nil for none.
func answerOf(bytes int) json.RawMessage {
	if bytes == 0 {
		return nil
	}
	const quotes = 2
	return json.RawMessage(`"` + randomText(bytes)[:bytes-quotes] + `"`)
}

// randomText is of letters, digits, - and _, and at least of a number of characters.
func randomText(bytes int) string {
	random := make([]byte, bytes)
	_, _ = rand.Read(random) // never fails
	return base64.RawURLEncoding.EncodeToString(random)
}

// order is the business write.
type order struct {
	ID    uint `gorm:"primaryKey"`
	Arm   string
	Event string
}

func place(tx *gorm.DB, arm, event string) error {
	return tx.Create(&order{Arm: arm, Event: event}).Error
}
