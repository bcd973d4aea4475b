package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"
)

// A process that is to be a sender is this binary, too.
func TestMain(m *testing.M) {
	if os.Getenv(senderVariable) != "" {
		os.Exit(run())
	}
	os.Exit(m.Run())
}

// theServer is for tests of parts.
var theServer = sync.OnceValues(func() (*server, error) {
	return startServer(context.Background(), os.Getenv("IDEMPOTENCY_TEST_DSN"), short.settings, nil)
})

func newSession(t *testing.T) *session {
	t.Helper()
	s, err := theServer()
	if err != nil {
		t.Fatal(err)
	}
	return &session{server: s, size: short, progress: lines{io.Discard}}
}

// A short run measures everything: each group, each arm at each setting, and each figure but those of settings that it
// leaves out. That the arms did what they say is counted by the run itself, which fails if they did not.
func TestShortRunMeasuresEverything(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	document := filepath.Join(folder, "document.md")
	if err := os.WriteFile(document, []byte("<!-- measured: figures -->\n<!-- end -->\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, messages bytes.Buffer
	o := options{dsn: os.Getenv("IDEMPOTENCY_TEST_DSN"), short: true, out: filepath.Join(folder, "results"), document: document}
	if err := o.run(t.Context(), &out, &messages); err != nil {
		t.Fatalf("%v\n%s", err, &messages)
	}
	r, err := readResults(o.out)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		group    string
		arms     int
		settings int
	}{
		{"delivery", 22, 1}, {"commit", 10, 2}, {"roundtrips", 22, 1}, {"allocations", 10, 1}, {"network", 10, 3},
		{"connections", 11, 2}, {"analysed", 10, 1}, {"answers", 5, 4}, {"tables", 2, 2}, {"storm", 4, 2}, {"hotkey", 4, 2}, {"sweeping", 1, 2},
		{"memory", 1, 4}, {"idle-sweep", 2, 1}, {"sweep-batch", 2, 1}, {"hot", 2, 4},
	} {
		g := r.group(want.group)
		if arms, settings := len(g.arms()), len(g.settings()); arms != want.arms || settings != want.settings ||
			len(g.Series) != want.arms*want.settings {
			t.Errorf("%s: %d arms at %d settings, %d series; want %d at %d, and all of them",
				want.group, arms, settings, len(g.Series), want.arms, want.settings)
		}
		for _, s := range g.Series {
			if zero := want.group == "hot" && s.Arm == namePageGORM; !zero && !(s.Median > 0) || math.IsInf(s.Median, 0) {
				t.Errorf("%s: %s at %q: %v", want.group, s.Arm, s.Setting, s.Spread)
			}
		}
		requireImage(t, filepath.Join(o.out, want.group+".svg"), g.arms())
	}
	var missing []string
	for _, f := range r.Figures {
		if f.Value == nil {
			missing = append(missing, f.Measure)
		}
	}
	if want := []string{
		"throughput at 32 connections ÷ pgbench on the same statements",
		"claim latency at 1 million keys ÷ at 0", "claim latency at 10 million keys ÷ at 0",
	}; !slices.Equal(missing, want) {
		t.Errorf("not measured: %q, want %q", missing, want)
	}
	text, _ := os.ReadFile(document)
	for _, want := range []string{"| added round trips, fresh with an answer | ≤ 2 | 2 | met |", "3 figures of groups"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the document does not have %q:\n%s", want, text)
		}
	}
	requireRoundTrips(t, r.group("roundtrips"))
}

// requireImage fails unless the file is XML that shows each arm's name.
func requireImage(t *testing.T, path string, arms []string) {
	t.Helper()
	image, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
		return
	}
	var texts strings.Builder
	for decoder := xml.NewDecoder(bytes.NewReader(image)); ; {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Errorf("%s: %v", path, err)
			return
		}
		if data, ok := token.(xml.CharData); ok {
			texts.Write(data)
		}
	}
	for _, arm := range arms {
		if !strings.Contains(texts.String(), arm) {
			t.Errorf("%s does not name %q", path, arm)
		}
	}
}

// What is counted is the same on every machine.
func requireRoundTrips(t *testing.T, g *Group) {
	t.Helper()
	for arm, want := range map[string]float64{
		nameBare: 3, namePageGORM: 5, namePagePgx: 5, nameLease: 5,
		nameAnswer: 5, nameNoAnswer: 4, nameDuplicate: 4, "ours, DoValue": 5, "ours, joined": 7, "ours, failing handler": 4,
		"ours, in flight":                  6, // claim, look up, claim again
		"answer known in advance, by hand": 4,
		namePipelined:                      3, namePipelinedNoAnswer: 3, namePipelinedDup: 2,
	} {
		if s, found := g.find(arm, ""); !found || s.Median != want {
			t.Errorf("%s: %v round trips, want %v", arm, s.Median, want)
		}
	}
}

// An interrupt keeps the groups that were measured, and the rounds of the one that it met.
func TestInterruptKeepsWhatWasMeasured(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	r := newSession(t)
	r.progress = interrupting{after: 2, cancel: cancel, steps: new(int)}
	var g Group
	err := r.with(ctx, fast, 1, func(d *database, h *handles) error {
		c := r.comparison(1, bare(nameBare, h.plain), fresh(nameAnswer, h.plain, answer))
		c.rounds, c.limit = 1000, time.Hour
		return r.latencies(ctx, d, &g, "", 0, c)
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, arm := range []string{nameBare, nameAnswer} {
		if s, _ := g.find(arm, ""); len(s.Rounds) != 1 { // the first round warmed up
			t.Errorf("%s has %d rounds, want 1", arm, len(s.Rounds))
		}
	}

	var out, messages bytes.Buffer
	ctx, cancel = context.WithCancel(t.Context())
	o := options{dsn: os.Getenv("IDEMPOTENCY_TEST_DSN"), short: true, out: t.TempDir(), only: []string{"roundtrips", "tables"}}
	err = o.run(ctx, &out, writerFunc(func(text []byte) (int, error) {
		if bytes.Contains(text, []byte("2 of 2")) {
			cancel()
		}
		return messages.Write(text)
	}))
	if !errors.Is(err, errInterrupted) || status(err, io.Discard) != exitInterrupted {
		t.Errorf("got %v, want errInterrupted", err)
	}
	kept, err := readResults(o.out)
	if err != nil || !kept.Interrupted || len(kept.group("roundtrips").Series) != 22 || len(kept.Groups) != 1 {
		t.Errorf("kept %d groups, interrupted: %v, %v", len(kept.Groups), kept.Interrupted, err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(text []byte) (int, error) { return f(text) }

// interrupting is an interrupt after some steps.
type interrupting struct {
	lines
	after  int
	cancel func()
	steps  *int
}

func (i interrupting) step() {
	if *i.steps++; *i.steps == i.after {
		i.cancel()
	}
}

// An arm that leaves other effects than it should fails the run: one that does nothing, and one that does it twice.
func TestArmWithWrongEffectsFails(t *testing.T) {
	t.Parallel()
	r := newSession(t)
	err := r.with(t.Context(), fast, 1, func(d *database, h *handles) error {
		twice := bare("twice", h.plain)
		once := twice.deliver
		twice.deliver = func(ctx context.Context, event string) error { return errors.Join(once(ctx, event), once(ctx, event)) }
		for _, wrong := range []arm{
			{name: "nothing", effects: onceEach, deliver: func(context.Context, string) error { return nil }}, twice,
			{name: "not failing", effects: never, deliver: bare("not failing", h.plain).deliver},
		} {
			_, err := r.comparison(1, bare(nameBare, h.plain), wrong).run(t.Context(), d, func() {})
			if err == nil || !strings.Contains(err.Error(), wrong.name+": ") {
				t.Errorf("%s: got the error %v", wrong.name, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// The arms that are compared with the library are stores that work: a duplicate gets its answer, and takes no effect.
func TestOtherStoresHandleDuplicates(t *testing.T) {
	t.Parallel()
	r := newSession(t)
	err := r.with(t.Context(), fast, 2, func(d *database, h *handles) error {
		arms := []arm{
			pageGORM("page through GORM", h.plain, answer), pagePgx("page on pgx", h.raw, answer), lease("lease", h.plain, answer),
		}
		for i := range arms {
			arms[i] = again(arms[i])
		}
		_, err := r.comparison(2, arms...).run(t.Context(), d, func() {})
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// A delivery that finds the key held is told so by each store, or waits until it has the answer.
func TestStoresUnderWay(t *testing.T) {
	t.Parallel()
	r := newSession(t)
	err := r.with(t.Context(), fast, 4, func(d *database, h *handles) error {
		for _, s := range h.stores() {
			if err := h.run(t.Context(), errand{Store: s.name, Event: newEvent(), Deliveries: 8}); err != nil {
				t.Errorf("%s: %v", s.name, err)
			}
		}
		counted, err := d.effects(t.Context())
		for _, s := range h.stores() {
			if counted[s.name] != (effect{1, 1}) {
				t.Errorf("%s: %+v, want one effect", s.name, counted[s.name])
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// A handler's error ends the deliveries, with the arm's name.
func TestErrorsNameTheirArm(t *testing.T) {
	t.Parallel()
	r := newSession(t)
	err := r.with(t.Context(), fast, 1, func(d *database, h *handles) error {
		broken := arm{name: "broken", effects: never, deliver: func(context.Context, string) error { return gorm.ErrInvalidData }}
		_, err := r.comparison(1, broken).run(t.Context(), d, func() {})
		return err
	})
	if !errors.Is(err, gorm.ErrInvalidData) || !strings.Contains(err.Error(), "broken: ") {
		t.Errorf("got %v", err)
	}
}

// The load stays on this machine, and no message contains a password.
func TestServersElsewhereAreRefused(t *testing.T) {
	t.Parallel()
	for dsn, allowed := range map[string]bool{
		"postgres://u:secret@localhost:5432/d":         true,
		"postgres://u:secret@127.0.0.1/d":              true,
		"postgres://u:secret@[::1]:5432/d":             true,
		"host=/var/run/postgresql user=u dbname=d":     true,
		"postgres://u:secret@db.example.org/d":         false,
		"postgres://u:secret@10.0.0.1/d":               false,
		"postgres://u:secret%zz@localhost/d":           false,
		"host=db.example.org user=u password=secret 1": false,
	} {
		_, err := parseDSN(dsn)
		if (err == nil) != allowed {
			t.Errorf("%s: %v", dsn, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the error contains the password: %v", err)
		}
	}
}

func TestUnknownGroupsAreRefused(t *testing.T) {
	t.Parallel()
	if _, err := choose([]string{"delivery", "nothing"}); err == nil || !strings.Contains(err.Error(), `"nothing"`) || !strings.Contains(err.Error(), "hotkey") {
		t.Errorf("got %v, want an error that lists the groups", err)
	}
	command := newCommand()
	var help bytes.Buffer
	command.SetOut(&help)
	command.SetArgs([]string{"--help"})
	if err := command.Execute(); err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		if !strings.Contains(help.String(), g.name) {
			t.Errorf("the help does not list %s", g.name)
		}
	}
}

func TestPgbenchIsRead(t *testing.T) {
	t.Parallel()
	for output, want := range map[string]time.Duration{
		"latency average = 0.5 ms\ntps = 2000.000 (without initial connection time)\n":                        time.Second,
		"tps = 1.5 (including connections establishing)\ntps = 4000.0 (excluding connections establishing)\n": 500 * time.Millisecond,
		"tps = 0.0 (without initial connection time)":                                                         0,
		"nothing": 0,
	} {
		b, err := readPgbench(output, 2000)
		if b.elapsed != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %v, %v; want %v", output, b.elapsed, err, want)
		}
	}
}

func TestSpread(t *testing.T) {
	t.Parallel()
	if got, want := spreadOf([]float64{5, 1, 3, 2, 4}), (Spread{3, 2, 4}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	if got, want := spreadOf([]float64{1, 2}), (Spread{1.5, 1.25, 1.75}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	if !math.IsNaN(spreadOf(nil).Median) {
		t.Error("the median of nothing is a number")
	}
	// A slow round is slow for both, and its ratio says nothing of that.
	if got := spreadOf(ratios([]float64{1, 10, 100}, []float64{2, 20, 200})); got != (Spread{0.5, 0.5, 0.5}) {
		t.Errorf("got %v, want 0.5 throughout", got)
	}
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	for n, want := range map[float64]string{
		0: "0", 3: "3", 0.05: "0.050", 0.123: "0.12", 1.234: "1.23", 12.34: "12.3", 123.4: "123", 1234.5: "1,235", 1_000_000: "1,000,000", -12_649: "-12,649",
	} {
		if got := number(n); got != want {
			t.Errorf("%v: %s, want %s", n, got, want)
		}
	}
}

// A figure is met up to its limit and missed beyond, from either side.
func TestFiguresAreJudged(t *testing.T) {
	t.Parallel()
	results := func(trips float64, share float64) *Results {
		r := &Results{Groups: []Group{{Name: "roundtrips", Reference: nameBare}, {Name: "hot"}}}
		r.Groups[0].add(nameBare, "", 0, []float64{3})
		r.Groups[0].add(nameAnswer, "", 0, []float64{trips})
		r.Groups[1].add(nameHOT, "40 B", 40, []float64{100})
		r.Groups[1].add(nameHOT, "300 B", 300, []float64{share})
		return r
	}
	for _, c := range []struct {
		trips, share float64
		met          bool
	}{{5, 98.5, true}, {4, 100, true}, {5.1, 98.4, false}} {
		judged := 0
		for _, f := range judge(results(c.trips, c.share)) {
			if f.Value == nil {
				continue
			}
			judged++
			if f.Met != c.met {
				t.Errorf("%+v: %s: %v, want %v", c, f.Measure, f.Met, c.met)
			}
		}
		if judged != 2 {
			t.Errorf("%d figures are judged, want 2", judged)
		}
	}
}

// A document's places take the tables of what was measured, as often as one likes, and the rest of it stays.
func TestDocumentTakesTables(t *testing.T) {
	t.Parallel()
	r := &Results{Groups: []Group{{Name: "hot", Title: "Share", Unit: "%"}}}
	r.Groups[0].add(nameHOT, "40 B", 40, []float64{99})
	const text = "before\n<!-- measured: hot -->\nold\n<!-- end -->\nbetween\n<!-- measured: delivery -->\nkept\n<!-- end -->\nafter\n"
	once := r.document(text)
	want := "before\n<!-- measured: hot -->\n\n|  | 40 B |\n| --- | ---: |\n| ours | 99 |\n\n<!-- end -->\nbetween\n" +
		"<!-- measured: delivery -->\nkept\n<!-- end -->\nafter\n"
	if once != want {
		t.Errorf("got\n%s\nwant\n%s", once, want)
	}
	if again := r.document(once); again != once {
		t.Errorf("a second time it becomes\n%s", again)
	}
}

// The figures of docs/performance.md are those of the results beside it, and it shows each plot.
func TestDocumentedFiguresAreTheMeasured(t *testing.T) {
	t.Parallel()
	r, err := readResults("../docs/performance")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	if r.document(string(text)) != string(text) {
		t.Error("the tables of docs/performance.md are not those of docs/performance/results.json: write them with --document")
	}
	for _, g := range r.Groups {
		if image := fmt.Sprintf("(performance/%s.svg)", g.Name); !strings.Contains(string(text), image) {
			t.Errorf("docs/performance.md does not show %s", image)
		}
		if !strings.Contains(string(text), "<!-- measured: "+g.Name+" -->") {
			t.Errorf("docs/performance.md has no place for the table of %s", g.Name)
		}
	}
}
