package idempotency_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
)

// badKeys are keys that no table can hold, or hold for long.
var badKeys = map[string]struct{ source, id, field string }{
	"no source":                   {"", "e", "source"},
	"no event id":                 {"s", "", "event id"},
	"neither":                     {"", "", "source"},
	"NUL in the source":           {"s\x00", "e", "source"},
	"NUL in the event id":         {"s", "\x00e", "event id"},
	"0xFF in the source":          {"\xff", "e", "source"},
	"0xFF in the event id":        {"s", "e\xff", "event id"},
	"half a rune":                 {"s", "\xd0", "event id"},
	"surrogate in UTF-8":          {"s", "\xed\xa0\x80", "event id"},
	"overlong NUL":                {"s", "\xc0\x80", "event id"},
	"256 bytes of source":         {strings.Repeat("s", 256), "e", "source"},
	"1025 bytes of event id":      {"s", strings.Repeat("e", 1025), "event id"},
	"8000 repeated characters":    {"s", strings.Repeat("a", 8000), "event id"},
	"3200 characters of hex":      {"s", strings.Repeat("0f1e2d3c4b5a6978", 200), "event id"},
	"2700 runes of four bytes":    {"s", strings.Repeat("😀", 2700), "event id"},
	"257 runes of four bytes":     {"s", strings.Repeat("😀", 257), "event id"},
	"128 runes of source":         {strings.Repeat("ж", 128), "e", "source"},
	"long source and long id":     {strings.Repeat("s", 2000), strings.Repeat("e", 2000), "source"},
	"a megabyte of event id":      {"s", strings.Repeat("e", 1<<20), "event id"},
	"newline and NUL in event id": {"s", "\n\x00", "event id"},
	"newline behind the event id": {"s", "e\n", "event id"},
	"line break in the source":    {"s\r\n", "e", "source"},
	"tab in the event id":         {"s", "e\t1", "event id"},
	"delete":                      {"s", "e\x7f", "event id"},
	"next line, a C1 control":     {"s", "e\u0085", "event id"},
	"byte-order mark":             {"s", "\ufeffe", "event id"},
}

// Cases C37, C38 and C83: a key that cannot be one is refused before any SQL, by every function that takes one, and a
// caller's transaction stays usable. The limit is in bytes, whatever compresses well.
func TestInvalidKeysAreRefusedBeforeAnySQL(t *testing.T) {
	t.Parallel()
	db, sent := openWired(t, setup{})
	err := db.Transaction(func(tx *gorm.DB) error {
		for name, key := range badKeys {
			for _, handle := range []*gorm.DB{db, tx} {
				sent.take()
				result, err := idempotency.Do(handle, key.source, key.id, nil, unreachable(t))
				value, resultOfValue, errOfValue := idempotency.DoValue(handle, key.source, key.id, nil, func(*gorm.DB) (int, error) {
					t.Error("the handler ran")
					return 1, nil
				})
				found, errOfLookup := idempotency.Lookup(t.Context(), handle, key.source, key.id)
				errOfForget := idempotency.Forget(t.Context(), handle, key.source, key.id)
				if result != nil || resultOfValue != nil || value != 0 || found != nil {
					t.Errorf("%s: got a result beside the error", name)
				}
				for _, err := range []error{err, errOfValue, errOfLookup, errOfForget} {
					requireError(t, err, idempotency.ErrInvalidKey)
					var problem *idempotency.InvalidKeyError
					if !errors.As(err, &problem) || problem.Field != key.field || problem.Reason == "" {
						t.Errorf("%s: got %#v, want the field %s", name, problem, key.field)
					}
					if len(err.Error()) > 200 {
						t.Errorf("%s: the error repeats the key: %d bytes", name, len(err.Error()))
					}
				}
				sent.requireSilent(t)
			}
		}
		return tx.Create(&order{Event: "afterwards"}).Error
	})
	if err != nil {
		t.Fatalf("the caller's transaction is not usable: %v", err)
	}
	requireEffects(t, db, "afterwards", 1)
	if rows := read[int](t, db, "SELECT count(*) FROM idempotency_keys"); rows != 0 {
		t.Errorf("%d keys were written", rows)
	}
}

// Cases C37, C38, C39 and C85: keys are equal when their bytes are. Nothing is trimmed, folded or normalised, and the
// longest keys fit, however badly they compress.
func TestKeysAreComparedByteForByte(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	keys := [][2]string{
		{"shopify:orders/create", "1"},
		{"shopify:orders/paid", "1"}, // C85: one id, two subscriptions
		{"s", "e"},
		{"S", "e"},
		{"s", "E"},
		{"s", "e "},
		{"s", " e"},
		{"s ", "e"},
		{"se", "e"},
		{"s", "ee"},
		{"s", "é"},       // precomposed
		{"s", "e\u0301"}, // the same letter, decomposed
		{"s", "É"},
		{"s", "\u00ad"}, // soft hyphen, which collations ignore
		{"s", "\u200b"}, // and so does a zero-width space
		{"s", "ß"},
		{"s", "ss"},
		{"s", "ｅ"}, // full width
		{"s", "'; DROP TABLE idempotency_keys; --"},
		{"s", `\x65`},
		{"s", "%"},
		{"s", "?"},
		{"s", "$1"},
		{"s", "@name"},
		{"s", "1"},
		{"s", "01"},
		{"s", "null"},
		{"s", "\U0010ffff"},
		{strings.Repeat("s", 255), incompressible(1024)},
		{strings.Repeat("s", 255), incompressible(1023)},
		{strings.Repeat("s", 255), strings.Repeat("e", 1024)},
	}
	for _, key := range keys {
		for i := range 2 {
			result, err := idempotency.Do(db, key[0], key[1], nil, placeOrder("one"))
			if err != nil {
				t.Fatalf("%q: %v", key, err)
			}
			if result.Replayed != (i == 1) {
				t.Errorf("%q, delivery %d: replayed is %t", key, i, result.Replayed)
			}
		}
		if found, err := idempotency.Lookup(t.Context(), db, key[0], key[1]); err != nil || found.Source != key[0] || found.EventID != key[1] {
			t.Errorf("%q is found as %+v, %v", key, found, err)
		}
		if got := read[int](t, db, `SELECT count(*) FROM idempotency_keys WHERE source = ? AND event_id = ?`, key[0], key[1]); got != 1 {
			t.Errorf("%q is stored as another key", key)
		}
	}
	requireEffects(t, db, "one", int64(len(keys)))
}

// incompressible is a text of n bytes that PostgreSQL cannot compress.
func incompressible(n int) string {
	text := make([]byte, 0, n)
	for state := uint64(1); len(text) < n; {
		state = state*6364136223846793005 + 1442695040888963407
		text = append(text, byte(' '+1+(state>>33)%94))
	}
	return string(text)
}

// Case C39: the columns' collation is "C", so that no upgrade of a collation library touches the index, and an order by
// another collation does not matter.
func TestKeyColumnsHaveTheCollationC(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	got := read[string](t, db, `SELECT string_agg(a.attname || ' ' || c.collname || ' ' || c.collisdeterministic, ', ' ORDER BY a.attnum)
		FROM pg_attribute a JOIN pg_collation c ON c.oid = a.attcollation WHERE a.attrelid = 'idempotency_keys'::regclass AND a.attnum > 0`)
	if want := "source C true, event_id C true"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	got = read[string](t, db, `SELECT string_agg(DISTINCT c.collname, ', ') FROM pg_index i, unnest(i.indcollation::oid[]) AS o
		JOIN pg_collation c ON c.oid = o WHERE i.indrelid = 'idempotency_keys'::regclass AND i.indisprimary`)
	if got != "C" {
		t.Errorf("the primary key's collation is %s, want C", got)
	}
}

// Case C87: ordering is not promised. Events with ids of their own take effect as they come, however late.
func TestEventsTakeEffectInTheOrderOfArrival(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	for _, event := range []string{"deleted", "created", "updated"} {
		result, err := idempotency.Do(db, "shop", "evt_"+event, []byte(`{"second":1}`), placeOrder(event))
		if err != nil || result.Replayed {
			t.Errorf("%s: got %+v, %v", event, result, err)
		}
	}
	if got := read[string](t, db, "SELECT string_agg(event, ' ' ORDER BY id) FROM orders"); got != "deleted created updated" {
		t.Errorf("got the order %q", got)
	}
}

// FuzzKey: what is accepted as a key can be stored, and what cannot be stored, or is a slip, is not accepted.
func FuzzKey(f *testing.F) {
	for _, key := range badKeys {
		f.Add(key.source, key.id)
	}
	f.Add("s", "e")
	f.Add("s\n", "\ufeff")
	f.Add(strings.Repeat("s", 255), strings.Repeat("e", 1024))
	db, sent := openWired(f, setup{})
	f.Fuzz(func(t *testing.T, source, id string) {
		storable := func(text string, limit int) bool {
			return text != "" && len(text) <= limit && utf8.ValidString(text) && !regexp.MustCompile("[\\p{Cc}\ufeff]").MatchString(text)
		}
		sent.take()
		_, err := idempotency.Do(db, source, id, nil, nothing)
		if storable(source, 255) && storable(id, 1024) {
			if err != nil {
				t.Errorf("refused: %v", err)
			}
			return
		}
		requireError(t, err, idempotency.ErrInvalidKey)
		sent.requireSilent(t)
	})
}
