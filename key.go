package idempotency

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

// Limits of a key, in bytes and not in characters: a row of the primary key's index holds 2,704 bytes.
const (
	maxSourceBytes  = 255
	maxEventIDBytes = 1024
)

const byteOrderMark = '\ufeff'

// key identifies an event. It is compared byte for byte: no trimming, folding or normalising.
type key struct {
	source  string
	eventID string
}

func (k key) String() string { return fmt.Sprintf("event %q of source %q", k.eventID, k.source) }

// validate refuses, before any SQL, what the table cannot hold: PostgreSQL's text has no NUL and no invalid UTF-8, and its
// index refuses a long key only if it does not compress well. It also refuses what only a slip can put into an id: the line
// break or byte-order mark of a file or header that was not parsed, which would make two keys of one.
func (k key) validate() error {
	if reason := unusable(k.source, maxSourceBytes); reason != "" {
		return &InvalidKeyError{Field: "source", Reason: reason}
	}
	if reason := unusable(k.eventID, maxEventIDBytes); reason != "" {
		return &InvalidKeyError{Field: "event id", Reason: reason}
	}
	return nil
}

func unusable(text string, limit int) string {
	switch {
	case text == "":
		return "is empty"
	case len(text) > limit:
		return fmt.Sprintf("has %d bytes, and at most %d are allowed", len(text), limit)
	case !utf8.ValidString(text):
		return "is not valid UTF-8"
	case strings.ContainsFunc(text, unicode.IsControl):
		return "contains a control character, such as a line break or NUL"
	case strings.ContainsRune(text, byteOrderMark):
		return "contains a byte-order mark"
	}
	return ""
}

// lock is the number of the key's advisory lock, before the server mixes in the table's.
func (k key) lock() int64 { return pgsql.LockNumber(k.source, k.eventID) }
