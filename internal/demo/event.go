package demo

import (
	"bytes"
	"hash/fnv"
	"io"
	"math/rand/v2"
)

// event is one thing that happened at a sender, and is delivered many times.
type event struct {
	sender   *sender
	id       string
	kind     string // "orders/paid", or the file's name
	header   map[string]string
	body     []byte
	scenario *scenario
}

func (e *event) key() eventKey { return eventKey{e.sender.name, e.id} }

// loadEvents makes the demo's own events, or reads those of a folder.
func loadEvents(folder string, seed uint64) ([]*event, error) {
	if folder == "" {
		return builtInEvents(seed)
	}
	return readFolder(folder, seed)
}

// newEvent finds the sender of a body by its shape, and gives the event an id where the sender does: in a header, unless
// it is in the body.
func newEvent(kind string, body []byte, headerID func(*sender) string) *event {
	e := &event{sender: senderOf(body), kind: kind, body: body, header: map[string]string{}}
	for name, value := range e.sender.header(kind) {
		e.header[name] = value
	}
	if e.sender.idHeader != "" {
		e.header[e.sender.idHeader] = headerID(e.sender)
	}
	e.id = e.sender.eventID(e.httpHeader(), body)
	return e
}

// changedBody is the body that comes with the same id and is not the same. Of an object it is one with another member;
// anything else differs by a space, which counts: the library compares bytes unless it is told otherwise.
func (e *event) changedBody() []byte {
	rest, isObject := bytes.CutPrefix(bytes.TrimSpace(e.body), []byte("{"))
	if !isObject {
		return append(bytes.Clone(e.body), ' ')
	}
	added := `{"changed_by_the_demo": true`
	if !bytes.Equal(bytes.TrimSpace(rest), []byte("}")) {
		added += ","
	}
	return append([]byte(added), rest...)
}

// randomFor gives each name a stream of its own, so that one event's numbers do not depend on another's.
func randomFor(seed uint64, name string) *rand.Rand {
	sum := fnv.New64a()
	_, _ = io.WriteString(sum, name)                // never fails
	return rand.New(rand.NewPCG(seed, sum.Sum64())) //nolint:gosec // a demo's numbers are no secret
}
