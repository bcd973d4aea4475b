package idempotency

import (
	"encoding/json"
	"time"
)

// IdempotencyKey is a row of the table: one event, claimed once, with the answer it got.
//
// The plugin registers the model with the name in Config.Table, so that AutoMigrate, Find and Delete on it use the same
// table as Do. Write it through Do alone; reading it is safe anywhere, and [Lookup] reads one.
type IdempotencyKey struct {
	// Source and EventID are the key. They compare by bytes: the columns' collation is "C".
	Source  string `gorm:"type:text COLLATE \"C\";primaryKey"`
	EventID string `gorm:"type:text COLLATE \"C\";primaryKey"`

	// PayloadDigest is the SHA-256 sum of the payload, or another digest's name, a colon and its 32 bytes.
	PayloadDigest []byte `gorm:"type:bytea;not null"`

	// ResponseStatus is nil where the handler did not respond, which is answered as 200 with no body.
	ResponseStatus *int16 `gorm:"type:smallint"`

	// ResponseHeader is a JSON object of arrays of strings. It is nil for an answer by Respond, whose only header is
	// Content-Type: application/json.
	ResponseHeader json.RawMessage `gorm:"type:jsonb"`

	// ResponseBody is the operator's copy of the answer, where it is JSON that JSONB accepts. The database reorders
	// its members and rewrites its numbers.
	ResponseBody json.RawMessage `gorm:"type:jsonb"`

	// ResponseRaw is the answer's body to the byte, which is what a replay gives. It is nil for an answer with no body.
	ResponseRaw []byte `gorm:"type:bytea"`

	// ClaimedAt is when the key was claimed, by the database's clock. Retention counts from it.
	ClaimedAt time.Time `gorm:"type:timestamptz;not null;default:now();index:,type:brin,option:WITH (autosummarize = on);index:,composite:incomplete,where:completed_at IS NULL"`

	// CompletedAt equals ClaimedAt: the claim sets both, since whoever can see the row sees a complete one. It is nil
	// only in a row that something other than this library wrote, which is treated as in flight.
	CompletedAt *time.Time `gorm:"type:timestamptz"`
}
