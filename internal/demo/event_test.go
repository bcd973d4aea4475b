package demo

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestBuiltInEvents(t *testing.T) {
	t.Parallel()
	events, err := builtInEvents(7)
	if err != nil {
		t.Fatal(err)
	}
	again, err := builtInEvents(7)
	if err != nil {
		t.Fatal(err)
	}
	kinds, seen := map[string]int{}, map[eventKey]bool{}
	for i, e := range events {
		name, _, _ := strings.Cut(e.kind, ".")
		kinds[e.sender.name+" "+name]++
		if seen[e.key()] {
			t.Errorf("two events have the key %v", e.key())
		}
		seen[e.key()] = true
		if !json.Valid(e.body) {
			t.Errorf("%s: the body is not JSON:\n%s", e.kind, e.body)
		}
		if !bytes.Equal(e.body, again[i].body) || e.id != again[i].id {
			t.Errorf("%s: the same seed gave another event", e.kind)
		}
		bought, err := e.sender.purchase(e.body)
		if err != nil || bought.cents < 500 || bought.reference == "" || len(bought.currency) != 3 {
			t.Errorf("%s: the purchase is %+v, %v", e.kind, bought, err)
		}
	}
	if len(events) != 36 || len(kinds) != 6 || kinds["others"] != 0 {
		t.Errorf("%d events of these kinds: %v", len(events), kinds)
	}
}

func TestEventID_IsWhereTheSenderPutsIt(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ name, body, sender, id string }{
		"Stripe":                  {"a.json", `{"object":"event","id":"evt_1"}`, "stripe", "evt_1"},
		"PayPal, its id":          {"a.json", `{"id":"WH-1","event_type":"X"}`, "others", "WH-1"},
		"Paddle, not the other":   {"a.json", `{"notification_id":"ntf","event_id":"evt"}`, "others", "evt"},
		"a large number":          {"a.json", `{"id":9007199254740993}`, "others", "9007199254740993"},
		"none: the file's name":   {"a b ü.json", `{"x":1}`, "others", "a%20b%20%C3%BC"},
		"not an object":           {"list.JSON", `[1]`, "others", "list"},
		"GitHub, without a sale":  {"push.json", `{"action":"x","sender":{"login":"a"}}`, "others", "push"},
		"an id that is an object": {"o.json", `{"id":{}}`, "others", "o"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			events, err := readFolder(writeFiles(t, map[string]string{test.name: test.body, "README.md": "not one"}), 1)
			if err != nil {
				t.Fatal(err)
			}
			if e := events[0]; len(events) != 1 || e.sender.name != test.sender || e.id != test.id {
				t.Errorf("%d events, the first of %s with id %q", len(events), e.sender.name, e.id)
			}
		})
	}
}

func TestReadFolder_HeaderID(t *testing.T) {
	t.Parallel()
	folder := writeFiles(t, map[string]string{"paid.json": `{"admin_graphql_api_id":"gid://shopify/Order/1","total_price":"9.9"}`})
	events, err := readFolder(folder, 1)
	if err != nil {
		t.Fatal(err)
	}
	e := events[0]
	if e.sender.name != "shopify" || e.header["X-Shopify-Event-Id"] != e.id || !isUUID(e.id) {
		t.Errorf("%s, id %q, header %v", e.sender.name, e.id, e.header)
	}
	if bought, err := e.sender.purchase(e.body); err != nil || bought.cents != 990 {
		t.Errorf("the purchase is %+v, %v", bought, err)
	}
}

func isUUID(text string) bool {
	return regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(text)
}

func TestNewUUID(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		if id := newUUID(random); !isUUID(id) {
			t.Fatalf("%s is not a UUID", id)
		}
	}
}

func TestReadFolder_BadInput(t *testing.T) {
	t.Parallel()
	many := map[string]string{}
	for i := range maxFiles + 1 {
		many[strings.Repeat("x", i+1)+".json"] = "{}"
	}
	tests := map[string]struct {
		folder string
		want   string
	}{
		"no folder":      {filepath.Join(t.TempDir(), "missing"), "--payloads must name a folder"},
		"empty":          {t.TempDir(), "there is no .json file"},
		"not JSON":       {writeFiles(t, map[string]string{"a.json": "{"}), "a.json is not JSON"},
		"an empty file":  {writeFiles(t, map[string]string{"a.json": ""}), "a.json is not JSON"},
		"two values":     {writeFiles(t, map[string]string{"a.json": "{}{}"}), "a.json is not JSON"},
		"too many":       {writeFiles(t, many), "at most 100"},
		"too large":      {writeFiles(t, map[string]string{"a.json": strings.Repeat(" ", maxBody)}), "a.json cannot be used"},
		"the same id":    {writeFiles(t, map[string]string{"a.json": `{"id":"1"}`, "b.json": `{"id":"1"}`}), "a.json and b.json"},
		"an id with NUL": {writeFiles(t, map[string]string{"a.json": `{"id":"\u0000"}`}), "cannot be a key"},
		"a long id":      {writeFiles(t, map[string]string{"a.json": `{"id":"` + strings.Repeat("i", 1025) + `"}`}), "cannot be a key"},
		"a dead link":    {withDeadLink(t), "cannot be used"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := readFolder(test.folder, 1)
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, test.want)
			}
		})
	}
}

func withDeadLink(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	if err := os.Symlink("nowhere", filepath.Join(folder, "a.json")); err != nil {
		t.Skip("no symbolic links here")
	}
	return folder
}

func TestChangedBody(t *testing.T) {
	t.Parallel()
	for _, body := range []string{`{}`, ` { } `, `{"a":1}`, `[1]`, `"text"`, `null`, "{\n}"} {
		e := &event{body: []byte(body)}
		if changed := e.changedBody(); !json.Valid(changed) || string(changed) == body || string(e.body) != body {
			t.Errorf("%q was changed to %q", body, changed)
		}
	}
}
