package gormtest

import (
	"bytes"
	"database/sql/driver"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/internal/jsontext"
)

// Arguments of expected statements implement sqlmock.Argument. go-sqlmock prints no more than their type when one does not
// match, and their String when nothing has come; so each also notes the difference, for [NewMock] to report.

// digestArgument is the digest that a call claims its key with.
type digestArgument struct {
	like        []byte // a digest of the same scheme
	payload     []byte // the one that is expected; nil: any of the scheme
	keep        func(digest []byte)
	differences *differences
}

// Match implements sqlmock.Argument.
func (a digestArgument) Match(value driver.Value) bool {
	digest, _ := value.([]byte)
	switch {
	case len(digest) != len(a.like) || !bytes.Equal(scheme(digest), scheme(a.like)):
		a.differences.notef("the digest of the payload is not %v: give Expect the plugin's configuration, by WithConfig", a)
		return false
	case a.payload != nil && !bytes.Equal(digest, a.payload):
		a.differences.notef("the payload that was delivered is not the one of WithBody: their digests differ")
		return false
	}
	if a.keep != nil {
		a.keep(digest)
	}
	return true
}

func (a digestArgument) String() string {
	named := strings.TrimSuffix(string(scheme(a.like)), ":")
	if named == "" {
		named = idempotency.SHA256().Name
	}
	if a.payload != nil {
		return fmt.Sprintf("the %s digest of the payload of WithBody", named)
	}
	return fmt.Sprintf("a digest by %s", named)
}

// digestOf is the digest that a plugin with this configuration uses for a source.
func digestOf(config idempotency.Config, source string) idempotency.Digest {
	for _, digest := range []idempotency.Digest{config.Sources[source].Digest, config.Digest} {
		if digest.Sum != nil {
			return digest
		}
	}
	return idempotency.SHA256()
}

// storedDigest is a sum as a row holds it: bare if it is the default's, else behind the name of its scheme.
func storedDigest(digest idempotency.Digest, sum [32]byte) []byte {
	if digest.Name == idempotency.SHA256().Name {
		return sum[:]
	}
	return append([]byte(digest.Name+":"), sum[:]...)
}

// scheme is what stands before the sum.
func scheme(stored []byte) []byte { return stored[:max(0, len(stored)-32)] }

// same and different are digests that a row holds when a call comes with one.
func same(digest []byte) []byte { return digest }

func different(digest []byte) []byte {
	other := slices.Clone(digest)
	other[len(other)-1] ^= 0xff
	return other
}

// lockArgument is the number of the key's advisory lock, which is the library's business.
type lockArgument struct{}

// Match implements sqlmock.Argument.
func (lockArgument) Match(value driver.Value) bool {
	_, isNumber := value.(int64)
	return isNumber
}

func (lockArgument) String() string { return "the number of the key's lock" }

// jsonArgument is a part of an answer that is compared as JSON, whether it comes as text or as bytes.
type jsonArgument struct {
	part        string
	want        []byte
	differences *differences
}

func (e Expectations) json(part string, want []byte) jsonArgument {
	return jsonArgument{part: part, want: want, differences: e.differences}
}

// Match implements sqlmock.Argument.
func (a jsonArgument) Match(value driver.Value) bool {
	var got []byte
	switch value := value.(type) {
	case string:
		got = []byte(value)
	case []byte:
		got = value
	}
	if got == nil || !equalJSON(got, a.want) {
		a.differences.notef("the answer's %s is %s, want %v", a.part, shown(got), a)
		return false
	}
	return true
}

func (a jsonArgument) String() string { return "JSON equal to " + shown(a.want) }

// equalJSON compares by value, and what has no canonical form, such as an object that repeats a name, by bytes.
func equalJSON(a, b []byte) bool {
	canonicalA, errA := jsontext.Canonical(a, nil)
	canonicalB, errB := jsontext.Canonical(b, nil)
	if errA != nil || errB != nil {
		return bytes.Equal(a, b)
	}
	return bytes.Equal(canonicalA, canonicalB)
}

// bytesArgument is a body that is compared by its bytes; nil: there is none.
type bytesArgument struct {
	want        []byte
	differences *differences
}

func (e Expectations) bytes(want []byte) bytesArgument {
	return bytesArgument{want: want, differences: e.differences}
}

// Match implements sqlmock.Argument.
func (a bytesArgument) Match(value driver.Value) bool {
	got, _ := value.([]byte)
	if (value == nil) != (a.want == nil) || !bytes.Equal(got, a.want) {
		a.differences.notef("the answer's body is %s, want %v", shown(got), a)
		return false
	}
	return true
}

func (a bytesArgument) String() string {
	if a.want == nil {
		return "no body"
	}
	return "exactly " + shown(a.want)
}

// shown is an answer's part as a failure shows it.
func shown(text []byte) string {
	const limit = 1000
	switch {
	case text == nil:
		return "none"
	case len(text) > limit:
		return fmt.Sprintf("%q… of %d bytes", text[:limit], len(text))
	case !bytes.ContainsFunc(text, isUnprintable):
		return string(text)
	}
	return fmt.Sprintf("%q", text)
}

func isUnprintable(r rune) bool { return r < ' ' || r == '\ufffd' }

// differences are what arguments found when they did not match. Those of a nil pointer are lost.
type differences struct {
	mu    sync.Mutex
	found []string
}

func (d *differences) notef(format string, args ...any) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.found = append(d.found, fmt.Sprintf(format, args...))
}

func (d *differences) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var text strings.Builder
	for _, found := range d.found {
		text.WriteString("\n" + found)
	}
	return text.String()
}
