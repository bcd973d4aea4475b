package idempotency

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency/internal/jsontext"
)

// Result is what a delivery is answered: by the handler, or from the stored row. The first delivery and every replay
// get the same Status, Header and Body, byte for byte.
type Result struct {
	Replayed    bool // answered from the stored row: fc did not run
	Provisional bool // the call was joined: nothing is durable until the caller's transaction commits
	Status      int  // an HTTP status; 200 where the handler did not respond
	Header      map[string][]string
	Body        []byte // nil where there is none
	ClaimedAt   time.Time
}

// Decode reads the JSON body into v, as json.Unmarshal. A body that is missing or does not decode is an error, and the
// Result stays as it is.
func (r *Result) Decode(v any) error {
	if err := json.Unmarshal(r.Body, v); err != nil {
		return quiet(fmt.Errorf("%w into a %T", errUndecodable, v), err)
	}
	return nil
}

// Respond sets the answer to the event that tx's handler is working on: an HTTP status from 100 to 599 and a JSON body.
// It is stored with the handler's own writes and given to every later delivery. A json.RawMessage is taken verbatim, nil
// means no body, and a []byte is refused, since JSON would turn it into base64: see [RespondRaw]. A body comes with the
// header Content-Type: application/json.
//
// tx is the handle that the handler was given, or any session of it. Nothing is written yet when Respond returns. On an
// error the answer stays unset and the transaction usable; return it from the handler, else the event is answered as if
// Respond had not been called.
//
// Errors: [ErrNoScope] outside of a handler, [ErrAlreadyResponded] at a second call, [ErrInvalidResponse] for a status
// out of range or a body that is not JSON, [ErrResponseTooLarge] over Config.MaxResponseBytes.
func Respond(tx *gorm.DB, status int, body any) error {
	s, err := scopeAround(tx)
	if err != nil {
		return err
	}
	text, err := jsonBody(body)
	if err != nil {
		return err
	}
	return s.respond(answer{status: status, body: text})
}

// RespondRaw is [Respond] for an answer that is not JSON, or that has headers of its own: header and body are stored and
// replayed as they are. A nil body is none. Header names must be HTTP tokens, and values valid UTF-8 without control
// characters but tabs; anything else is [ErrInvalidResponse]. A header without values is left out. The other errors are Respond's.
func RespondRaw(tx *gorm.DB, status int, header map[string][]string, body []byte) error {
	s, err := scopeAround(tx)
	if err != nil {
		return err
	}
	kept, err := keepHeader(header)
	if err != nil {
		return err
	}
	return s.respond(answer{status: status, header: kept, body: body})
}

// answer is what a handler responds, or a row holds. The zero status means that it did not respond.
type answer struct {
	status int
	header map[string][]string // nil: implied by the body, which is JSON if there is one
	body   []byte
}

func jsonBody(body any) ([]byte, error) {
	switch body := body.(type) {
	case nil:
		return nil, nil
	case []byte:
		return nil, fmt.Errorf("%w: the body is a []byte, which JSON would turn into base64: use RespondRaw, or json.RawMessage for bytes that are JSON", ErrInvalidResponse)
	case json.RawMessage:
		if body != nil && !json.Valid(body) {
			return nil, fmt.Errorf("%w: the json.RawMessage is not valid JSON", ErrInvalidResponse)
		}
		return body, nil
	}
	text, err := json.Marshal(body)
	if err != nil {
		return nil, quiet(fmt.Errorf("%w: a body of type %T does not marshal to JSON", ErrInvalidResponse, body), err)
	}
	return text, nil
}

func keepHeader(header map[string][]string) (map[string][]string, error) {
	kept := make(map[string][]string, len(header)) // never nil: an implied header is
	for name, values := range header {
		if !isToken(name) {
			return nil, fmt.Errorf("%w: a header's name is not an HTTP token", ErrInvalidResponse)
		}
		for _, value := range values {
			if !utf8.ValidString(value) || strings.ContainsFunc(value, isControl) {
				return nil, fmt.Errorf("%w: a value of header %s is not valid UTF-8, or has a control character", ErrInvalidResponse, name)
			}
		}
		if len(values) > 0 {
			kept[name] = slices.Clone(values)
		}
	}
	return kept, nil
}

// isControl reports whether no header's value can hold c: a client could not read that answer.
func isControl(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }

// isToken reports whether name can name a header: RFC 9110's tchar, one or more.
func isToken(name string) bool {
	for _, c := range []byte(name) {
		alphanumeric := '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !alphanumeric && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return name != ""
}

// validate refuses what the row cannot hold, before anything is written: an answer that failed at the completion would
// undo the handler's effect at every delivery.
func (a answer) validate(limit int) error {
	if a.status < 100 || a.status > 599 {
		return fmt.Errorf("%w: status %d is not between 100 and 599", ErrInvalidResponse, a.status)
	}
	size := len(a.body)
	if len(a.header) > 0 {
		size += len(a.headerText())
	}
	if limit < 0 || limit > maxStoredBytes {
		limit = maxStoredBytes
	}
	if size > limit {
		return fmt.Errorf("%w: %d bytes of headers and body, and Config.MaxResponseBytes allows %d", ErrResponseTooLarge, size, limit)
	}
	return nil
}

// maxStoredBytes bounds answers where Config.MaxResponseBytes does not. The server refuses messages and values of 1 GiB, and
// a body takes up to three bytes each on its way there.
const maxStoredBytes = 256 << 20

// completion are the completing statement's arguments: the key, status, headers, body, and whether the operator's copy of the
// body can be kept. Answers are never refused by the database: what JSONB cannot hold stands in the raw column alone.
func (a answer) completion(key []any) []any {
	return append(key, a.status, a.headerColumn(), a.rawColumn(), a.body != nil && jsontext.FitsJSONB(a.body))
}

// headerColumn is a string and not bytes, and NULL is an untyped nil, so that both mean the same through every driver and
// mode. So is rawColumn's NULL: some drivers send a nil []byte as empty.
func (a answer) headerColumn() any {
	if a.header == nil {
		return nil
	}
	return a.headerText()
}

func (a answer) rawColumn() any {
	if a.body == nil {
		return nil
	}
	return a.body
}

func (a answer) headerText() string {
	if a.header == nil {
		return ""
	}
	text, err := json.Marshal(a.header)
	if err != nil {
		panic(err) // a map of strings always marshals
	}
	return string(text)
}

// result is the one way from an answer to a Result, for the first delivery as for a replay.
func (a answer) result(claimedAt time.Time) *Result {
	r := &Result{Status: a.status, Body: a.body, ClaimedAt: claimedAt.UTC()}
	switch {
	case a.status == 0:
		r.Status = 200
	case a.header == nil && a.body != nil:
		r.Header = map[string][]string{"Content-Type": {"application/json"}}
	case len(a.header) > 0:
		r.Header = a.header
	}
	return r
}
