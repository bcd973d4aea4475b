// Package jsontext examines JSON text without losing anything of it, which a round through encoding/json does: that
// turns numbers into floats, drops duplicate names and replaces what is not Unicode.
package jsontext

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth is how many arrays and objects may stand inside one another. PostgreSQL's parser recurses, up to
// max_stack_depth, and so do ours; real payloads need a few dozen.
const maxDepth = 512

// scanner reads JSON text (RFC 8259) from left to right. It is strict where encoding/json is lenient: invalid UTF-8 and
// lone surrogates are errors, since all of them would become the same U+FFFD.
//
// The caller walks the text by the kind of each value. After an error, which is kept, everything reads as nothing.
type scanner struct {
	text  []byte
	pos   int
	depth int
	first bool // just behind an opening bracket
	err   error
}

// fail keeps the first error. It tells the place, never the text: a payload doesn't belong in a log.
func (s *scanner) fail(want string) {
	if s.err == nil {
		s.err = fmt.Errorf("jsontext: byte %d: want %s", s.pos, want)
	}
}

// peek moves to the next byte that is not white space, and returns it: 0 at the end and after an error.
func (s *scanner) peek() byte {
	for s.err == nil && s.pos < len(s.text) {
		switch c := s.text[s.pos]; c {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

// end expects nothing more.
func (s *scanner) end() {
	s.peek()
	if s.pos < len(s.text) {
		s.fail("the end of the text")
	}
}

// open moves behind the bracket that peek has found.
func (s *scanner) open() {
	s.pos++
	s.first = true
	if s.depth++; s.depth > maxDepth {
		s.fail(fmt.Sprintf("at most %d levels", maxDepth))
	}
}

// more moves to the next element in the brackets, or behind the closing one and reports false.
func (s *scanner) more(closing byte) bool {
	first := s.first
	s.first = false
	switch c := s.peek(); {
	case s.err != nil:
		return false
	case c == closing:
		s.pos++
		s.depth--
		return false
	case first:
		return true
	case c == ',':
		s.pos++
		return true
	}
	s.fail("a comma or the closing bracket")
	return false
}

// name reads a member's name and the colon behind it.
func (s *scanner) name() []byte {
	if s.peek() != '"' {
		s.fail("a member's name")
		return nil
	}
	name := s.string()
	if s.peek() != ':' {
		s.fail("a colon")
		return nil
	}
	s.pos++
	return name
}

// literal reads true, false or null.
func (s *scanner) literal() []byte {
	for _, literal := range []string{"true", "false", "null"} {
		if rest := s.text[s.pos:]; len(rest) >= len(literal) && string(rest[:len(literal)]) == literal {
			s.pos += len(literal)
			return rest[:len(literal)]
		}
	}
	s.fail("a value")
	return nil
}

// number reads a number, as written.
func (s *scanner) number() []byte {
	start := s.pos
	s.take('-')
	if !s.take('0') {
		s.digits()
	}
	if s.take('.') {
		s.digits()
	}
	if s.take('e') || s.take('E') {
		_ = s.take('+') || s.take('-')
		s.digits()
	}
	return s.text[start:s.pos]
}

// take moves behind c if it is next.
func (s *scanner) take(c byte) bool {
	if s.pos == len(s.text) || s.text[s.pos] != c {
		return false
	}
	s.pos++
	return true
}

// digits moves behind one digit or more.
func (s *scanner) digits() {
	start := s.pos
	for s.pos < len(s.text) && '0' <= s.text[s.pos] && s.text[s.pos] <= '9' {
		s.pos++
	}
	if s.pos == start {
		s.fail("a value")
	}
}

// string reads the string whose opening quote peek has found, and returns what it stands for: a part of the text if
// nothing is escaped, which is the usual case, else a copy.
func (s *scanner) string() []byte {
	s.pos++
	plain := s.plain()
	if s.take('"') {
		return plain
	}
	decoded := bytes.Clone(plain)
	for s.take('\\') {
		decoded = s.escaped(decoded)
		decoded = append(decoded, s.plain()...)
	}
	if !s.take('"') {
		s.fail("a closing quote")
	}
	return decoded
}

// plain reads what stands for itself, up to a quote, a backslash, or what a string may not hold.
func (s *scanner) plain() []byte {
	start := s.pos
	for s.pos < len(s.text) {
		c := s.text[s.pos]
		if c == '"' || c == '\\' || c < ' ' {
			break
		}
		if c < utf8.RuneSelf {
			s.pos++
			continue
		}
		r, size := utf8.DecodeRune(s.text[s.pos:])
		if r == utf8.RuneError && size == 1 {
			s.fail("UTF-8")
			break
		}
		s.pos += size
	}
	return s.text[start:s.pos]
}

// escaped reads what is behind a backslash and appends what it stands for.
func (s *scanner) escaped(decoded []byte) []byte {
	const letters, meanings = `"\/bfnrt`, "\"\\/\b\f\n\r\t"
	if s.take('u') {
		return utf8.AppendRune(decoded, s.codePoint())
	}
	if s.pos < len(s.text) {
		if i := strings.IndexByte(letters, s.text[s.pos]); i >= 0 {
			s.pos++
			return append(decoded, meanings[i])
		}
	}
	s.fail("an escape sequence")
	return decoded
}

// codePoint reads the hexadecimal digits of \uXXXX, and of the other half if it is a surrogate.
func (s *scanner) codePoint() rune {
	r := s.hex()
	if !utf16.IsSurrogate(r) {
		return r
	}
	if s.take('\\') && s.take('u') {
		r = utf16.DecodeRune(r, s.hex()) // U+FFFD unless high and low, in that order
	} else {
		r = utf8.RuneError
	}
	if r == utf8.RuneError {
		s.fail("both halves of a surrogate pair")
	}
	return r
}

// hex reads four hexadecimal digits.
func (s *scanner) hex() (r rune) {
	for range 4 {
		digit := byte(0)
		if s.pos < len(s.text) {
			digit = s.text[s.pos]
		}
		switch {
		case '0' <= digit && digit <= '9':
			digit -= '0'
		case 'a' <= digit && digit <= 'f':
			digit -= 'a' - 10
		case 'A' <= digit && digit <= 'F':
			digit -= 'A' - 10
		default:
			s.fail("four hexadecimal digits")
			return r
		}
		r = r<<4 | rune(digit)
		s.pos++
	}
	return r
}
