package jsontext

import (
	"fmt"
	"strings"
)

// Pointer names a place below the root of a JSON document (RFC 6901). The zero value names none.
type Pointer struct {
	text  string
	names []string // decoded
}

// ParsePointer reads a pointer such as "/data/attempt". The whole document, "", is refused: nothing would remain.
func ParsePointer(text string) (Pointer, error) {
	names := strings.Split(text, "/")
	if len(names) == 1 || names[0] != "" {
		return Pointer{}, fmt.Errorf("%q is not a JSON Pointer to a place in a document: want it to begin with /", text)
	}
	names = names[1:]
	for i, name := range names {
		if strings.Count(name, "~") != strings.Count(name, "~0")+strings.Count(name, "~1") {
			return Pointer{}, fmt.Errorf("%q is not a JSON Pointer: want ~ to be written as ~0, and / in a name as ~1", text)
		}
		// In this order: ~01 stands for ~1, not for a slash.
		names[i] = strings.ReplaceAll(strings.ReplaceAll(name, "~1", "/"), "~0", "~")
	}
	return Pointer{text: text, names: names}, nil
}

// String is the pointer as it was given to ParsePointer.
func (p Pointer) String() string { return p.text }

// places are what is still to go to places that are left out, seen from a value on the way to them.
type places [][]string

func placesOf(pointers []Pointer) (below places) {
	for _, p := range pointers {
		if len(p.names) > 0 {
			below = append(below, p.names)
		}
	}
	return below
}

// at is what is below the member or element of this name, and whether it is itself left out.
func (p places) at(name []byte) (below places, out bool) {
	for _, names := range p {
		switch {
		case names[0] != string(name):
		case len(names) == 1:
			out = true
		default:
			below = append(below, names[1:])
		}
	}
	return below, out
}
