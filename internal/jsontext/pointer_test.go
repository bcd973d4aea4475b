package jsontext

import (
	"slices"
	"testing"
)

func TestParsePointer(t *testing.T) {
	t.Parallel()
	cases := map[string][]string{
		"/a": {"a"}, "/": {""}, "//": {"", ""}, "/a/b/0": {"a", "b", "0"}, "/a~1b": {"a/b"}, "/~0": {"~"}, "/~01": {"~1"}, "/~00": {"~0"},
		"/~10": {"/0"}, "/~0~1": {"~/"}, "/ ": {" "}, `/"\`: {`"\`}, "/%41": {"%41"}, "/-": {"-"},
	}
	for text, want := range cases {
		p, err := ParsePointer(text)
		if err != nil || !slices.Equal(p.names, want) {
			t.Errorf("ParsePointer(%q) = %q, %v, want %q", text, p.names, err, want)
		}
		if p.String() != text {
			t.Errorf("String() = %q, want %q", p, text)
		}
	}
	for _, text := range []string{"", "a", "a/b", "#/a", "$.a", " /a", "/~", "/a~", "/~2", "/~~", "/~a/b", "/a/~", "/~~1"} {
		if p, err := ParsePointer(text); err == nil || p.names != nil || p.text != "" {
			t.Errorf("ParsePointer(%q) = %q, %v, want an error", text, p.names, err)
		}
	}
}
