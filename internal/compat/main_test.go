package compat_test

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/lib/pq"
	"github.com/pressly/goose/v3"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency/gormtest"
	"github.com/gorm-idempotency/idempotency/internal/conformance"
)

var update = flag.Bool("update", false, "write what ran into "+page)

// page is where the table of what ran is kept, between two marks.
const (
	page  = "../../docs/compatibility.md"
	begin = "<!-- What follows is written by go test -update in internal/compat, and checked by go test. -->\n"
	end   = "<!-- The end of what is written. -->\n"
)

// groups are the table's parts in their order.
var groups = []string{
	"Drivers", "Pipelined", "Statements", "GORM", "Handles", "Isolation", bouncerGroup, newBouncerGroup, "dbresolver", "Beside", "Refused", "Figures",
	versionsGroup, serversGroup,
}

const (
	versionsGroup = "Versions"
	serversGroup  = "Servers"
)

// severalRuns are the groups whose lines come from runs with other programs and modules than this one's.
var severalRuns = []string{bouncerGroup, newBouncerGroup, versionsGroup, serversGroup}

// TestMain compares the page with what has passed. A run of everything also tells what versions it passed with, and
// that the page has no line that nothing stands for.
func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	everything := flag.Lookup("test.run").Value.String() == "" && flag.Lookup("test.skip").Value.String() == ""
	if code == 0 {
		if err := checkPage(everything); err != nil {
			fmt.Fprintln(os.Stderr, "FAIL:", err)
			code = 1
		}
	}
	os.Exit(code)
}

var serverMajor atomic.Value

// The server's version is one that the page has a line for.
func TestServerVersion(t *testing.T) {
	t.Parallel()
	version := query(t, connect(t, gormtest.DSN(t)), "SHOW server_version")
	serverMajor.Store(regexp.MustCompile(`^\d+`).FindString(version))
}

// versions are those of the modules that were compiled in. A test's binary does not list them, but its source files' paths
// have them.
func versions() (string, error) {
	var found []string
	for _, function := range []any{gorm.Open, postgres.Open, pgx.Connect, pq.NewConnector, goose.NewProvider} {
		file, _ := runtime.FuncForPC(reflect.ValueOf(function).Pointer()).FileLine(0)
		module := regexp.MustCompile(`([a-z.]+/[^@]+)@(v[0-9.]+)/[^@]*$`).FindStringSubmatch(filepath.ToSlash(file))
		if module == nil {
			return "", fmt.Errorf("%s is in no module's cache", file)
		}
		name := module[1][strings.LastIndex(module[1], "/mod/")+1:]
		found = append(found, strings.TrimPrefix(name, "mod/")+" "+module[2])
	}
	return strings.Join(found, ", "), nil
}

type table map[string]map[string]string // group, name, outcome

func checkPage(everything bool) error {
	records := conformance.Records()
	if everything {
		modules, err := versions()
		if err != nil {
			return err
		}
		records = append(records, conformance.Record{Group: versionsGroup, Name: modules, Outcome: "every line above"},
			conformance.Record{Group: serversGroup, Name: "PostgreSQL " + serverMajor.Load().(string), Outcome: "every line above"})
	}
	ran := table{}
	for _, r := range records {
		if !slices.Contains(groups, r.Group) {
			return fmt.Errorf("group %q has no place in the table", r.Group)
		}
		if ran[r.Group] == nil {
			ran[r.Group] = map[string]string{}
		}
		ran[r.Group][r.Name] = r.Outcome
	}
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	head, rest, found := strings.Cut(string(text), begin)
	written, tail, closed := strings.Cut(rest, end)
	if !found || !closed {
		return fmt.Errorf("%s has lost its marks", page)
	}
	want := merge(parse(written), ran, everything).String()
	switch {
	case want == written:
		return nil
	case *update:
		return os.WriteFile(page, []byte(head+begin+want+end+tail), 0o644)
	}
	return fmt.Errorf("%s is not what ran: run go test -update in internal/compat, or mend what no longer works:\n%s", page, difference(written, want))
}

// merge puts what ran over what is written. After a run of everything the rest goes, but for what other runs have written.
func merge(written, ran table, everything bool) table {
	merged := table{}
	for group, lines := range written {
		if !everything || slices.Contains(severalRuns, group) {
			merged[group] = lines
		}
	}
	for group, lines := range ran {
		for name, outcome := range lines {
			if merged[group] == nil {
				merged[group] = map[string]string{}
			}
			merged[group][name] = outcome
		}
	}
	return merged
}

func (t table) String() string {
	var b strings.Builder
	for _, group := range groups {
		if len(t[group]) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n### %s\n\n| What | Outcome |\n|---|---|\n", group)
		names := make([]string, 0, len(t[group]))
		for name := range t[group] {
			names = append(names, name)
		}
		slices.SortFunc(names, func(a, b string) int { return cmp.Compare(a, b) })
		for _, name := range names {
			fmt.Fprintf(&b, "| %s | %s |\n", name, t[group][name])
		}
	}
	b.WriteString("\n")
	return b.String()
}

func parse(written string) table {
	t := table{}
	group := ""
	for line := range strings.Lines(written) {
		line = strings.TrimSpace(line)
		if title, ok := strings.CutPrefix(line, "### "); ok {
			group = title
			t[group] = map[string]string{}
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), " | ")
		if group != "" && len(cells) == 2 && !strings.Contains(line, "What | Outcome") {
			t[group][strings.TrimSpace(cells[0])] = strings.TrimSpace(cells[1])
		}
	}
	return t
}

// difference is the lines that only one of two texts has.
func difference(written, want string) string {
	var b strings.Builder
	for _, side := range []struct{ sign, lines, other string }{{"-", written, want}, {"+", want, written}} {
		for line := range strings.Lines(side.lines) {
			if !strings.Contains(side.other, line) {
				b.WriteString(side.sign + line)
			}
		}
	}
	return b.String()
}
