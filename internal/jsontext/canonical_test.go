package jsontext

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"
)

func pointers(t testing.TB, texts ...string) (parsed []Pointer) {
	t.Helper()
	for _, text := range texts {
		p, err := ParsePointer(text)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, p)
	}
	return parsed
}

func TestCanonical(t *testing.T) {
	t.Parallel()
	cases := []struct{ name, body, want string }{
		{"white space", " { \"a\" :\t[ 1 , 2 ]\r\n} \n", `{"a":[1,2]}`},
		{"members in order", `{"b":1,"a":2,"aa":3,"":4,"A":5}`, `{"":4,"A":5,"a":2,"aa":3,"b":1}`},
		{"at every level", `[{"b":{"d":1,"c":2},"a":[{"f":1,"e":2}]},{"b":1,"a":2}]`, `[{"a":[{"e":2,"f":1}],"b":{"c":2,"d":1}},{"a":2,"b":1}]`},
		{"elements keep their order", `[3,1,2]`, `[3,1,2]`},
		{"empty", `[{},[],"",[[]],{"a":{}}]`, `[{},[],"",[[]],{"a":{}}]`},
		{"literals", `[true,false,null]`, `[true,false,null]`},
		{"numbers as written", `[1,1.0,1e0,1E+0,-0,0,9007199254740993,9007199254740992,1e999999999999999999999]`,
			`[1,1.0,1e0,1E+0,-0,0,9007199254740993,9007199254740992,1e999999999999999999999]`},
		{"scalar", ` "a" `, `"a"`},
		{"number alone", `-12.50`, `-12.50`},
		{"needless escapes", `"\u0041\/\u00e4\u20AC\uD83D\uDE00"`, `"A/ä€😀"`},
		{"needed escapes", `"\"\\\b\f\n\r\t\u0000\u001f\u007f"`, "\"\\\"\\\\\\u0008\\u000c\\u000a\\u000d\\u0009\\u0000\\u001f\u007f\""},
		{"an escaped backslash is no escape", `"\\u0041"`, `"\\u0041"`},
		{"U+FFFD itself", "[\"\uFFFD\",\"\\ufffd\"]", "[\"\uFFFD\",\"\uFFFD\"]"},
		{"order by what names stand for", `{"b":1,"\u0061":2}`, `{"a":2,"b":1}`},
		{"order by bytes, not UTF-16", "{\"😀\":1,\"\uFB01\":2}", "{\"\uFB01\":2,\"😀\":1}"},
		{"same name in different objects", `{"a":{"a":1},"b":[{"a":1},{"a":1}]}`, `{"a":{"a":1},"b":[{"a":1},{"a":1}]}`},
		{"as deep as can be", strings.Repeat(`[`, maxDepth) + strings.Repeat(`]`, maxDepth), strings.Repeat(`[`, maxDepth) + strings.Repeat(`]`, maxDepth)},
		{"deep and wide", `[` + strings.Repeat(`[],`, 2*maxDepth) + `[]]`, `[` + strings.Repeat(`[],`, 2*maxDepth) + `[]]`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := Canonical([]byte(c.body), nil)
			if err != nil || string(got) != c.want {
				t.Errorf("Canonical(%s)\n got %s, %v\nwant %s", c.body, got, err, c.want)
			}
		})
	}
}

func TestCanonicalRefuses(t *testing.T) {
	t.Parallel()
	for name, bodies := range map[string][]string{
		"not JSON": {
			``, ` `, `nul`, `nulll`, `True`, `tru`, `+1`, `01`, `-`, `-a`, `1.`, `.5`, `1e`, `1e+`, `0x1`, `NaN`, `-01`, `1.e1`,
			`[`, `]`, `[1`, `[1,`, `[1,]`, `[,1]`, `[1 2]`, `[1}`, `[1,,2]`, `{`, `}`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a":1,}`,
			`{,"a":1}`, `{"a" 1}`, `{"a",1}`, `{a:1}`, `{1:1}`, `{"a":1]`, `{"a":}`, `{"a":1 "b":2}`, `'a'`, `// a`, "\ufeff1", "\v1", "1\x00", "\x00",
			`"`, `"a`, `"\`, `"\"`, `"\x"`, `"\u"`, `"\u12"`, `"\u12g4"`, `"\u123`, `"\U0041"`, "\"\n\"", "\"\x00\"", "\"\x1f\"", `"a" "b"`,
		},
		"trailing data":   {`1 2`, `{}{}`, `[]]`, `{} x`, `null,`},
		"duplicate names": {`{"a":1,"a":1}`, `{"a":1,"b":2,"a":3}`, `{"a":1,"\u0061":2}`, `[{"x":{"a":1,"a":2}}]`, `{"":1,"":2}`},
		"invalid UTF-8": {
			"\"\xff\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", "\"\xe2\x82\"", "\"\\n\xff\"", "{\"\xff\":1}", "\xff", "\"\xe4",
		},
		"lone surrogates": {
			`"\ud800"`, `"\udc00"`, `"\udc00\ud800"`, `"\ud800\ud800"`, `"\ud800x"`, `"\ud800\n"`, `"\ud800\u0041"`, `"\ud800\\udc00"`, `{"\ud800":1}`,
			`"\ud800\`, `"\ud800\u`, `"\ud800\uDC0"`, `"\ud83d\ude00\ude00"`,
		},
		"too deep": {
			strings.Repeat(`[`, maxDepth+1) + strings.Repeat(`]`, maxDepth+1), strings.Repeat(`{"a":`, maxDepth+1) + `1` + strings.Repeat(`}`, maxDepth+1),
			strings.Repeat(`[`, 1<<20), strings.Repeat(`{"":`, 1<<20),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, body := range bodies {
				got, err := Canonical([]byte(body), nil)
				if err == nil || got != nil {
					t.Errorf("Canonical(%.50q) = %.50q, %v, want an error", body, got, err)
				}
				inside := `{"ignored":` + body + `}`
				if got, err := Canonical([]byte(inside), pointers(t, "/ignored")); err == nil && name != "too deep" {
					t.Errorf("Canonical(%.50q) = %.50q, although that is ignored", inside, got)
				}
			}
		})
	}
}

func TestCanonicalErrorKeepsThePayloadSecret(t *testing.T) {
	t.Parallel()
	_, err := Canonical([]byte(`{"card":"4242","card":"4242"}`), nil)
	if err == nil || strings.Contains(err.Error(), "card") || strings.Contains(err.Error(), "4242") {
		t.Errorf("Canonical = %v, want an error without the payload", err)
	}
}

func TestCanonicalIgnores(t *testing.T) {
	t.Parallel()
	cases := []struct{ pointers, body, want string }{
		{"/a", `{"a":1,"b":2}`, `{"b":2}`},
		{"/a", `{"b":2}`, `{"b":2}`},
		{"/a", `{"a":{"a":1}}`, `{}`},
		{"/a", `{"b":{"a":1}}`, `{"b":{"a":1}}`},
		{"/a", `[{"a":1}]`, `[{"a":1}]`},
		{"/a", `"a"`, `"a"`},
		{"/a", `{"\u0061":1}`, `{}`},
		{"/a", `{"A":1,"aa":2}`, `{"A":1,"aa":2}`},
		{"/", `{"":1,"a":2}`, `{"a":2}`},
		{"//", `{"":{"":1,"a":2}}`, `{"":{"a":2}}`},
		{"/a/b", `{"a":{"b":1,"c":2},"b":3}`, `{"a":{"c":2},"b":3}`},
		{"/a/b", `{"a":[{"b":1}]}`, `{"a":[{"b":1}]}`},
		{"/a/0/b", `{"a":[{"b":1},{"b":2}]}`, `{"a":[{},{"b":2}]}`},
		{"/0", `[1,2,3]`, `[2,3]`},
		{"/2", `[1,2,3]`, `[1,2]`},
		{"/3 /-", `[1,2,3]`, `[1,2,3]`},
		{"/00 /01", `[1,2,3]`, `[1,2,3]`},
		{"/10", `[0,1,2,3,4,5,6,7,8,9,10,11]`, `[0,1,2,3,4,5,6,7,8,9,11]`},
		{"/0", `[1]`, `[]`},
		{"/0 /1", `[1,2,3]`, `[3]`},
		{"/0 /2", `[1,2,3]`, `[2]`},
		{"/0 /-", `{"0":1,"-":2}`, `{}`},
		{"/a /a/b", `{"a":{"b":1}}`, `{}`},
		{"/a/b /a/c", `{"a":{"b":1,"c":2,"d":3}}`, `{"a":{"d":3}}`},
		{"/a~1b /c~0d /e~01f", `{"a/b":1,"c~d":2,"e~1f":3,"e/f":4}`, `{"e/f":4}`},
		{"/ä", `{"ä":1,"\u00e4b":2}`, `{"äb":2}`},
	}
	for _, c := range cases {
		t.Run(c.pointers+" "+c.body, func(t *testing.T) {
			t.Parallel()
			got, err := Canonical([]byte(c.body), pointers(t, strings.Fields(c.pointers)...))
			if err != nil || string(got) != c.want {
				t.Errorf("Canonical = %s, %v, want %s", got, err, c.want)
			}
		})
	}
}

func TestCanonicalZeroPointerIgnoresNothing(t *testing.T) {
	t.Parallel()
	got, err := Canonical([]byte(`{"":1}`), []Pointer{{}})
	if err != nil || string(got) != `{"":1}` {
		t.Errorf("Canonical = %s, %v", got, err)
	}
}

func TestCanonicalLeavesTheBodyAlone(t *testing.T) {
	t.Parallel()
	body := []byte(` {"b":"\u0041","a":[1,2]} `)
	before := bytes.Clone(body)
	got, err := Canonical(body, pointers(t, "/a/0"))
	if err != nil {
		t.Fatal(err)
	}
	clear(got[:cap(got)])
	if !bytes.Equal(body, before) {
		t.Errorf("the body became %q", body)
	}
}

func FuzzCanonical(f *testing.F) {
	for _, seed := range []string{
		`{"b":[1,1.0,{"a":null}],"a":"\u0041\ud83d\ude00\n"}`, `[true,false,-0.5e+7]`, `{"a":1,"a":2}`, "\"\xff\"", `"\ud800"`, ` [ ] `, `{"":{"":""}}`,
	} {
		f.Add([]byte(seed))
	}
	ignore := pointers(f, "/a", "/b/0", "/0/a")
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := Canonical(body, nil)
		less, ignoring := Canonical(body, ignore)
		if (err == nil) != (ignoring == nil) {
			t.Fatalf("Canonical(%q): %v, ignoring some: %v", body, err, ignoring)
		}
		if err != nil {
			return
		}
		if again, err := Canonical(got, nil); err != nil || !bytes.Equal(again, got) {
			t.Errorf("%q becomes %q, and that %q, %v", body, got, again, err)
		}
		if again, err := Canonical(less, nil); err != nil || !bytes.Equal(again, less) {
			t.Errorf("%q becomes %q with some ignored, and that %q, %v", body, less, again, err)
		}
		want := decode(t, body)
		if value := decode(t, got); !reflect.DeepEqual(value, want) {
			t.Errorf("%q becomes %q, another value", body, got)
		}
		// Another writer's text of the same value: indented, HTML escaped, in an order of its own.
		indented, err := json.MarshalIndent(want, " ", "\t")
		if err != nil {
			t.Fatal(err)
		}
		if other, err := Canonical(indented, nil); err != nil || !bytes.Equal(other, got) {
			t.Errorf("%q becomes %q, but indented %q, %v", body, got, other, err)
		}
		if reversed, err := Canonical(reverse(t, nil, want), nil); err != nil || !bytes.Equal(reversed, got) {
			t.Errorf("%q becomes %q, but reversed %q, %v", body, got, reversed, err)
		}
	})
}

// decode is what encoding/json makes of a text that Canonical takes.
func decode(t *testing.T, text []byte) (value any) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil {
		t.Fatalf("encoding/json refuses %q: %v", text, err)
	}
	if decoder.More() {
		t.Fatalf("encoding/json finds more behind %q", text)
	}
	return value
}

// reverse appends a value with the members of its objects in falling order and every character escaped that can be.
func reverse(t *testing.T, out []byte, value any) []byte {
	t.Helper()
	switch value := value.(type) {
	case map[string]any:
		names := slices.Sorted(maps.Keys(value))
		slices.Reverse(names)
		out = append(out, '{')
		for i, name := range names {
			if i > 0 {
				out = append(out, " ,"...)
			}
			out = append(escapeAll(out, name), " : "...)
			out = reverse(t, out, value[name])
		}
		return append(out, '}')
	case []any:
		out = append(out, '[')
		for i, element := range value {
			if i > 0 {
				out = append(out, ',')
			}
			out = reverse(t, out, element)
		}
		return append(out, ']')
	case string:
		return escapeAll(out, value)
	default:
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		return append(out, text...)
	}
}

// escapeAll appends a string whose every character is escaped.
func escapeAll(out []byte, text string) []byte {
	out = append(out, '"')
	for _, unit := range utf16.Encode([]rune(text)) {
		out = fmt.Appendf(out, `\u%04X`, unit)
	}
	return append(out, '"')
}

// delivery is a body of the size and shape that a payment provider sends.
func delivery() []byte {
	body := []byte(`{"id":"evt_1","object":"event","created":1721900000,"type":"invoice.paid","pending_webhooks":2,"data":{"object":{`)
	for i := range 12 {
		body = fmt.Appendf(body, `
		"line_%d": {"object": "list", "amount": 2000, "tax": null, "name": "J\u00f6rg \"JJ\" Müller", "data": [{"id": "il_%[1]d", "paid": true}]},`, i)
	}
	return append(body, `"id":"in_1","attempt":3}}}`...)
}

func BenchmarkCanonical(b *testing.B) {
	ignore := pointers(b, "/pending_webhooks", "/data/object/attempt")
	body := delivery()
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := Canonical(body, ignore); err != nil {
			b.Fatal(err)
		}
	}
}
