package jsontext

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestFitsJSONB(t *testing.T) {
	t.Parallel()
	nines := func(n int) string { return strings.Repeat("9", n) }
	cases := map[bool][]string{
		true: {
			`null`, `true`, `0`, `-0`, `""`, `{}`, `[]`, ` {"a" : [1, 2.50, "x", {"b":null}]} `, `{"a":1,"a":2}`, `"\\u0000"`, `"\\\\u0000"`,
			`"\u0001"`, `"\ud83d\ude00"`, `"\uD83D\uDE00"`, `"\ufffe\uffff"`, "\"\x7f\U0010ffff\"", `"\"\\\/\b\f\n\r\t"`, `{"":""}`,
			`1e131071`, `1E+131071`, `12e131070`, `-9.99e131071`, nines(131072), nines(131072) + `.5`, `1e-16383`, `0.5e-16382`, `0.` + nines(16383),
			`1e0000000000000000000000000001`, `0.` + nines(20000) + `e4000`, nines(140000) + `e-10000`,
			strings.Repeat(`[`, maxDepth) + strings.Repeat(`]`, maxDepth), `"` + strings.Repeat("x", 1<<20) + `"`, `[` + strings.Repeat("0,", 1<<17) + `0]`,
		},
		false: {
			``, ` `, `nul`, `{`, `[1,]`, `01`, `'a'`, `1 2`, "\"\n\"", "\"\x00\"", "\ufeff1", "\x00", `NaN`, `Infinity`,
			`"\u0000"`, `"a\u0000b"`, `["\\\u0000"]`, `{"\u0000":1}`, `{"a":{"b":["\u0000"]}}`,
			`"\ud800"`, `"\ude00\ud83d"`, `"\ud800\ud800"`, `"\ud83dx"`, `{"\udc00":1}`, "\"\xff\"", "\"\xed\xa0\x80\"", "\"\xc0\x80\"",
			`1e131072`, `12e131071`, `-1e400000`, nines(131073), `1e-16384`, `0.1e-16383`, `0.` + nines(16384), `1e99999999999999999999`,
			`1e-99999999999999999999`, `1e9223372036854775807`, `1e-9223372036854775808`, `{"a":[1e131072]}`,
			strings.Repeat(`[`, maxDepth+1) + strings.Repeat(`]`, maxDepth+1), strings.Repeat(`{"a":`, 10000) + `1` + strings.Repeat(`}`, 10000),
			`"` + strings.Repeat("x", 64<<20) + `"`,                       // as a whole
			`[` + strings.Repeat("0,", 4<<20) + `0]`,                      // 8 MiB, but too many elements
			`{` + strings.Repeat(`"":0,`, 2<<20) + `"":0}`,                // 10 MiB, but too many members
			`[` + strings.Repeat("1e131071,", 1<<10) + `0]`,               // 9 kB, but 128 MiB when printed
			`[` + strings.Repeat("1e-16383,", 4<<10) + `0]`,               // 36 kB, but 64 MiB when printed
			`[` + strings.Repeat(`{"a":"\ud83d\ude00"},`, 1000) + `"\ud8`, // the last one counts
		},
	}
	for want, texts := range cases {
		for _, text := range texts {
			if got := FitsJSONB([]byte(text)); got != want {
				t.Errorf("FitsJSONB(%.60q) = %v (%d bytes)", text, got, len(text))
			}
		}
	}
}

func FuzzFitsJSONB(f *testing.F) {
	for _, seed := range []string{`{"a":[1e10,-0.5,"\u0041\ud83d\ude00"],"a":null}`, `"\u0000"`, "\"\xff\"", `1e131072`, ` [ ] `, `"\\u0000"`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		fits := FitsJSONB(text)
		if fits && !json.Valid(text) {
			t.Errorf("%q fits, although it is not JSON", text)
		}
		canonical, err := Canonical(text, nil)
		if err == nil && FitsJSONB(canonical) != fits {
			t.Errorf("%q fits: %v, but %q: %v", text, fits, canonical, !fits)
		}
		if fits && FitsJSONB(fmt.Appendf(nil, `{"\u0000":%s}`, text)) {
			t.Errorf("%q fits behind a name that does not", text)
		}
	})
}

func BenchmarkFitsJSONB(b *testing.B) {
	body := delivery()
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if !FitsJSONB(body) {
			b.Fatal("does not fit")
		}
	}
}
