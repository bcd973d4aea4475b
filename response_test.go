package idempotency_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
)

// deliverTwice delivers an event twice and fails unless the second answer is the first one's replay, to the byte.
func deliverTwice(t testing.TB, db *gorm.DB, source, id string, respond func(*gorm.DB) error) *idempotency.Result {
	t.Helper()
	first, err := idempotency.Do(db, source, id, nil, respond)
	if err != nil {
		t.Fatalf("%s: the first delivery: %v", id, err)
	}
	again, err := idempotency.Do(db, source, id, nil, unreachable(t))
	if err != nil {
		t.Fatalf("%s: the duplicate: %v", id, err)
	}
	if first.Replayed || !again.Replayed || first.Provisional || again.Provisional {
		t.Errorf("%s: the flags are wrong: %+v, then %+v", id, first, again)
	}
	unflagged := *again
	unflagged.Replayed = false
	if !reflect.DeepEqual(*first, unflagged) {
		t.Errorf("%s: first\n%#v, replay\n%#v", id, *first, *again)
	}
	if first.ClaimedAt.IsZero() || first.ClaimedAt.Location() != time.UTC {
		t.Errorf("%s: claimed at %v", id, first.ClaimedAt)
	}
	return again
}

// Cases C49, C55 and C75: in each of the driver's modes the first delivery and the replay get the same bytes, nil stays
// distinct from null, and the row holds the same values.
func TestAnswersAreTheSameInEveryDriverMode(t *testing.T) {
	t.Parallel()
	answers := []struct {
		name    string
		respond func(*gorm.DB) error
		body    []byte // as every delivery gets it
		jsonb   string // as the operator sees it; "" for NULL
	}{
		{"none", nothing, nil, ""},
		{"nil", jsonAnswer(nil), nil, ""},
		{"nil message", jsonAnswer(json.RawMessage(nil)), nil, ""},
		{"null", jsonAnswer(json.RawMessage("null")), []byte("null"), "null"},
		{"null by a nil map", jsonAnswer(map[string]int(nil)), []byte("null"), "null"},
		{"empty string", jsonAnswer(""), []byte(`""`), `""`},
		{"zero", jsonAnswer(0), []byte(`0`), `0`},
		{"false", jsonAnswer(false), []byte(`false`), `false`},
		{"empty object", jsonAnswer(struct{}{}), []byte(`{}`), `{}`},
		{"empty array", jsonAnswer([]int{}), []byte(`[]`), `[]`},
		{"big number", jsonAnswer(json.RawMessage(`9007199254740993`)), []byte(`9007199254740993`), `9007199254740993`},
		{"huge number", jsonAnswer(json.RawMessage(`1e400`)), []byte(`1e400`), "1" + strings.Repeat("0", 400)},
		{"too huge a number", jsonAnswer(json.RawMessage(`1e999999`)), []byte(`1e999999`), ""},
		{"order and space", jsonAnswer(json.RawMessage(` {"b": 1.0, "a" : 2}`)), []byte(` {"b": 1.0, "a" : 2}`), `{"a": 2, "b": 1.0}`},
		{"duplicate names", jsonAnswer(json.RawMessage(`{"a":1,"a":2}`)), []byte(`{"a":1,"a":2}`), `{"a": 2}`},
		{"backslashes", jsonAnswer(`\x41 \ ' "`), []byte(`"\\x41 \\ ' \""`), `"\\x41 \\ ' \""`},
		{"letters", jsonAnswer("żółw 😀"), []byte(`"żółw 😀"`), `"żółw 😀"`},
		{"a NUL", jsonAnswer("\x00"), []byte(`"\u0000"`), ""},
		{"a literal escape", jsonAnswer(json.RawMessage(`"\\u0000"`)), []byte(`"\\u0000"`), `"\\u0000"`},
		{"half a surrogate", jsonAnswer(json.RawMessage(`"\ud800"`)), []byte(`"\ud800"`), ""},
		{"invalid UTF-8", jsonAnswer(json.RawMessage("\"\xff\"")), []byte("\"\xff\""), ""},
		{"raw nil", rawAnswer(200, nil, nil), nil, ""},
		{"raw empty", rawAnswer(200, nil, []byte{}), []byte{}, ""},
		{"raw bytes", rawAnswer(200, nil, []byte("\x00\x01\\x5c\\\x5c\xff'")), []byte("\x00\x01\\x5c\\\x5c\xff'"), ""},
		{"raw JSON", rawAnswer(200, nil, []byte(`{"a":1}`)), []byte(`{"a":1}`), `{"a": 1}`},
	}
	dsn := gormtest.DSN(t)
	var rows []string // the stored values, by the first mode
	for name, driver := range driverModes(dsn) {
		for _, prepared := range []bool{false, true} {
			source := fmt.Sprintf("%s, PrepareStmt %t", name, prepared)
			db := open(t, setup{driver: driver, gorm: gorm.Config{PrepareStmt: prepared}})
			for _, answer := range answers {
				got := deliverTwice(t, db, source, answer.name, answer.respond)
				if !bytes.Equal(got.Body, answer.body) || (got.Body == nil) != (answer.body == nil) {
					t.Errorf("%s, %s: got %#v, want %#v", source, answer.name, got.Body, answer.body)
				}
				key, err := idempotency.Lookup(t.Context(), db, source, answer.name)
				if err != nil {
					t.Fatal(err)
				}
				if string(key.ResponseBody) != answer.jsonb || (key.ResponseBody == nil) != (answer.jsonb == "") {
					t.Errorf("%s, %s: the operator sees %q, want %q", source, answer.name, key.ResponseBody, answer.jsonb)
				}
				if !bytes.Equal(key.ResponseRaw, answer.body) || (key.ResponseRaw == nil) != (answer.body == nil) {
					t.Errorf("%s, %s: the row holds %#v, want %#v", source, answer.name, key.ResponseRaw, answer.body)
				}
			}
			stored := read[string](t, db, `SELECT string_agg(concat_ws('|', event_id, payload_digest, response_status, response_header,
				response_body, response_raw, completed_at = claimed_at), E'\n' ORDER BY event_id) FROM idempotency_keys WHERE source = ?`, source)
			if rows = append(rows, stored); rows[0] != stored {
				t.Errorf("%s stores\n%s\nand another mode\n%s", source, stored, rows[0])
			}
		}
	}
}

// driverModes are pgx's ways to send a statement.
func driverModes(dsn string) map[string]gorm.Dialector {
	modes := map[string]gorm.Dialector{
		"default":              postgres.Open(dsn),
		"PreferSimpleProtocol": postgres.New(postgres.Config{DSN: dsn, PreferSimpleProtocol: true}),
	}
	for _, mode := range []string{"exec", "describe_exec", "cache_describe", "simple_protocol"} {
		modes[mode] = postgres.Open(withParameter(dsn, "default_query_exec_mode", mode))
	}
	return modes
}

func jsonAnswer(body any) func(*gorm.DB) error {
	return func(tx *gorm.DB) error { return idempotency.Respond(tx, 200, body) }
}

func rawAnswer(status int, header map[string][]string, body []byte) func(*gorm.DB) error {
	return func(tx *gorm.DB) error { return idempotency.RespondRaw(tx, status, header, body) }
}

// Cases C68, C74 and C75: the status, headers and bytes of every kind of answer come back as they were, and a replay can
// be told from a fresh run.
func TestAnswersAreReplayedWhole(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	typed := map[string][]string{"Content-Type": {"application/json"}}
	for name, test := range map[string]struct {
		respond func(*gorm.DB) error
		want    idempotency.Result
	}{
		"no answer":       {nothing, idempotency.Result{Status: 200}},
		"status alone":    {func(tx *gorm.DB) error { return idempotency.Respond(tx, 204, nil) }, idempotency.Result{Status: 204}},
		"JSON":            {func(tx *gorm.DB) error { return idempotency.Respond(tx, 201, "x") }, idempotency.Result{Status: 201, Header: typed, Body: []byte(`"x"`)}},
		"lowest status":   {func(tx *gorm.DB) error { return idempotency.Respond(tx, 100, nil) }, idempotency.Result{Status: 100}},
		"highest status":  {func(tx *gorm.DB) error { return idempotency.Respond(tx, 599, nil) }, idempotency.Result{Status: 599}},
		"client's error":  {func(tx *gorm.DB) error { return idempotency.Respond(tx, 422, "no") }, idempotency.Result{Status: 422, Header: typed, Body: []byte(`"no"`)}},
		"server's error":  {func(tx *gorm.DB) error { return idempotency.Respond(tx, 500, nil) }, idempotency.Result{Status: 500}},
		"raw, no headers": {rawAnswer(200, nil, []byte("x")), idempotency.Result{Status: 200, Body: []byte("x")}},
		"raw, no body":    {rawAnswer(302, map[string][]string{"Location": {"/a?b=c&d=<e>"}}, nil), idempotency.Result{Status: 302, Header: map[string][]string{"Location": {"/a?b=c&d=<e>"}}}},
		"CSV": {
			rawAnswer(200, map[string][]string{"Content-Type": {"text/csv; charset=utf-8"}}, []byte("a;b\r\n1;\"2\"\r\n")),
			idempotency.Result{Status: 200, Header: map[string][]string{"Content-Type": {"text/csv; charset=utf-8"}}, Body: []byte("a;b\r\n1;\"2\"\r\n")},
		},
		"gzip": {
			rawAnswer(200, map[string][]string{"Content-Encoding": {"gzip"}}, []byte("\x1f\x8b\x08\x00\x00\xff")),
			idempotency.Result{Status: 200, Header: map[string][]string{"Content-Encoding": {"gzip"}}, Body: []byte("\x1f\x8b\x08\x00\x00\xff")},
		},
		"headers as written, in their order, and none without values": {
			rawAnswer(200, map[string][]string{"Set-Cookie": {"b=2", "a=1", "a=1"}, "x-lower": {""}, "X-None": {}, "X-Nil": nil, "X-Text": {"żółw \\u0041 \ufffd \t"}}, nil),
			idempotency.Result{Status: 200, Header: map[string][]string{"Set-Cookie": {"b=2", "a=1", "a=1"}, "x-lower": {""}, "X-Text": {"żółw \\u0041 \ufffd \t"}}},
		},
		"an http.Header": {
			func(tx *gorm.DB) error {
				return idempotency.RespondRaw(tx, 200, http.Header{"Etag": {`"1"`}}, []byte(`{}`))
			},
			idempotency.Result{Status: 200, Header: map[string][]string{"Etag": {`"1"`}}, Body: []byte(`{}`)},
		},
	} {
		got := deliverTwice(t, db, "s", name, test.respond)
		test.want.Replayed, test.want.ClaimedAt = true, got.ClaimedAt
		if !reflect.DeepEqual(*got, test.want) {
			t.Errorf("%s: got\n%#v, want\n%#v", name, *got, test.want)
		}
		var _ http.Header = got.Header
	}
}

// Case C36 and C88: an answer that JSONB refuses never undoes the handler's work.
func TestAnswersThatJSONBRefusesDoNotUndoTheEffect(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	for i, body := range []string{
		`"\u0000"`, `{"\u0000":1}`, `"\ud800"`, `"\udc00\ud800"`, `["\ud83d\u0041"]`, "\"\xff\"", "\"\xed\xa0\x80\"",
		`1e200000`, `-1e-200000`, `[` + strings.Repeat(`1e131000,`, 900) + `1]`,
		strings.Repeat("[", 9000) + strings.Repeat("]", 9000),
		strings.Repeat(`{"a":`, 9000) + "1" + strings.Repeat("}", 9000),
		"not JSON at all \x00\xff",
	} {
		event := fmt.Sprint("e", i)
		respond := func(tx *gorm.DB) error {
			if err := tx.Create(&order{Event: event}).Error; err != nil {
				return err
			}
			if json.Valid([]byte(body)) && i%2 == 0 {
				return idempotency.Respond(tx, 200, json.RawMessage(body))
			}
			return idempotency.RespondRaw(tx, 200, nil, []byte(body))
		}
		if got := deliverTwice(t, db, "s", event, respond); string(got.Body) != body {
			t.Errorf("%.40q came back as %.40q", body, got.Body)
		}
		if _, err := idempotency.Do(db, "s", event, nil, unreachable(t)); err != nil {
			t.Error(err)
		}
		requireEffects(t, db, event, 1)
	}
}

// A bad answer is refused by Respond itself, before anything is written, and the transaction stays usable. Case C70: a
// status that SMALLINT would refuse after the handler ran is one of them.
func TestBadAnswersAreRefusedBeforeAnySQL(t *testing.T) {
	t.Parallel()
	db, sent := openWired(t, setup{config: idempotency.Config{MaxResponseBytes: 100}})
	header := func(name, value string) map[string][]string { return map[string][]string{name: {"fine", value}} }
	type answer = func(*gorm.DB) error
	respond := func(status int, body any) answer {
		return func(tx *gorm.DB) error { return idempotency.Respond(tx, status, body) }
	}
	bad := map[string]struct {
		answer answer
		want   error
	}{
		"function":                {respond(200, func() {}), idempotency.ErrInvalidResponse},
		"channel in a struct":     {respond(200, struct{ C chan int }{}), idempotency.ErrInvalidResponse},
		"not a number":            {respond(200, math.NaN()), idempotency.ErrInvalidResponse},
		"bytes":                   {respond(200, []byte(`{}`)), idempotency.ErrInvalidResponse},
		"nil bytes":               {respond(200, []byte(nil)), idempotency.ErrInvalidResponse},
		"message that is no JSON": {respond(200, json.RawMessage("{")), idempotency.ErrInvalidResponse},
		"empty message":           {respond(200, json.RawMessage{}), idempotency.ErrInvalidResponse},
		"two values":              {respond(200, json.RawMessage("1 2")), idempotency.ErrInvalidResponse},
		"message in a struct":     {respond(200, struct{ M json.RawMessage }{json.RawMessage("{")}), idempotency.ErrInvalidResponse},
		"marshaler that fails":    {respond(200, unmarshalable{}), idempotency.ErrInvalidResponse},
		"empty header name":       {rawAnswer(200, header("", "v"), nil), idempotency.ErrInvalidResponse},
		"header name with space":  {rawAnswer(200, header("A B", "v"), nil), idempotency.ErrInvalidResponse},
		"header name with colon":  {rawAnswer(200, header("A:", "v"), nil), idempotency.ErrInvalidResponse},
		"header name with NUL":    {rawAnswer(200, header("A\x00", "v"), nil), idempotency.ErrInvalidResponse},
		"header name in Cyrillic": {rawAnswer(200, header("Ж", "v"), nil), idempotency.ErrInvalidResponse},
		"bad name, no values":     {rawAnswer(200, map[string][]string{"A B": nil}, nil), idempotency.ErrInvalidResponse},
		"value with NUL":          {rawAnswer(200, header("A", "v\x00"), nil), idempotency.ErrInvalidResponse},
		"value with LF":           {rawAnswer(200, header("A", "v\nB: c"), nil), idempotency.ErrInvalidResponse},
		"value with CR":           {rawAnswer(200, header("A", "\r"), nil), idempotency.ErrInvalidResponse},
		"value not UTF-8":         {rawAnswer(200, header("A", "\xff"), nil), idempotency.ErrInvalidResponse},
		"JSON too large":          {respond(200, strings.Repeat("x", 99)), idempotency.ErrResponseTooLarge},
		"bytes too large":         {rawAnswer(200, nil, make([]byte, 101)), idempotency.ErrResponseTooLarge},
		"headers too large":       {rawAnswer(200, header("A", strings.Repeat("v", 90)), nil), idempotency.ErrResponseTooLarge},
		"headers and body":        {rawAnswer(200, header("A", strings.Repeat("v", 50)), make([]byte, 50)), idempotency.ErrResponseTooLarge},
	}
	for _, status := range []int{math.MinInt, -200, -1, 0, 1, 99, 600, 999, 32767, 32768, 65536 + 200, 70000, math.MaxInt} {
		bad[fmt.Sprint("status ", status)] = struct {
			answer answer
			want   error
		}{respond(status, "x"), idempotency.ErrInvalidResponse}
		bad[fmt.Sprint("raw status ", status)] = struct {
			answer answer
			want   error
		}{rawAnswer(status, nil, nil), idempotency.ErrInvalidResponse}
	}
	for name, test := range bad {
		// A handler that ignores the error goes on in a good transaction, as if it had not responded.
		_, err := idempotency.Do(db, "ignores", name, nil, func(tx *gorm.DB) error {
			sent.take()
			requireError(t, test.answer(tx), test.want)
			sent.requireSilent(t)
			return idempotency.Respond(tx, 202, "fine")
		})
		if err != nil {
			t.Errorf("%s: the transaction is not usable: %v", name, err)
		}
		// A handler that returns it undoes everything, at every delivery.
		for range 2 {
			result, err := idempotency.Do(db, "returns", name, nil, func(tx *gorm.DB) error {
				if err := tx.Create(&order{Event: "returns"}).Error; err != nil {
					return err
				}
				return test.answer(tx)
			})
			if result != nil {
				t.Errorf("%s: got %+v beside an error", name, result)
			}
			requireError(t, err, test.want)
			if idempotency.Retryable(err) {
				t.Errorf("%s: it will be the same at every delivery", name)
			}
		}
		requireNoKey(t, db, "returns", name)
	}
	requireEffects(t, db, "returns", 0)
}

type unmarshalable struct{}

func (unmarshalable) MarshalJSON() ([]byte, error) { return nil, errors.New("SECRET") }

// The handler answers once: a second call is refused and the first answer stands.
func TestSecondAnswerIsRefused(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	got := deliverTwice(t, db, "s", "e", func(tx *gorm.DB) error {
		if err := idempotency.Respond(tx, 201, "first"); err != nil {
			return err
		}
		requireError(t, idempotency.Respond(tx, 202, "second"), idempotency.ErrAlreadyResponded)
		requireError(t, idempotency.RespondRaw(tx, 203, nil, nil), idempotency.ErrAlreadyResponded)
		return nil
	})
	if got.Status != 201 || string(got.Body) != `"first"` {
		t.Errorf("got %d %s, want the first answer", got.Status, got.Body)
	}
}

// Outside of a handler there is nothing to answer, not even just after it.
func TestRespondOutsideOfAHandler(t *testing.T) {
	t.Parallel()
	db, sent := openWired(t, setup{})
	var left *gorm.DB
	if _, err := idempotency.Do(db, "s", "e", nil, func(tx *gorm.DB) error { left = tx; return nil }); err != nil {
		t.Fatal(err)
	}
	err := db.Transaction(func(tx *gorm.DB) error {
		sent.take()
		for name, handle := range map[string]*gorm.DB{"pool": db, "ended": left, "the caller's transaction": tx} {
			if err := idempotency.Respond(handle, 200, nil); !errors.Is(err, idempotency.ErrNoScope) {
				t.Errorf("%s: Respond gives %v", name, err)
			}
			if err := idempotency.RespondRaw(handle, 200, nil, nil); !errors.Is(err, idempotency.ErrNoScope) {
				t.Errorf("%s: RespondRaw gives %v", name, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	sent.take()
}

// The answer is the handler's to keep: what happens to its bytes and headers later changes nothing.
func TestAnswersAreCopied(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	for name, respond := range map[string]func(tx *gorm.DB, body []byte, header map[string][]string) error{
		"raw": func(tx *gorm.DB, body []byte, header map[string][]string) error {
			return idempotency.RespondRaw(tx, 200, header, body)
		},
		"message": func(tx *gorm.DB, body []byte, _ map[string][]string) error {
			return idempotency.Respond(tx, 200, json.RawMessage(body))
		},
	} {
		body, header := []byte(`[1]`), map[string][]string{"A": {"b"}}
		got := deliverTwice(t, db, "s", name, func(tx *gorm.DB) error {
			err := respond(tx, body, header)
			body[1], header["A"][0], header["C"] = '2', "d", []string{"e"}
			return err
		})
		if string(got.Body) != `[1]` || name == "raw" && !reflect.DeepEqual(got.Header, map[string][]string{"A": {"b"}}) {
			t.Errorf("%s: got %s %v", name, got.Body, got.Header)
		}
	}
}

// Case C76: large answers are replayed exactly, or refused before anything is written.
func TestLargeAnswers(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	limited := open(t, setup{dsn: dsn})
	unlimited := open(t, setup{dsn: dsn, config: idempotency.Config{MaxResponseBytes: -1}})
	for _, size := range []int{1, 4096, 1 << 20} {
		if got := deliverTwice(t, limited, "raw", fmt.Sprint(size), rawAnswer(200, nil, bytes.Repeat([]byte{0x5c}, size))); len(got.Body) != size {
			t.Errorf("%d bytes came back as %d", size, len(got.Body))
		}
	}
	_, err := idempotency.Do(limited, "s", "large", nil, rawAnswer(200, nil, make([]byte, 1<<20+1)))
	requireError(t, err, idempotency.ErrResponseTooLarge)
	requireNoKey(t, limited, "s", "large")
	if want := "1048577 bytes"; !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "MaxResponseBytes") {
		t.Errorf("%q does not say %s and MaxResponseBytes", err, want)
	}

	large := bytes.Repeat([]byte("\x00\xff\\'"), 4<<20/4)
	if got := deliverTwice(t, unlimited, "s", "large", rawAnswer(200, nil, large)); !bytes.Equal(got.Body, large) {
		t.Errorf("4 MiB came back as %d other bytes", len(got.Body))
	}
	text := json.RawMessage(`["` + strings.Repeat("x", 4<<20) + `"]`)
	if got := deliverTwice(t, unlimited, "s", "large JSON", jsonAnswer(text)); !bytes.Equal(got.Body, text) {
		t.Errorf("4 MiB of JSON came back as %d other bytes", len(got.Body))
	}
	huge := bytes.Repeat([]byte("\x00\xff\\'"), 64<<20/4)
	if got := deliverTwice(t, unlimited, "s", "huge", rawAnswer(200, nil, huge)); !bytes.Equal(got.Body, huge) {
		t.Errorf("64 MiB came back as %d other bytes", len(got.Body))
	}
	_, err = idempotency.Do(unlimited, "s", "too large", nil, rawAnswer(200, nil, make([]byte, 300<<20)))
	requireError(t, err, idempotency.ErrResponseTooLarge) // before it is copied
	requireNoKey(t, unlimited, "s", "too large")

	// The limit is for new answers: what is stored is replayed.
	if got, err := idempotency.Do(limited, "s", "large", nil, unreachable(t)); err != nil || !bytes.Equal(got.Body, large) {
		t.Errorf("a replay over the limit gives %v", err)
	}
}

// Decode reads the answer's body.
func TestDecode(t *testing.T) {
	t.Parallel()
	var got struct{ A int }
	if err := (&idempotency.Result{Body: []byte(`{"A":1}`)}).Decode(&got); err != nil || got.A != 1 {
		t.Errorf("got %+v, %v", got, err)
	}
	for name, body := range map[string]string{"nothing": "", "no JSON": "SECRET", "another shape": `{"A":"SECRET"}`} {
		err := (&idempotency.Result{Body: []byte(body)}).Decode(&got)
		if err == nil || strings.Contains(err.Error(), "SECRET") || !strings.Contains(err.Error(), "struct") {
			t.Errorf("%s: got %v, want an error that names the type and not the answer", name, err)
		}
	}
	var wrong *json.UnmarshalTypeError
	if err := (&idempotency.Result{Body: []byte(`{"A":"SECRET"}`)}).Decode(&got); !errors.As(err, &wrong) {
		t.Errorf("the cause is not to be found in %v", err)
	}
}

// Case C68: an error stores nothing, and an answer with a nil error is stored whatever its status: the next delivery gets it.
func TestErrorsAreNotStoredAndAnswersAre(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	failure := errors.New("not today")
	for range 3 {
		result, err := idempotency.Do(db, "s", "error", nil, func(tx *gorm.DB) error {
			if err := placeOrder("error")(tx); err != nil {
				return err
			}
			return failure
		})
		if result != nil || err != failure { //nolint:errorlint // it is returned as it is
			t.Errorf("got %+v, %v; want the handler's error as it is", result, err)
		}
		requireNoKey(t, db, "s", "error")
	}
	requireEffects(t, db, "error", 0)
	for _, status := range []int{404, 500} {
		got := deliverTwice(t, db, "s", fmt.Sprint(status), func(tx *gorm.DB) error { return idempotency.Respond(tx, status, nil) })
		if got.Status != status {
			t.Errorf("got %d, want %d", got.Status, status)
		}
	}
}

// FuzzResponse: whatever a handler answers, the replay gives the same bytes.
func FuzzResponse(f *testing.F) {
	for _, body := range []string{
		"", "null", `""`, `"\u0000"`, `"\ud800"`, `"\udc00\ud800"`, "\"\xff\"", "\xef\xbb\xbf1", `{"a":1,"a":2}`,
		`1e400`, `-0`, `1E+5`, `9007199254740993`, `1e999999`, `1e-20000`, `0.` + strings.Repeat("1", 17000),
		strings.Repeat("[", 3000) + strings.Repeat("]", 3000), " [1 ,\t2]\r\n", `{"b":[],"a":{}}`, "\x00", `\x00`, "'", "NaN",
	} {
		for status := 0; status < 1000; status += 333 {
			f.Add(status, "Content-Type", "text/plain", []byte(body), status == 0)
		}
	}
	f.Add(200, "", "\x00", []byte{}, true)
	f.Add(200, "X", "ż\\u0000", []byte{}, true)
	modes := driverModes(gormtest.DSN(f))
	databases := []*gorm.DB{
		open(f, setup{driver: modes["default"]}),
		open(f, setup{driver: modes["PreferSimpleProtocol"]}),
		open(f, setup{driver: modes["exec"]}),
	}
	event := 0
	f.Fuzz(func(t *testing.T, status int, name, value string, body []byte, raw bool) {
		event++
		for i, db := range databases {
			source, id := fmt.Sprint("mode", i), fmt.Sprint("event", event)
			requireRoundTrip(t, db, source, id, func(tx *gorm.DB) error {
				if raw {
					return idempotency.RespondRaw(tx, status, map[string][]string{name: {value, value}}, body)
				}
				return idempotency.Respond(tx, status, json.RawMessage(body))
			}, body)
		}
	})
}

// requireRoundTrip fails unless the answer is refused as such, or replayed to the byte.
func requireRoundTrip(t *testing.T, db *gorm.DB, source, id string, respond func(*gorm.DB) error, body []byte) {
	t.Helper()
	first, err := idempotency.Do(db, source, id, nil, respond)
	if errors.Is(err, idempotency.ErrInvalidResponse) || errors.Is(err, idempotency.ErrResponseTooLarge) {
		requireNoKey(t, db, source, id)
		return
	}
	if err != nil {
		t.Fatalf("the database refuses the answer: %v", err)
	}
	again, err := idempotency.Do(db, source, id, nil, unreachable(t))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.Body, body) || !bytes.Equal(again.Body, body) || (first.Body == nil) != (again.Body == nil) ||
		first.Status != again.Status || !reflect.DeepEqual(first.Header, again.Header) {
		t.Errorf("answered %+v, then %+v", first, again)
	}
}
