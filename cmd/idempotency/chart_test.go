package main

import (
	"bytes"
	"testing"
	"unicode/utf8"
)

func TestBar(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		part, whole   int64
		blocks, ascii string
	}{
		{100, 100, "██████████", "##########"},
		{50, 100, "█████", "#####"},
		{26, 100, "██▋", "###"},
		{1, 1_000_000, "▏", "#"},
		{0, 100, "", ""},
		{0, 0, "", ""},
	} {
		if got := (pen{width: 10}).bar(c.part, c.whole); got != c.blocks {
			t.Errorf("%d of %d: %q, want %q", c.part, c.whole, got, c.blocks)
		}
		if got := (pen{width: 10, ascii: true}).bar(c.part, c.whole); got != c.ascii {
			t.Errorf("%d of %d: %q, want %q", c.part, c.whole, got, c.ascii)
		}
	}
}

// Not parallel: it sets environment variables.
func TestReadsUTF8(t *testing.T) {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		t.Setenv(name, "")
	}
	t.Setenv("LANG", "en_GB.UTF-8")
	if !readsUTF8() {
		t.Error("LANG=en_GB.UTF-8 is not taken for UTF-8")
	}
	t.Setenv("LC_ALL", "C")
	if readsUTF8() {
		t.Error("LC_ALL=C is taken for UTF-8")
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	table := newTable("source", "keys", "")
	table.row("ab", "1,234", "██")
	table.row("a source with quite a long name, and more", "5", "")
	var out bytes.Buffer
	if err := table.print(&out); err != nil {
		t.Fatal(err)
	}
	want := "source                             keys\n" +
		"ab                                1,234  ██\n" +
		"a source with quite a long name…      5\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", &out, want)
	}
	if n := utf8.RuneCountInString(shorten("\x1b\u0085\x7f", 9)); n != 3 || shorten("\x1b\u0085\x7f", 9) != "???" {
		t.Errorf("control characters are shown: %q", shorten("\x1b\u0085\x7f", 9))
	}
}
