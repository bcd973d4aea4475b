package jsontext

import (
	"bytes"
	"strconv"
)

// What PostgreSQL's numeric holds.
const (
	numericWhole    = 131072 // digits before the point
	numericFraction = 16383  // and after
)

// maxBytes bounds what a document takes on the server, stored or printed. An array or object in JSONB holds 256 MiB, the
// server's allocator gives 1 GiB at once, and parsing takes up to 72 bytes a member, doubled.
const maxBytes = 64 << 20

// valueBytes is what a value takes beside its text: an entry in its array or object, a header, alignment. Without it,
// [0,0,…] would be bounded by its text, and become six times that.
const valueBytes = 16

// FitsJSONB reports whether PostgreSQL 12 to 18 accepts text as JSONB, in a database whose encoding is UTF8, and can print
// it again. It may refuse something exotic that a server would take, but never the reverse: what a server refuses when an
// answer is stored undoes the handler's work, on every delivery anew.
//
// JSONB refuses, beyond what is not JSON, the character U+0000, lone surrogates and numbers that numeric does not hold.
func FitsJSONB(text []byte) bool {
	j := jsonb{scanner: scanner{text: text}}
	j.grow(len(text))
	j.value()
	j.end()
	return j.err == nil
}

// jsonb walks through a document and fails where the server would.
type jsonb struct {
	scanner
	bytes int // what the document takes, so far
}

// grow adds to what the document takes.
func (j *jsonb) grow(n int) {
	if j.bytes += n; j.bytes > maxBytes {
		j.fail("less")
	}
}

func (j *jsonb) value() {
	j.grow(valueBytes)
	switch j.peek() {
	case '{':
		for j.open(); j.more('}'); {
			j.grow(valueBytes)
			j.characters(j.name())
			j.value()
		}
	case '[':
		for j.open(); j.more(']'); {
			j.value()
		}
	case '"':
		j.characters(j.string())
	case 't', 'f', 'n':
		j.literal()
	default:
		j.printable(j.number())
	}
}

// characters checks a decoded string. The scanner takes a zero byte in its escaped form only.
func (j *jsonb) characters(decoded []byte) {
	if bytes.IndexByte(decoded, 0) >= 0 {
		j.fail("no U+0000")
	}
}

// printable checks a number for its digits when it is printed, which is without an exponent: a megabyte of 1e131071 would be
// stored happily and be too large to read for ever. Zeros count like other digits; the server may take a few more.
func (j *jsonb) printable(literal []byte) {
	mantissa, exponent := literal, 0
	if i := bytes.IndexAny(literal, "eE"); i >= 0 {
		mantissa = literal[:i]
		var err error
		if exponent, err = strconv.Atoi(string(literal[i+1:])); err != nil { // the scanner knows its form: too large
			j.fail("a smaller exponent")
			return
		}
	}
	whole, fraction, _ := bytes.Cut(bytes.TrimPrefix(mantissa, []byte("-")), []byte("."))
	if exponent > numericWhole-len(whole) || exponent < len(fraction)-numericFraction {
		j.fail("a number that numeric holds")
		return
	}
	j.grow(len(whole) + len(fraction) + max(exponent, -exponent))
}
