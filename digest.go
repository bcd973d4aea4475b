package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gorm-idempotency/idempotency/internal/jsontext"
)

// Digest is what of a payload must be equal between deliveries of one event. Two deliveries whose sums differ are not
// the same event: the later one fails with [ErrDigestMismatch]. The zero Digest means the default.
type Digest struct {
	// Name identifies the function in stored rows, so that keys claimed before a source's digest was changed are
	// still compared under the one that claimed them. Give a changed function a new name. At most 1,024 bytes.
	Name string

	// Sum digests a payload. It must be deterministic and must not keep or change body.
	Sum func(body []byte) [32]byte
}

const (
	sha256Name         = "sha256"
	jsonPrefix         = "json"
	maxDigestNameBytes = 1024
)

// SHA256 is the default: the SHA-256 sum of the payload's bytes.
func SHA256() Digest { return Digest{Name: sha256Name, Sum: sum256} }

func sum256(body []byte) [32]byte { return sha256.Sum256(body) }

// JSONDigest is the SHA-256 sum of the payload's canonical JSON without the values at these JSON Pointers (RFC 6901), for
// senders that change an attempt counter or reformat the payload between deliveries:
//
//	idempotency.JSONDigest("/data/attempt", "/pending_webhooks")
//
// Canonical means sorted names, no insignificant white space and one spelling of each string; numbers stay as written,
// so that 1 and 1.0 differ, and so do 9007199254740993 and 9007199254740992. A payload that has no canonical form, since it is
// not JSON, repeats a name in an object, or holds invalid UTF-8 or half a surrogate pair, is digested as its raw bytes.
//
// A pointer that is not one makes Plugin.Initialize fail with a [ConfigError].
func JSONDigest(ignore ...string) Digest {
	ignored := slices.Clone(ignore)
	slices.Sort(ignored)
	ignored = slices.Compact(ignored)

	// The name holds the pointers, so that the digest can be rebuilt from a row.
	digest := Digest{Name: jsonName(ignored)}
	pointers, err := parsePointers(ignored)
	if err != nil {
		return digest // without a Sum: Initialize refuses it, and explains by the name
	}
	digest.Sum = func(body []byte) [32]byte {
		canonical, err := jsontext.Canonical(body, pointers)
		if err != nil {
			return sha256.Sum256(body)
		}
		return sha256.Sum256(canonical)
	}
	return digest
}

func jsonName(pointers []string) string {
	if pointers == nil {
		pointers = []string{}
	}
	list, err := json.Marshal(pointers)
	if err != nil {
		panic(err) // strings always marshal
	}
	return jsonPrefix + string(list)
}

func parsePointers(texts []string) ([]jsontext.Pointer, error) {
	pointers := make([]jsontext.Pointer, 0, len(texts))
	for _, text := range texts {
		if !utf8.ValidString(text) {
			return nil, fmt.Errorf("%q is not valid UTF-8", text) // the name could not tell it from others
		}
		pointer, err := jsontext.ParsePointer(text)
		if err != nil {
			return nil, err
		}
		pointers = append(pointers, pointer)
	}
	return pointers, nil
}

// rebuild finds one of the library's own digests by the name in a row.
func rebuild(name string) (Digest, bool) {
	if name == sha256Name {
		return SHA256(), true
	}
	list, found := strings.CutPrefix(name, jsonPrefix)
	var pointers []string
	if !found || json.Unmarshal([]byte(list), &pointers) != nil {
		return Digest{}, false
	}
	digest := JSONDigest(pointers...)
	return digest, digest.Name == name
}

func (d Digest) isZero() bool { return d.Name == "" && d.Sum == nil }

// problem says why the digest cannot be used, or "".
func (d Digest) problem() string {
	ours, isOurs := rebuild(d.Name)
	switch {
	case d.Name == "":
		return "has no Name, which rows need to tell digests apart"
	case len(d.Name) > maxDigestNameBytes:
		return fmt.Sprintf("has a Name of %d bytes, and at most %d are allowed", len(d.Name), maxDigestNameBytes)
	case isOurs && ours.Sum == nil:
		return "ignores what is not a JSON Pointer: " + pointerProblem(d.Name)
	case d.Sum == nil:
		return fmt.Sprintf("%q has no Sum; JSONDigest gives none for a pointer that is not valid UTF-8", d.Name)
	case isOurs && d.Sum([]byte(probe)) != ours.Sum([]byte(probe)):
		return fmt.Sprintf("is named %q, which is the name of one of this library's", d.Name)
	}
	return ""
}

// probe is a payload that the library's own digests tell apart.
const probe = `{"b": 1, "a": 2}`

func pointerProblem(name string) string {
	var pointers []string
	if err := json.Unmarshal([]byte(strings.TrimPrefix(name, jsonPrefix)), &pointers); err != nil {
		return err.Error()
	}
	_, err := parsePointers(pointers)
	return err.Error()
}

// stored is the payload's digest as a row holds it.
func (d Digest) stored(body []byte) []byte {
	sum := d.Sum(body)
	if d.Name == sha256Name {
		return sum[:]
	}
	return append([]byte(d.Name+":"), sum[:]...)
}

// schemeOf is the name of the digest that wrote a row. The name may contain colons: the sum's length is what divides.
func schemeOf(stored []byte) string {
	named := len(stored) - sha256.Size
	if named <= 0 || stored[named-1] != ':' {
		return sha256Name
	}
	return string(stored[:named-1])
}

// matches compares the call's payload with a stored digest under the scheme that wrote it, so that changing a source's
// digest does not turn its live keys into mismatches. known is false where nobody knows that scheme any more.
func (c *call) matches(stored []byte) (equal, known bool) {
	scheme := schemeOf(stored)
	if scheme == c.scheme {
		return bytes.Equal(stored, c.digest), true
	}
	earlier, known := c.plugin.digestNamed(scheme)
	return known && bytes.Equal(stored, earlier.stored(c.body)), known
}

// digestNamed finds a digest among this library's own and the configured ones.
func (p *Plugin) digestNamed(name string) (Digest, bool) {
	if digest, ok := rebuild(name); ok && digest.Sum != nil {
		return digest, true
	}
	if p.config.Digest.Name == name {
		return p.config.Digest, true
	}
	for _, source := range p.config.Sources {
		if source.Digest.Name == name {
			return source.Digest, true
		}
	}
	return Digest{}, false
}
