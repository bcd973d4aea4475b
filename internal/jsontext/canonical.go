package jsontext

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
)

// Canonical returns the JSON value in body in the one form that all texts of the same value share, for a digest:
//
//   - members in the order of their decoded names' bytes, no white space,
//   - strings with no more escapes than they need,
//   - numbers as written: 1, 1.0 and 1e0 differ, as do 9007199254740993 and 9007199254740992.
//
// The values at the pointers in ignore are left out, members with their names, whether or not they are there. The
// elements of an array are numbered as they stand in body.
//
// Two bodies of the same canonical form are thus the same but for the ignored places. To keep that promise, Canonical
// refuses what parsers disagree on, wherever it stands: duplicate names, invalid UTF-8, lone surrogates; and what is
// not one JSON value, or nested more than 512 deep. What it refuses it never returns, so a digest may fall back on the raw
// bytes without a new collision.
func Canonical(body []byte, ignore []Pointer) ([]byte, error) {
	c := canonicalizer{scanner: scanner{text: body}, out: make([]byte, 0, len(body))}
	c.value(placesOf(ignore))
	c.end()
	if c.err != nil {
		return nil, c.err
	}
	return c.out, nil
}

// canonicalizer writes each value to out as it is read, and puts the members of an object in order when that closes.
type canonicalizer struct {
	scanner
	out     []byte
	members []member // of the objects that are open, outermost first
	sorted  []byte   // where an object is put in order
}

// member is a member that has been written to out, between start and end: empty if it is left out.
type member struct {
	name       []byte
	start, end int
}

func (c *canonicalizer) value(ignore places) {
	switch c.peek() {
	case '{':
		c.object(ignore)
	case '[':
		c.array(ignore)
	case '"':
		c.out = appendString(c.out, c.string())
	case 't', 'f', 'n':
		c.out = append(c.out, c.literal()...)
	default:
		c.out = append(c.out, c.number()...)
	}
}

func (c *canonicalizer) array(ignore places) {
	c.open()
	c.out = append(c.out, '[')
	start := len(c.out)
	for i := 0; c.more(']'); i++ {
		before := len(c.out)
		if before > start {
			c.out = append(c.out, ',')
		}
		if c.part(strconv.AppendInt(nil, int64(i), 10), ignore) {
			c.out = c.out[:before]
		}
	}
	c.out = append(c.out, ']')
}

func (c *canonicalizer) object(ignore places) {
	c.open()
	outer, start := len(c.members), len(c.out)
	for c.more('}') {
		m := member{name: c.name(), start: len(c.out)}
		c.out = append(appendString(c.out, m.name), ':')
		if c.part(m.name, ignore) {
			c.out = c.out[:m.start]
		}
		m.end = len(c.out)
		c.members = append(c.members, m)
	}
	c.sort(start, c.members[outer:])
	c.members = c.members[:outer]
}

// part writes a part of an array or object and reports whether it is left out. Even then it is read with the same care:
// what is refused does not depend on what is ignored.
func (c *canonicalizer) part(name []byte, ignore places) (out bool) {
	ignore, out = ignore.at(name)
	c.value(ignore)
	return out
}

// sort puts the members of an object, which are all that has been written since start, in order and in braces.
func (c *canonicalizer) sort(start int, members []member) {
	slices.SortFunc(members, func(a, b member) int { return bytes.Compare(a.name, b.name) })
	c.sorted = append(c.sorted[:0], '{')
	for i, m := range members {
		if i > 0 && bytes.Equal(members[i-1].name, m.name) {
			c.fail("each name once in the object that ends here")
			return
		}
		if m.start == m.end {
			continue
		}
		if len(c.sorted) > 1 {
			c.sorted = append(c.sorted, ',')
		}
		c.sorted = append(c.sorted, c.out[m.start:m.end]...)
	}
	c.out = append(append(c.out[:start], c.sorted...), '}')
}

// appendString writes a string with the escapes that JSON demands: quotes, backslashes and control characters.
func appendString(out, decoded []byte) []byte {
	out = append(out, '"')
	plain := 0 // the start of what needs no escape
	for i, b := range decoded {
		if b >= ' ' && b != '"' && b != '\\' {
			continue
		}
		out = append(out, decoded[plain:i]...)
		plain = i + 1
		if b < ' ' {
			out = fmt.Appendf(out, `\u%04x`, b)
		} else {
			out = append(out, '\\', b)
		}
	}
	return append(append(out, decoded[plain:]...), '"')
}
