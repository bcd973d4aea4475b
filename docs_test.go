package idempotency_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

// The documents are tested as the code is: every Go block compiles, every command and SQL statement runs, and every link,
// test, name and file that they mention exists.

// document is a Markdown file.
type document struct {
	path   string // from the repository's root, with slashes
	prose  string // the text with the lines of fenced blocks emptied, so that lines keep their numbers
	blocks []block
}

// block is a fenced block.
type block struct {
	doc      string
	line     int // of its first line of text
	language string
	text     string
}

func (b block) String() string { return fmt.Sprintf("%s:%d", b.doc, b.line) }

// at is a place in the prose, for messages.
func (d document) at(offset int) string {
	return fmt.Sprintf("%s:%d", d.path, 1+strings.Count(d.prose[:offset], "\n"))
}

func readDocuments(t *testing.T) []document {
	t.Helper()
	paths, err := filepath.Glob("docs/*.md")
	if err != nil || len(paths) == 0 {
		t.Fatalf("docs/*.md: %q, %v", paths, err)
	}
	var docs []document
	for _, name := range append([]string{"README.md", "CHANGELOG.md"}, paths...) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		docs = append(docs, parseDocument(filepath.ToSlash(name), string(text)))
	}
	return docs
}

const fence = "```"

func parseDocument(name, text string) document {
	doc := document{path: name}
	var prose, inside []string
	var open *block
	for i, line := range strings.Split(text, "\n") {
		language, isFence := strings.CutPrefix(strings.TrimSpace(line), fence)
		switch {
		case isFence && open == nil:
			open, inside = &block{doc: name, line: i + 2, language: language}, nil
		case isFence:
			open.text = strings.Join(inside, "\n") + "\n"
			doc.blocks, open = append(doc.blocks, *open), nil
		case open != nil:
			inside = append(inside, line)
		default:
			prose = append(prose, line)
			continue
		}
		prose = append(prose, "")
	}
	if open != nil { // for whoever runs its text
		doc.blocks = append(doc.blocks, block{doc: name, line: open.line, language: "without an end"})
	}
	doc.prose = strings.Join(prose, "\n")
	return doc
}

func blocksIn(docs []document, language string) []block {
	var found []block
	for _, doc := range docs {
		for _, b := range doc.blocks {
			if b.language == language {
				found = append(found, b)
			}
		}
	}
	return found
}

func report(t *testing.T, problems []string) {
	t.Helper()
	for _, problem := range problems {
		t.Error(problem)
	}
}

// A block in no language that is tested could hold anything.
func TestDocsBlocksHaveALanguage(t *testing.T) {
	t.Parallel()
	for _, doc := range readDocuments(t) {
		for _, b := range doc.blocks {
			if !slices.Contains([]string{"go", "sh", "sql", "mermaid", "text"}, b.language) {
				t.Errorf("%v: a block %q: want go, sh, sql, mermaid or text", b, b.language)
			}
		}
	}
}

func TestDocsGoBlocksCompile(t *testing.T) {
	t.Parallel()
	blocks := blocksIn(readDocuments(t), "go")
	if len(blocks) < 10 {
		t.Fatalf("%d Go blocks found", len(blocks))
	}
	if out := compile(t, blocks); out != "" {
		t.Errorf("Go blocks in the documents:\n%s", out)
	}
}

// What the checks themselves find, and how they name the place.
func TestDocsChecksFindWhatIsBroken(t *testing.T) {
	t.Parallel()
	broken := parseDocument("docs/broken.md", strings.ReplaceAll(`# A title
'''go
result, err := keys.Idempotent("s", "e", nil, nil)
return idempotency.Wrapp(db)
'''
[a](#a-title) [b](#b) [c](nowhere.md) [d](https://example.org/x)
'''go
func f() int { return "text" }
'''
'TestThatIsNot', 'idempotency.Nothing', 'Config.Nothing', 'ErrNothing', 'Nothing', 'nothing.go'
'''go
x :=
'''
'''sh
false
'''
'''sql
SELECT nothing;
'''
`, "'", "`"))
	for check, problems := range map[string][]string{
		"docs/broken.md:4":  {compile(t, blocksIn([]document{broken}, "go")[:1])},
		"docs/broken.md:8":  {compile(t, blocksIn([]document{broken}, "go")[1:2])},
		"docs/broken.md:13": {compile(t, blocksIn([]document{broken}, "go")[2:])},
		"docs/broken.md:15": runCommands(t, []document{broken}, nil),
		"docs/broken.md:18": runSQL(t, blocksIn([]document{broken}, "sql")),
	} {
		if text := strings.Join(problems, "\n"); !strings.Contains(text, check) {
			t.Errorf("no problem at %s: %q", check, text)
		}
	}
	problems := strings.Join(slices.Concat(linkProblems([]document{broken}), nameProblems(t, []document{broken})), "\n")
	for _, want := range []string{
		"docs/broken.md:6: no heading #b", "nowhere.md", "example.org", "docs/broken.md:10: no test TestThatIsNot",
		"idempotency.Nothing", "Config.Nothing", "ErrNothing", "docs/broken.md:10: no exported name Nothing", "nothing.go",
	} {
		if !strings.Contains(problems, want) {
			t.Errorf("%q is not found:\n%s", want, problems)
		}
	}
	if strings.Contains(problems, "a-title") {
		t.Errorf("a heading that exists is not found:\n%s", problems)
	}
}

// importPaths are the packages that a fragment may use without importing them.
var importPaths = map[string]string{
	"context": "context", "errors": "errors", "fmt": "fmt", "fs": "io/fs", "hex": "encoding/hex", "http": "net/http",
	"json": "encoding/json", "log": "log", "os": "os", "path": "path", "sha256": "crypto/sha256", "slog": "log/slog", "sql": "database/sql", "strings": "strings", "testing": "testing", "time": "time",
	"gorm": "gorm.io/gorm", "postgres": "gorm.io/driver/postgres", "goose": "github.com/pressly/goose/v3",
	"idempotency": "github.com/gorm-idempotency/idempotency",
	"gormtest":    "github.com/gorm-idempotency/idempotency/gormtest",
	"migrations":  "github.com/gorm-idempotency/idempotency/migrations",
}

// parameters are the variables that a fragment of statements may use without declaring them, and declarations the types.
const parameters = `ctx context.Context, db, tx, other *gorm.DB, pool *sql.DB, keys *idempotency.DB, result *idempotency.Result,
	err error, dsn string, event Event, order Order, orders *Orders, body []byte, resolver gorm.Plugin, mailer Mailer,
	w http.ResponseWriter, r *http.Request, t *testing.T`

var declarations = map[string]string{
	"Order":  `type Order struct { ID, Status string; Total int64; CustomerID uint }`,
	"Event":  `type Event struct { ID, Type, OrderID string; Total int64; Events []Event; Raw []byte }`,
	"Orders": `type Orders struct { db *gorm.DB }; func (*Orders) Create(context.Context, *Order) error { return nil }`,
	"Outbox": `type Outbox struct { ID uint; Topic, Payload string }`,
	"Mailer": `type Mailer interface { Send(context.Context, string) error }`,
}

// compile compiles the blocks, all by one command, and returns what the compiler says, by the documents' lines. A block
// with a package clause is a file; one without is declarations, or the statements of a function. Nothing is written into
// the checkout: the build sees the files in folders of the module that do not exist.
func compile(t *testing.T, blocks []block) string {
	t.Helper()
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	replace := make(map[string]string)
	for i, b := range blocks {
		name := filepath.Join(folder, fmt.Sprintf("%d.go", i))
		if err := os.WriteFile(name, []byte(goFile(root, b)), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(root, "docs", "compiled", fmt.Sprintf("block%d", i), "block.go")] = name
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(folder, "overlay.json")
	if err := os.WriteFile(name, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "go", "build", "-gcflags=-e", "-overlay", name, "./docs/compiled/...").CombinedOutput()
	if err == nil {
		return ""
	}
	return fmt.Sprintf("%s%v", out, err)
}

var mainClause = regexp.MustCompile(`(?m)^package main$`)

// goFile makes a block a file of its own.
func goFile(root string, b block) string {
	line := fmt.Sprintf("\n//line %s:%d\n", filepath.Join(root, b.doc), b.line)
	fileSet := token.NewFileSet()
	if _, err := parser.ParseFile(fileSet, "", b.text, parser.PackageClauseOnly); err == nil {
		// A command is compiled as a package, which saves linking it.
		return line[1:] + mainClause.ReplaceAllString(b.text, "package p")
	}
	const clause = "package p;"
	if file, err := parser.ParseFile(fileSet, "", clause+b.text, 0); err == nil {
		return clause + imports(file, "") + preamble(file) + line + b.text
	}
	function := "func _(" + parameters + ") (_ error) { {"
	file, err := parser.ParseFile(fileSet, "", clause+function+b.text+"}; panic(0) }", 0)
	text := b.text
	if err == nil {
		text = useVariables(fileSet, file, b.text, len(clause+function))
	}
	return clause + imports(file, parameters) + preamble(nil) + function + line + text + "}; panic(0) }"
}

// imports imports the packages that a file selects from, and those that the text behind it does.
func imports(file *ast.File, alsoFor string) string {
	used := make(map[string]bool)
	for name := range importPaths {
		used[name] = strings.Contains(alsoFor+preamble(file), name+".")
	}
	ast.Inspect(file, func(node ast.Node) bool {
		if selector, ok := node.(*ast.SelectorExpr); ok {
			if x, ok := selector.X.(*ast.Ident); ok {
				used[x.Name] = true
			}
		}
		return true
	})
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(importPaths)) {
		if used[name] {
			fmt.Fprintf(&text, "import %s %q;", name, importPaths[name])
		}
	}
	return text.String()
}

// preamble declares the types that blocks may use, but for those that the file declares itself.
func preamble(file *ast.File) string {
	own := make(map[string]bool)
	if file != nil {
		ast.Inspect(file, func(node ast.Node) bool {
			if spec, ok := node.(*ast.TypeSpec); ok {
				own[spec.Name.Name] = true
			}
			return true
		})
	}
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(declarations)) {
		if !own[name] {
			text.WriteString(declarations[name] + ";")
		}
	}
	return text.String()
}

// useVariables uses the variables that a fragment's own statements declare: a fragment ends before its reader would.
func useVariables(fileSet *token.FileSet, file *ast.File, text string, shift int) string {
	function := file.Decls[len(file.Decls)-1].(*ast.FuncDecl)
	statements := function.Body.List[0].(*ast.BlockStmt).List
	for _, statement := range slices.Backward(statements) {
		assigned, ok := statement.(*ast.AssignStmt)
		if !ok || assigned.Tok != token.DEFINE {
			continue
		}
		end := fileSet.Position(assigned.End()).Offset - shift
		for _, left := range assigned.Lhs {
			if name := left.(*ast.Ident).Name; name != "_" {
				text = text[:end] + "; _ = " + name + text[end:]
			}
		}
	}
	return text
}

// notRun are the commands that a test does not run, and why.
var notRun = map[string]string{
	"go get github.com/gorm-idempotency/idempotency": "it is for the reader's module, and would ask the network",
	"go run ./cmd/idempotency demo":                  ".ci/run runs it; it takes some 20 seconds",
	"go test ./...":                                  "it is what runs this test; .ci/run runs it with the race detector",

	"go test -run TestStorm -count 20 -race -timeout 5m .": "the test runs with the others; 20 times takes long, and the race detector a C compiler",
	"go -C internal/compat test ./...":                     ".ci/run runs it",
	"go vet ./...":                                         ".ci/run runs it, for three systems",
	"go test -run '^$' -fuzz FuzzResponse -fuzztime 30s .": "its seeds run with the other tests",
	"golangci-lint run":                                    ".ci/run installs and runs it",
	".ci/run":                                              "it is what runs this test",
	".ci/run lint vet":                                     "the same",

	"go test -run '^$' -bench BenchmarkDelivery -benchtime 200x .":  "it needs a machine that does nothing else",
	"go test -run '^$' -bench BenchmarkAllocations -benchtime 3x .": "the same",
	"go test -run '^$' -bench BenchmarkHOT -benchtime 1x .":         "the same",

	`goose -dir migrations -table idempotency_goose_version postgres "$DATABASE_URL" up`: "goose is no part of the module; TestGooseRunsTheFiles runs the files with its library",
	`atlas migrate import --from "file://migrations?format=goose" --to "file://atlas"`:   "it needs Atlas",
}

func TestDocsCommandsRun(t *testing.T) {
	t.Parallel()
	docs := readDocuments(t)
	report(t, runCommands(t, docs, notRun))
	for command := range notRun {
		if !slices.ContainsFunc(blocksIn(docs, "sh"), func(b block) bool { return strings.Contains(b.text, command) }) {
			t.Errorf("no document has the command %q, which is listed as one that is not run", command)
		}
	}
}

var shellComment = regexp.MustCompile(`(^|\s)#.*`)

// runCommands runs each line of the sh blocks, in the repository's root.
func runCommands(t *testing.T, docs []document, except map[string]string) []string {
	t.Helper()
	var problems []string
	for _, b := range blocksIn(docs, "sh") {
		for i, line := range strings.Split(b.text, "\n") {
			command := strings.TrimSpace(shellComment.ReplaceAllString(line, ""))
			if _, listed := except[command]; listed || command == "" {
				continue
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			out, err := exec.CommandContext(ctx, "sh", "-c", command).CombinedOutput()
			cancel()
			if err != nil {
				problems = append(problems, fmt.Sprintf("%s:%d: %s: %v\n%s", b.doc, b.line+i, command, err, out))
			}
		}
	}
	return problems
}

func TestDocsSQLRuns(t *testing.T) {
	t.Parallel()
	report(t, runSQL(t, blocksIn(readDocuments(t), "sql")))
}

var placeholder = regexp.MustCompile(`\$[1-9]`)

// runSQL runs the statements of each block in a database where the migrations have run, in a transaction that is rolled
// back: roles belong to the whole server. A statement with parameters is prepared.
func runSQL(t *testing.T, blocks []block) []string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), gormtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := conn.Exec(t.Context(), `CREATE TABLE payments (id bigserial PRIMARY KEY, event_id text NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	var problems []string
	const createRole = "DO $$ BEGIN CREATE ROLE app_service; EXCEPTION WHEN duplicate_object THEN END $$;\n"
	for _, b := range blocks {
		for _, statement := range append(strings.SplitAfter("BEGIN;\n"+createRole+b.text, ";\n"), "ROLLBACK") {
			if placeholder.MatchString(statement) {
				_, err = conn.Prepare(t.Context(), "", statement)
			} else {
				_, err = conn.Exec(t.Context(), statement)
			}
			if err != nil {
				problems = append(problems, fmt.Sprintf("%v: %s: %v", b, strings.TrimSpace(statement), err))
			}
		}
	}
	return problems
}

// The rights that docs/migrations.md grants are all that the library needs, and each of them is needed.
func TestDocumentedRightsSuffice(t *testing.T) {
	t.Parallel()
	var grants string
	for _, b := range blocksIn(readDocuments(t), "sql") {
		if b.doc == "docs/migrations.md" && strings.Contains(b.text, "GRANT") {
			grants = b.text
		}
	}
	dsn := gormtest.DSN(t)
	admin := open(t, setup{dsn: dsn})
	role := "docs_" + strconv.FormatInt(time.Now().UnixNano(), 36)
	statements := strings.SplitAfter(strings.TrimSpace(strings.ReplaceAll(grants, "app_service", role)), ";")
	t.Cleanup(func() { admin.Exec("DROP OWNED BY " + role); admin.Exec("DROP ROLE " + role) })
	if err := admin.Exec("CREATE ROLE " + role + "; GRANT ALL ON orders, orders_id_seq TO " + role).Error; err != nil {
		t.Fatal(err)
	}
	db, err := gorm.Open(postgres.Open(withParameter(dsn, "role", role)), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closePool(t, db) })
	if err := db.Use(idempotency.New(idempotency.Config{})); err != nil {
		t.Fatal(err)
	}
	use := func() error {
		event := strconv.FormatInt(time.Now().UnixNano(), 36)
		for range 2 {
			if _, err := idempotency.Do(db, "s", event, nil, placeOrder(event)); err != nil {
				return fmt.Errorf("do: %w", err)
			}
		}
		if err := idempotency.CheckSchema(t.Context(), db); err != nil {
			return err
		}
		return idempotency.Forget(t.Context(), db, "s", event)
	}
	for _, grant := range statements {
		if err := admin.Exec(grant).Error; err != nil {
			t.Fatalf("%s: %v", grant, err)
		}
	}
	if err := use(); err != nil {
		t.Errorf("with the documented rights: %v", err)
	}
	for _, right := range []string{"SELECT", "INSERT", "UPDATE", "DELETE"} {
		if err := admin.Exec("REVOKE " + right + " ON idempotency_keys FROM " + role).Error; err != nil {
			t.Fatal(err)
		}
		if err := use(); err == nil {
			t.Errorf("the right to %s is not needed", right)
		}
		if err := admin.Exec("GRANT " + right + " ON idempotency_keys TO " + role).Error; err != nil {
			t.Fatal(err)
		}
	}
}

// The statements in docs/design.md are the library's.
func TestDocumentedStatementsAreTheLibrarys(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for _, b := range blocksIn(readDocuments(t), "sql") {
		if b.doc == "docs/design.md" {
			text.WriteString(b.text)
		}
	}
	words := func(text string) string {
		text = regexp.MustCompile(`(?m)--.*$`).ReplaceAllString(text, "")
		return strings.Join(strings.Fields(text), " ")
	}
	documented := words(text.String())
	statements := pgsql.Render(pgsql.Table{Name: pgsql.DefaultTable})
	for _, statement := range []string{
		statements.Claim, statements.Lookup, statements.Complete, statements.CompleteOne,
		pgsql.Savepoint(1), pgsql.ReleaseSavepoint(1), pgsql.RollbackToSavepoint(1),
	} {
		if !strings.Contains(documented, words(strings.ReplaceAll(statement, `"`, ""))+";") {
			t.Errorf("docs/design.md does not have the statement\n%s", statement)
		}
	}
}

// Each of Inspect's checks has its heading in docs/operations.md, where the link in a runbook leads.
func TestDocsHaveEveryFinding(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("finding.go")
	requireError(t, err, nil)
	operations, err := os.ReadFile("docs/operations.md")
	requireError(t, err, nil)
	checks := regexp.MustCompile(`(?m)^\tcheck\w+ += "(.+)"$`).FindAllSubmatch(source, -1)
	if len(checks) < 10 {
		t.Fatalf("found %d checks in finding.go", len(checks))
	}
	for _, check := range checks {
		if !strings.Contains(string(operations), "\n### "+string(check[1])+"\n\n*") {
			t.Errorf("docs/operations.md does not say what to do about %s", check[1])
		}
	}
}

func TestDocsLinksResolve(t *testing.T) {
	t.Parallel()
	report(t, linkProblems(readDocuments(t)))
}

var (
	codeSpan = regexp.MustCompile("`[^`]+`")
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading  = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	machine  = regexp.MustCompile(`/(?:work|root|home|tmp|Users)/[\w.]+|\bgoproxy\b`)
)

// knownHosts are those that documents may link to.
var knownHosts = []string{
	"https://gorm.io", "https://github.com/", "https://pkg.go.dev/", "https://keepachangelog.com/", "https://semver.org/",
	"https://www.postgresql.org/", "https://datatracker.ietf.org/", "https://atlasgo.io/",
}

func linkProblems(docs []document) []string {
	anchors := make(map[string][]string)
	for _, doc := range docs {
		for _, title := range heading.FindAllStringSubmatch(doc.prose, -1) {
			anchors[doc.path] = append(anchors[doc.path], anchor(title[1]))
		}
	}
	var problems []string
	for _, doc := range docs {
		prose := codeSpan.ReplaceAllStringFunc(doc.prose, func(code string) string {
			return strings.Map(func(r rune) rune {
				if strings.ContainsRune("[]()", r) {
					return '_'
				}
				return r
			}, code)
		})
		for _, found := range machine.FindAllStringIndex(prose, -1) {
			problems = append(problems, fmt.Sprintf("%s: a path or host of some machine: %s", doc.at(found[0]), prose[found[0]:found[1]]))
		}
		for _, found := range link.FindAllStringSubmatchIndex(prose, -1) {
			if problem := linkProblem(doc, prose[found[2]:found[3]], anchors); problem != "" {
				problems = append(problems, doc.at(found[2])+": "+problem)
			}
		}
	}
	return problems
}

func linkProblem(doc document, target string, anchors map[string][]string) string {
	if strings.Contains(target, "://") {
		if !slices.ContainsFunc(knownHosts, func(host string) bool { return strings.HasPrefix(target, host) }) {
			return "a link to a host that documents do not link to: " + target
		}
		return ""
	}
	file, fragment, _ := strings.Cut(target, "#")
	name := doc.path
	if file != "" {
		name = path.Join(path.Dir(doc.path), file)
	}
	if _, err := os.Stat(name); err != nil && name != doc.path {
		return err.Error()
	}
	if fragment != "" && !slices.Contains(anchors[name], fragment) {
		return fmt.Sprintf("no heading #%s in %s", fragment, name)
	}
	return ""
}

// anchor is what GitHub calls a heading.
func anchor(title string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, title)
}

func TestDocsNamesExist(t *testing.T) {
	t.Parallel()
	report(t, nameProblems(t, readDocuments(t)))
}

var (
	testName   = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark|Example)[A-Z]\w*`)
	testFunc   = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark|Example)\w+)\(`)
	qualified  = regexp.MustCompile(`(^|[^\w.])(\w+)\.([A-Z]\w*)(?:\.([A-Z]\w*))?`)
	errorName  = regexp.MustCompile(`(^|[^\w.])(Err[A-Z]\w*)`)
	singleName = regexp.MustCompile(`^([A-Z]\w*[a-z]\w*)(?:\(.*\))?$`)
	fileName   = regexp.MustCompile(`^[\w./-]+(?:\.go|\.sql|\.md|\.yml|[a-z]/)$`)
)

// foreignNames are names of GORM and of others that the documents use bare.
var foreignNames = []string{
	// GORM
	"AfterCreate", "AutoMigrate", "Before", "BeforeCreate", "DB", "Debug", "DefaultTransactionTimeout", "DisableNestedTransaction", "DryRun", "Find",
	"Logger", "NamingStrategy", "NewDB", "NowFunc", "Plugins", "PreferSimpleProtocol", "PrepareStmt", "Row", "SkipDefaultTransaction",
	"Transaction", "TranslateError", "WithContext",
	// gormtest, whose package is clear from the context, and examples
	"DSN", "Open", "Event", "Keys", "Order", "Date", "SendAttempts",
}

// nameProblems looks at what stands in the prose between backticks.
func nameProblems(t *testing.T, docs []document) []string {
	t.Helper()
	tests := testNames(t)
	exported := map[string]map[string][]string{
		"idempotency": exportedNames(t, "."), "migrations": exportedNames(t, "migrations"), "gormtest": exportedNames(t, "gormtest"),
	}
	ours := exported["idempotency"]
	members := slices.Concat(slices.Collect(maps.Values(ours))...)
	var problems []string
	for _, doc := range docs {
		for _, span := range codeSpan.FindAllStringIndex(doc.prose, -1) {
			code := doc.prose[span[0]+1 : span[1]-1]
			problem := func(format string, args ...any) {
				problems = append(problems, doc.at(span[0])+": "+fmt.Sprintf(format, args...))
			}
			for _, name := range testName.FindAllString(code, -1) {
				if !tests[name] {
					problem("no test %s", name)
				}
			}
			for _, found := range qualified.FindAllStringSubmatch(code, -1) {
				first, second, third := found[2], found[3], found[4]
				if names, isPackage := exported[first]; isPackage {
					if of, ok := names[second]; !ok || third != "" && !slices.Contains(of, third) {
						problem("no exported name %s", found[0])
					}
				} else if of, isType := ours[first]; isType && !slices.Contains(of, second) {
					problem("no exported name %s", found[0])
				}
			}
			for _, found := range errorName.FindAllStringSubmatch(code, -1) {
				if _, ok := ours[found[2]]; !ok {
					problem("no error %s", found[2])
				}
			}
			if found := singleName.FindStringSubmatch(code); found != nil && !testName.MatchString(code) && !errorName.MatchString(code) {
				_, isOurs := ours[found[1]]
				_, isMigrations := exported["migrations"][found[1]]
				if !isOurs && !isMigrations && !slices.Contains(members, found[1]) && !slices.Contains(foreignNames, found[1]) {
					problem("no exported name %s", found[1])
				}
			}
			if fileName.MatchString(code) {
				_, fromRoot := os.Stat(code)
				_, fromDoc := os.Stat(path.Join(path.Dir(doc.path), code))
				if fromRoot != nil && fromDoc != nil {
					problem("no file %s", code)
				}
			}
		}
	}
	return problems
}

func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := make(map[string]bool)
	err := filepath.WalkDir(".", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, "_test.go") {
			return err
		}
		text, err := os.ReadFile(name)
		for _, found := range testFunc.FindAllSubmatch(text, -1) {
			names[string(found[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// exportedNames are a package's exported names, each with its exported fields and methods.
func exportedNames(t *testing.T, folder string) map[string][]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string][]string)
	for _, name := range paths {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			exportedBy(decl, names)
		}
	}
	return names
}

func exportedBy(decl ast.Decl, names map[string][]string) {
	add := func(name, member string) {
		if ast.IsExported(name) && (member == "" || ast.IsExported(member)) {
			names[name] = append(names[name], member)
		}
	}
	switch decl := decl.(type) {
	case *ast.FuncDecl:
		if decl.Recv == nil {
			add(decl.Name.Name, "")
			return
		}
		receiver := decl.Recv.List[0].Type
		if pointer, ok := receiver.(*ast.StarExpr); ok {
			receiver = pointer.X
		}
		if ident, ok := receiver.(*ast.Ident); ok {
			add(ident.Name, decl.Name.Name)
		}
	case *ast.GenDecl:
		for _, spec := range decl.Specs {
			switch spec := spec.(type) {
			case *ast.ValueSpec:
				for _, name := range spec.Names {
					add(name.Name, "")
				}
			case *ast.TypeSpec:
				add(spec.Name.Name, "")
				if fields, ok := spec.Type.(*ast.StructType); ok {
					for _, field := range fields.Fields.List {
						for _, name := range field.Names {
							add(spec.Name.Name, name.Name)
						}
					}
				}
			}
		}
	}
}

// What the library exports is documented: each error in docs/errors.md, and each field and option of the configuration in
// docs/configuration.md.
func TestDocsAreComplete(t *testing.T) {
	t.Parallel()
	text := make(map[string][]byte)
	for _, name := range []string{"docs/errors.md", "docs/configuration.md"} {
		read, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text[name] = read
	}
	want := func(doc, name string) {
		if !bytes.Contains(text[doc], []byte("`"+name+"`")) {
			t.Errorf("%s does not mention `%s`", doc, name)
		}
	}
	for name, members := range exportedNames(t, ".") {
		switch {
		case strings.HasPrefix(name, "Err"), strings.HasSuffix(name, "Error"):
			want("docs/errors.md", name)
		case name == "Config", name == "SourceConfig", name == "Observation", name == "Digest":
			for _, member := range members {
				if member != "" {
					want("docs/configuration.md", member)
				}
			}
		case strings.HasPrefix(name, "With") && name != "WithoutScope", strings.HasSuffix(name, "ForeignWrites"):
			want("docs/configuration.md", name)
		}
	}
}
