package demo

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strings"
	"text/template"
	"time"
)

// payloads are written for the demo after the senders' documentation. A file is called sender_kind.json.tmpl.
//
//go:embed payloads/*.json.tmpl
var payloads embed.FS

// order is what a template is filled with.
type order struct {
	EventID            string
	Serial             int
	Cents              int
	Name, Login, Email string
	placed             time.Time
}

// Price is the amount as Shopify writes it.
func (o order) Price() string { return fmt.Sprintf("%d.%02d", o.Cents/100, o.Cents%100) }

// Time is when the order was placed.
func (o order) Time() string { return o.placed.Format(time.RFC3339) }

// Unix is Time as Stripe writes it.
func (o order) Unix() int64 { return o.placed.Unix() }

// builtInEvents are one of each kind for each scenario.
func builtInEvents(seed uint64) ([]*event, error) {
	templates, err := template.ParseFS(payloads, "payloads/*.json.tmpl")
	if err != nil {
		return nil, err
	}
	files, err := fs.Glob(payloads, "payloads/*.json.tmpl")
	if err != nil {
		return nil, err
	}
	var events []*event
	for _, scenario := range scenarios {
		for _, file := range files {
			e, err := builtInEvent(templates.Lookup(strings.TrimPrefix(file, "payloads/")), seed, len(events))
			if err != nil {
				return nil, err
			}
			e.scenario = scenario
			events = append(events, e)
		}
	}
	return events, nil
}

func builtInEvent(text *template.Template, seed uint64, index int) (*event, error) {
	name, kind, _ := strings.Cut(strings.TrimSuffix(text.Name(), ".json.tmpl"), "_")
	if name == "shopify" {
		kind = strings.Replace(kind, "_", "/", 1) // a slash cannot be in a file's name
	}
	random := randomFor(seed, fmt.Sprint(index, text.Name()))
	placed := newOrder(random, senderNamed(name).newID(random), 1001+index)
	var body bytes.Buffer
	if err := text.Execute(&body, placed); err != nil {
		return nil, err
	}
	return newEvent(kind, body.Bytes(), func(*sender) string { return placed.EventID }), nil
}

func newOrder(random *rand.Rand, eventID string, serial int) order {
	names := []string{"Ada", "Grace", "Edsger", "Barbara", "Tony", "Radia", "Niklaus", "Frances", "Dennis", "Shafi"}
	name := names[random.IntN(len(names))]
	return order{
		EventID: eventID, Serial: serial, Cents: 500 + random.IntN(20_000),
		Name: name, Login: strings.ToLower(name), Email: strings.ToLower(name) + "@example.com",
		placed: time.Date(2026, time.January, 5, 9, 0, 0, 0, time.UTC).Add(time.Duration(random.IntN(100_000)) * time.Second),
	}
}
