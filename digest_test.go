package idempotency_test

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
)

// requireDuplicate fails unless the event, claimed with one payload, is a duplicate with the other one; or, if it should
// not be, is refused and has no second effect.
func requireDuplicate(t testing.TB, db *gorm.DB, source, id, first, second string, duplicate bool) {
	t.Helper()
	if _, err := idempotency.Do(db, source, id, []byte(first), nothing); err != nil {
		t.Fatal(err)
	}
	result, err := idempotency.Do(db, source, id, []byte(second), unreachable(t))
	switch {
	case duplicate && (err != nil || !result.Replayed):
		t.Errorf("%s, %s: %.80q after %.80q gives %v, want a replay", source, id, second, first, err)
	case !duplicate && (!errors.Is(err, idempotency.ErrDigestMismatch) || result != nil):
		t.Errorf("%s, %s: %.80q after %.80q gives %+v, %v; want a mismatch", source, id, second, first, result, err)
	}
}

// Cases C69, C80 and C81: the raw digest takes every byte for meant; JSONDigest takes white space, order and escapes for
// meaningless and leaves out what it is told to; a function of one's own decides as it likes.
func TestDigestsDecideWhatADuplicateIs(t *testing.T) {
	t.Parallel()
	db := open(t, setup{config: idempotency.Config{Sources: map[string]idempotency.SourceConfig{
		"json":   {Digest: idempotency.JSONDigest()},
		"stripe": {Digest: idempotency.JSONDigest("/pending_webhooks", "/api_version", "/data/previous_attributes")},
		"reapit": {Digest: idempotency.JSONDigest("/attempts", "/items/0/try")},
		"length": {Digest: idempotency.Digest{Name: "length", Sum: other}},
	}}})
	const event = `{"id":"evt_1","api_version":"2024-06-20","pending_webhooks":2,"data":{"amount":100,"previous_attributes":{"amount":90}}}`
	tests := []struct {
		name, first, second string
		duplicateFor        []string
	}{
		{"same bytes", event, event, []string{"raw", "json", "stripe", "reapit", "length"}},
		{"nothing", "", "", []string{"raw", "json", "stripe", "reapit", "length"}},
		{"order", `{"a":1,"b":2}`, `{"b":2,"a":1}`, []string{"json", "stripe", "reapit", "length"}},
		{"white space", `{"a":1}`, " {\n\t\"a\" : 1 }\r\n", []string{"json", "stripe", "reapit"}},
		{"escapes", `{"a":"é/"}`, `{"\u0061":"\u00e9\/"}`, []string{"json", "stripe", "reapit"}},
		{"deep order", `[{"b":{"d":1,"c":2}}]`, `[{"b":{"c":2,"d":1}}]`, []string{"json", "stripe", "reapit", "length"}},
		{"1 and 1.0", `{"a":1}`, `{"a":1.0}`, nil},
		{"1 and 1e0", `1`, `1e0`, nil},
		{"beyond a float", `9007199254740993`, `9007199254740992`, []string{"length"}},
		{"number and string", `{"a":1}`, `{"a":"1"}`, nil},
		{"null and absent", `{"a":null}`, `{}`, nil},
		{"order of an array", `[1,2]`, `[2,1]`, []string{"length"}},
		{"duplicate names", `{"a":1,"a":2}`, `{"a":2,"a":1}`, []string{"length"}},
		{"duplicate names and none", `{"a":1,"a":2}`, `{"a":2}`, nil},
		{"not JSON", `a=1&b=2`, `b=2&a=1`, []string{"length"}},
		{"precomposed", `"é"`, `"e\u0301"`, nil},
		{"half surrogates", `"\ud800"`, `"\ud801"`, []string{"length"}},
		{"pending webhooks", event, strings.Replace(event, `webhooks":2`, `webhooks":1`, 1), []string{"stripe", "length"}},
		{"API version", event, strings.Replace(event, "2024-06-20", "2025-01-27", 1), []string{"stripe", "length"}},
		{"previous attributes", event, strings.Replace(event, `"amount":90`, `"amount":1`, 1), []string{"stripe"}},
		{"amount", event, strings.Replace(event, `100`, `101`, 1), []string{"length"}},
		{"amount beside pending", event, strings.NewReplacer(`100`, `999`, `webhooks":2`, `webhooks":1`).Replace(event), []string{"length"}},
		{"attempts", `{"id":1,"attempts":1}`, `{"id":1,"attempts":2}`, []string{"reapit", "length"}},
		{"attempts, then none", `{"id":1,"attempts":1}`, `{"id":1}`, []string{"reapit"}},
		{"attempts elsewhere", `{"a":{"attempts":1}}`, `{"a":{"attempts":2}}`, []string{"length"}},
		{"attempts in an array", `{"items":[{"try":1},{"try":1}]}`, `{"items":[{"try":2},{"try":1}]}`, []string{"reapit", "length"}},
		{"attempts of another element", `{"items":[{"try":1},{"try":1}]}`, `{"items":[{"try":1},{"try":2}]}`, []string{"length"}},
	}
	for _, test := range tests {
		for _, source := range []string{"raw", "json", "stripe", "reapit", "length"} {
			requireDuplicate(t, db, source, test.name, test.first, test.second, strings.Contains(" "+strings.Join(test.duplicateFor, " ")+" ", " "+source+" "))
		}
	}
}

// Case C81: a mismatch names the event, the digest and what to do about a sender that changes its payloads, and no payload.
func TestMismatchSaysWhichOptionToUse(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	claimed, err := idempotency.Do(db, "reapit", "evt_1", []byte(`{"SECRET":1,"attempts":1}`), nothing)
	if err != nil {
		t.Fatal(err)
	}
	_, err = idempotency.Do(db, "reapit", "evt_1", []byte(`{"SECRET":1,"attempts":2}`), unreachable(t))
	var mismatch *idempotency.DigestMismatchError
	if !errors.As(err, &mismatch) {
		t.Fatalf("got %v", err)
	}
	want := idempotency.DigestMismatchError{Source: "reapit", EventID: "evt_1", Scheme: "sha256", ClaimedAt: claimed.ClaimedAt}
	if *mismatch != want {
		t.Errorf("got %+v, want %+v", *mismatch, want)
	}
	for _, word := range []string{"evt_1", "reapit", "sha256", "JSONDigest", "SourceConfig.Digest"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not say %s", err, word)
		}
	}
	if strings.Contains(err.Error(), "SECRET") {
		t.Errorf("%q contains the payload", err)
	}
}

// A stored digest is compared under the scheme that wrote it, so that changing a source's digest turns no live key into a
// mismatch, and lets no changed payload through.
func TestDigestOfASourceMayChange(t *testing.T) {
	t.Parallel()
	length := idempotency.Digest{Name: "length", Sum: other}
	schemes := map[string]idempotency.Digest{
		"sha256": idempotency.SHA256(), "json": idempotency.JSONDigest(), "pointers": idempotency.JSONDigest("/b", "/a~1<", "/é"), "custom": length,
	}
	dsn := gormtest.DSN(t)
	for from, before := range schemes {
		for to, after := range schemes {
			source := from + " to " + to
			// The custom digest is known as long as some source has it.
			known := idempotency.Config{Digest: after, Sources: map[string]idempotency.SourceConfig{"another": {Digest: length}}}
			old := open(t, setup{dsn: dsn, config: idempotency.Config{Digest: before}})
			renewed := open(t, setup{dsn: dsn, config: known})
			for _, event := range []string{"equal", "changed"} {
				if _, err := idempotency.Do(old, source, event, []byte(`{"a":1}`), nothing); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := idempotency.Do(renewed, source, "equal", []byte(`{"a":1}`), unreachable(t)); err != nil {
				t.Errorf("%s: the same payload gives %v", source, err)
			}
			_, err := idempotency.Do(renewed, source, "changed", []byte(`{"a":22}`), unreachable(t))
			var mismatch *idempotency.DigestMismatchError
			if !errors.As(err, &mismatch) || mismatch.Scheme != before.Name {
				t.Errorf("%s: a changed payload gives %v, want a mismatch under %s", source, err, before.Name)
			}
		}
	}
}

// A row whose digest nobody knows any more is replayed, with one warning that names it.
func TestUnknownDigestIsReplayedWithOneWarning(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	old := open(t, setup{dsn: dsn, config: idempotency.Config{Digest: idempotency.Digest{Name: "forgotten%d", Sum: other}}})
	log := &journal{}
	db := open(t, setup{dsn: dsn, gorm: gorm.Config{Logger: log}})
	for i := range 3 {
		event := fmt.Sprint(i)
		requireDuplicate(t, old, "s", event, "1", "1", true)
		if result, err := idempotency.Do(db, "s", event, []byte("SECRET"), unreachable(t)); err != nil || !result.Replayed {
			t.Errorf("got %+v, %v; want a replay", result, err)
		}
	}
	if lines := log.of("warn", "error"); len(lines) != 1 || !strings.Contains(lines[0], `"forgotten%d"`) || strings.Contains(lines[0], "SECRET") {
		t.Errorf("the log says %q, want one warning that names the digest", lines)
	}
}

// The row holds 32 bytes for SHA256, and the name, a colon and 32 bytes for another digest.
func TestStoredDigest(t *testing.T) {
	t.Parallel()
	db := open(t, setup{config: idempotency.Config{Sources: map[string]idempotency.SourceConfig{
		"json": {Digest: idempotency.JSONDigest("/b", "/a", "/b")}, "colon": {Digest: idempotency.Digest{Name: ":", Sum: other}},
	}}})
	sum := func(text string) string { s := sha256.Sum256([]byte(text)); return string(s[:]) }
	otherSum := other([]byte(`{"c":1}`))
	for source, want := range map[string]string{
		"raw": sum(`{"c":1}`), "json": `json["/a","/b"]:` + sum(`{"c":1}`), "colon": "::" + string(otherSum[:]),
	} {
		if _, err := idempotency.Do(db, source, "e", []byte(`{"c":1}`), nothing); err != nil {
			t.Fatal(err)
		}
		key, err := idempotency.Lookup(t.Context(), db, source, "e")
		if err != nil || string(key.PayloadDigest) != want {
			t.Errorf("%s: got %q, %v; want %q", source, key.PayloadDigest, err, want)
		}
	}
}

// Cases C82 and C83: there is no hidden time bucket, and nothing but the key says what an event is. Who has no id to go by
// makes one, of signed content; a body under a new id is a new event.
func TestNothingButTheKeyIdentifiesAnEvent(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	body := []byte(`{"order":1}`)
	id := fmt.Sprintf("%x", sha256.Sum256(body)) // an id for a sender that offers none
	for range 2 {
		if _, err := idempotency.Do(db, "idless", id, body, placeOrder("idless")); err != nil {
			t.Fatal(err)
		}
		// However old the key is: an hour is no other bucket than a second.
		mustExec(t, db, `UPDATE idempotency_keys SET claimed_at = claimed_at - interval '61 minutes', completed_at = completed_at - interval '61 minutes'`)
	}
	requireEffects(t, db, "idless", 1)
	for _, id := range []string{"captured", "replayed under another id"} {
		if _, err := idempotency.Do(db, "signed", id, body, placeOrder("signed")); err != nil {
			t.Fatal(err)
		}
	}
	requireEffects(t, db, "signed", 2)
}

// A digest's function must not see, or be able to cause, a difference: nil and empty payloads are equal.
func TestNilPayloadIsAnEmptyOne(t *testing.T) {
	t.Parallel()
	db := open(t, setup{config: idempotency.Config{Sources: map[string]idempotency.SourceConfig{"json": {Digest: idempotency.JSONDigest()}}}})
	for _, source := range []string{"raw", "json"} {
		if _, err := idempotency.Do(db, source, "e", nil, nothing); err != nil {
			t.Fatal(err)
		}
		if _, err := idempotency.Do(db, source, "e", []byte{}, unreachable(t)); err != nil {
			t.Error(err)
		}
	}
}

// FuzzJSONDigest: texts of one value have one digest, and another number has another one.
func FuzzJSONDigest(f *testing.F) {
	for _, body := range []string{
		`{"b":[1,{"d":2,"c":3}],"a":"x"}`, `[1.0,1e0,1]`, `"\u0000"`, `9007199254740993`, `{"a":1,"a":2}`, `"\ud800"`, "\"\xff\"", `{"":{}}`,
		`-0`, `1E400`, ` null `, "not json", "", `{"é":"e\u0301"}`, strings.Repeat("[", 600) + strings.Repeat("]", 600), `{"a":{"a":{"a":1}}}`,
	} {
		f.Add([]byte(body), int64(7))
	}
	digest := idempotency.JSONDigest()
	ignoring := idempotency.JSONDigest("/ignored", "/ignored/deeper")
	f.Fuzz(func(t *testing.T, body []byte, n int64) {
		if digest.Sum(body) != digest.Sum(body) { //nolint:staticcheck // it is deterministic
			t.Error("the digest changes")
		}
		if !canonicalizable(body) {
			return
		}
		wrap := func(format string, args ...any) []byte { return fmt.Appendf(nil, format, args...) }
		next := new(big.Int).Add(big.NewInt(n), big.NewInt(1))
		same := [][2][]byte{
			{wrap(`{"a":%s,"b":%d}`, body, n), wrap("\n{ \"b\" :\t%d , \"\\u0061\":\r%s }", n, body)},
			{wrap(`[%s]`, body), wrap(` [ %s ] `, body)},
			{body, wrap(" %s\n", body)},
		}
		different := [][2][]byte{
			{wrap(`{"a":%s,"b":%d}`, body, n), wrap(`{"a":%s,"b":%s}`, body, next)},
			{wrap(`[%s,%d]`, body, n), wrap(`[%d,%s,0]`, n, body)},
			{wrap(`%d`, n), wrap(`%d.0`, n)},
			{wrap(`{"a":%s}`, body), wrap(`{"b":%s}`, body)},
			{wrap(`{"a":%s}`, body), wrap(`{"a":[%s]}`, body)},
		}
		for _, pair := range same {
			if digest.Sum(pair[0]) != digest.Sum(pair[1]) {
				t.Errorf("%q and %q differ", pair[0], pair[1])
			}
		}
		for _, pair := range different {
			if digest.Sum(pair[0]) == digest.Sum(pair[1]) {
				t.Errorf("%q and %q are equal", pair[0], pair[1])
			}
		}
		if ignoring.Sum(wrap(`{"a":%d,"ignored":%s}`, n, body)) != ignoring.Sum(wrap(`{"ignored":0,"a":%d}`, n)) {
			t.Errorf("an ignored %q counts", body)
		}
		if ignoring.Sum(wrap(`{"a":%d,"ignored":%s}`, n, body)) == ignoring.Sum(wrap(`{"a":%s,"ignored":%s}`, next, body)) {
			t.Errorf("beside an ignored %q, nothing counts", body)
		}
	})
}

// canonicalizable reports, by the standard library's means, whether a body is certainly JSON that has a canonical form:
// shallow, in UTF-8, without an escape that could be half of a surrogate pair, and without objects, whose names could repeat.
func canonicalizable(body []byte) bool {
	text := string(body)
	return json.Valid(body) && strings.ToValidUTF8(text, "") == text && !strings.ContainsAny(text, `\{`) && strings.Count(text, "[") < 500
}
