package main

import (
	"strings"
	"testing"
	"time"
)

// Other code may have written any time that PostgreSQL has. Every command copes with such a key: shows it, counts it, and
// can delete it.
func TestCommandsCopeWithAnyTime(t *testing.T) {
	t.Parallel()
	for stored, c := range map[string]struct{ text, json string }{
		"infinity":                  {"infinity, which is no time: other code than the library wrote it", `"infinity"`},
		"-infinity":                 {"-infinity, which is no time: other code than the library wrote it", `"-infinity"`},
		"294276-12-31 23:59:59 UTC": {"294276-12-31 23:59:59 UTC", `"294276-12-31T23:59:59Z"`},
		"4713-01-01 00:00:00 BC":    {"-4712-01-01 00:00:00 UTC", `"-4712-01-01T00:00:00Z"`},
	} {
		t.Run(stored, func(t *testing.T) {
			t.Parallel()
			k := newKeys(t)
			k.insert(t, "shop", 3, time.Hour)
			k.exec(t, `INSERT INTO idempotency_keys (source, event_id, payload_digest, claimed_at, completed_at, response_status, response_header, response_raw)
				VALUES ('other', 'evt', '\x00', $1::text::timestamp AT TIME ZONE 'UTC', $1::text::timestamp AT TIME ZONE 'UTC', 202, '{"A": ["b"]}', '\x6f6b')`, strings.TrimSuffix(stored, " UTC"))
			k.exec(t, `INSERT INTO idempotency_keys (source, event_id, payload_digest, claimed_at) VALUES ('other', 'incomplete', '\x00', $1::text::timestamp AT TIME ZONE 'UTC')`, strings.TrimSuffix(stored, " UTC"))
			k.exec(t, `ANALYZE idempotency_keys`)
			for _, call := range []struct {
				args   string
				status int
				says   []string
			}{
				{"show other evt", 0, []string{"\nclaimed    " + c.text + "\n", "\ncompleted  with the claim", "\nanswer     202 Accepted\n", "A: b\n", "\n\nok\n"}},
				{"show other evt --json --retention 30d", 0, []string{`"claimed_at": ` + c.json, `"completed_at": ` + c.json, `"status": 202`}},
				{"show other incomplete", 0, []string{"\nclaimed    " + c.text + "\n", "\ncompleted  never: "}},
				{"stats", 0, []string{"idempotency_keys: 5 keys\n", "\nother  ", "\nanswers  80.0 %"}},
				{"stats --json", 0, []string{`"keys": 5,`}},
				{"doctor --retention 30d", 2, []string{"\nkeys     5, from ", "WARNING  incomplete-claims"}},
				{"doctor --retention 30d --json", 2, []string{`"keys": 5,`, `"skipped": [` + "\n" + `    {` + "\n" + `      "check": "no-retry-horizon"`}},
				{"sweep --retention 100000d --dry-run", 0, []string{"A sweep would delete "}},
				{"forget other evt --yes", 0, []string{`Deleted the key of event "evt" of source "other", claimed at ` + c.text + ".\n"}},
				{"forget other incomplete --yes --json", 0, []string{`"claimed_at": ` + c.json}},
			} {
				status, stdout, stderr := k.call(t, strings.Fields(call.args)...)
				if status != call.status || stderr != "" {
					t.Errorf("%s: status %d\n%s%s", call.args, status, stdout, stderr)
				}
				for _, want := range call.says {
					if !strings.Contains(stdout, want) {
						t.Errorf("%s: %q is not in\n%s", call.args, want, stdout)
					}
				}
			}
			k.require(t, "other", 0)
			k.require(t, "shop", 3)
		})
	}
}

// A table whose keys all have no time has no oldest one.
func TestStats_OfKeysWithoutATime(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	k.insert(t, "shop", 3, time.Hour)
	k.exec(t, `UPDATE idempotency_keys SET claimed_at = 'infinity', completed_at = 'infinity'`)
	if status, stdout, stderr := k.call(t, "stats"); status != 0 || strings.Contains(stdout, "oldest") || !strings.Contains(stdout, "\nanswers  100.0 %") {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
	if status, stdout, stderr := k.call(t, "doctor", "--retention", "30d"); status != 0 || !strings.Contains(stdout, "\nkeys     3, from ") {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
}
