package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

func TestStats(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	k.insert(t, "stripe", 3000, 10*day)
	k.insert(t, "shopify", 1000, time.Minute)
	k.exec(t, `UPDATE idempotency_keys SET response_status = NULL, response_raw = NULL WHERE source = 'shopify'`)
	k.exec(t, `INSERT INTO idempotency_keys (source, event_id, payload_digest) VALUES (E'\x1b[2J\u202e', '1', '')`)
	k.eventually(t, `SELECT n_tup_upd = 1000 FROM pg_stat_user_tables WHERE relname = 'idempotency_keys'`)

	status, stdout, stderr := k.call(t, "stats", "--json")
	s := parse[stats](t, stdout)
	if status != 0 || stderr != "" || s.Table != "idempotency_keys" || s.Keys != 4001 || !s.Exact || s.PagesRead != s.Pages || s.Answered != 3000 || s.AnswerBytes != 9000 {
		t.Errorf("status %d, %+v\n%s", status, s, stderr)
	}
	if age := s.At.Sub(s.Oldest.Time); age < 10*day || age > 10*day+time.Hour {
		t.Errorf("the oldest key is %v old, want 10 days", age)
	}
	if b := s.Bytes; b.Table < 100_000 || b.Indexes < 100_000 || b.Total != b.Table+b.Indexes+b.Toast || b.PerKey != float64(b.Total)/4001 {
		t.Errorf("bytes: %+v", b)
	}
	if len(s.Sources) != 3 || s.Sources[0].Source != "stripe" || s.Sources[0].Keys != 3000 || s.Sources[1].Share != 1000.0/4001 {
		t.Errorf("sources: %+v", s.Sources)
	}
	if recent := s.Hours[22].Keys + s.Hours[23].Keys; len(s.Hours) != 24 || recent != 1001 || s.Hours[23].Hour.Add(time.Hour).Before(s.At) {
		t.Errorf("hours: %+v", s.Hours)
	}
	if s.Updates != 1000 || s.HOTShare == nil || *s.HOTShare > 1 {
		t.Errorf("%d updates, HOT share %v", s.Updates, s.HOTShare)
	}

	status, stdout, stderr = k.call(t, "stats")
	for _, want := range []string{
		"idempotency_keys: 4,001 keys\n", "\nsize     ", " B a key\n", " UTC, 10.0 days ago\n", "\nanswers  75.0 % of the keys; 3 B each", " of 1,000 updates\n",
		"\nstripe   3,000  75.0 %  ", "\n?[2J?        1   0.0 %  ", "\nhour (UTC)         keys\n", " so far  ",
	} {
		if status != 0 || stderr != "" || !strings.Contains(stdout, want) {
			t.Errorf("status %d, want %q in\n%s%s", status, want, stdout, stderr)
		}
	}
}

func TestStats_OfAnEmptyTable(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	status, stdout, stderr := k.call(t, "stats")
	if status != 0 || !strings.HasPrefix(stdout, "idempotency_keys: 0 keys\n") || !strings.Contains(stdout, "no updates") || strings.Contains(stdout, "NaN") {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
	status, stdout, _ = k.call(t, "stats", "--json")
	if s := parse[stats](t, stdout); status != 0 || s.Keys != 0 || s.Oldest != nil || s.HOTShare != nil || !strings.Contains(stdout, `"sources": []`) {
		t.Errorf("status %d, %s", status, stdout)
	}
}

// Partitions count together.
func TestStats_OfPartitions(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	k.exec(t, `ALTER TABLE idempotency_keys RENAME TO plain`)
	k.exec(t, `CREATE TABLE idempotency_keys (LIKE plain INCLUDING DEFAULTS, PRIMARY KEY (source, event_id)) PARTITION BY HASH (source, event_id)`)
	for n := range 3 {
		k.exec(t, fmt.Sprintf(`CREATE TABLE part_%d PARTITION OF idempotency_keys FOR VALUES WITH (MODULUS 3, REMAINDER %d)`, n, n))
	}
	k.insert(t, "s", 3000, day)
	_, stdout, stderr := k.call(t, "stats", "--json")
	if s := parse[stats](t, stdout); s.Keys != 3000 || !s.Exact || s.Bytes.Table < 100_000 || s.Bytes.Indexes < 100_000 {
		t.Errorf("%+v\n%s", s, stderr)
	}
}

// Of a large table a bounded part is read, and the answer says so and comes near the truth.
func TestStats_OfALargeTableAreEstimated(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	k.insert(t, "stripe", 30_000, day)
	k.insert(t, "shopify", 10_000, time.Minute)
	const pages = 100
	d := &database{dsn: k.dsn, table: pgsql.DefaultTable}
	pool, err := d.pool(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	s, err := d.stats(t.Context(), pool, pages)
	if err != nil {
		t.Fatal(err)
	}
	// About 500 pages, of which 100 are read, give or take 9: eight times that is no bad luck any more.
	if s.Exact || s.PagesRead != pages || s.Pages < 4*pages || s.Keys < 10_000 || s.Keys > 80_000 || s.Sources[0].Source != "stripe" {
		t.Errorf("%+v", s)
	}
	var out bytes.Buffer
	if err := s.print(&out, pen{width: 20}); err != nil || !strings.Contains(out.String(), ": about ") ||
		!strings.Contains(out.String(), "estimated from 100 of ") || !strings.Contains(out.String(), ", of those read\n") {
		t.Errorf("%v\n%s", err, &out)
	}
}

// Many sources are summed up below the largest ones.
func TestStats_OfManySources(t *testing.T) {
	t.Parallel()
	figures := pgsql.Stats{Sampled: 1, Keys: 325, Now: time.Now(), Oldest: time.Now(), Sources: map[string]int64{}}
	for n := range 25 {
		figures.Sources[fmt.Sprintf("source %02d", n)] = int64(n + 1)
	}
	var out bytes.Buffer
	if err := newStatsOf(pgsql.Table{Name: "t"}, figures).print(&out, pen{width: 10}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "\n(5 more)     15  4.6 %  ") || strings.Contains(out.String(), "source 04") || !strings.Contains(out.String(), "source 05") {
		t.Errorf("got\n%s", &out)
	}
}
