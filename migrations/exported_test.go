package migrations_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pressly/goose/v3"

	"github.com/gorm-idempotency/idempotency/migrations"
)

// folder makes a folder of files, each an application's migration.
func folder(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		ok(t, os.WriteFile(filepath.Join(dir, name), []byte("-- +goose Up\nSELECT 1;\n-- +goose Down\nSELECT 1;\n"), 0o600))
	}
	return dir
}

func TestExportNumbersAsTheFolderDoes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		files []string
		want  string // a pattern of the new file's number
	}{
		"five digits":        {[]string{"00001_a.sql", "00009_b.sql"}, `00010`},
		"a Go migration":     {[]string{"00001_a.sql", "00041_b.go"}, `00042`},
		"three digits":       {[]string{"001_a.sql", "999_b.sql"}, `1000`},
		"a plain number":     {[]string{"9_a.sql"}, `10`},
		"timestamps":         {[]string{"20240102030405_a.sql"}, `20\d{12}`},
		"both, as goose fix": {[]string{"00001_a.sql", "00002_b.sql", "20240102030405_c.sql"}, `20\d{12}`},
		"the future":         {[]string{"99991231235959_a.sql"}, `99991231235960`},
		"nothing":            {nil, `20\d{12}`},
		"nothing of goose's": {[]string{"README.md", "seed.sql", "0_a.sql", "x1_a.sql", "7_notes.txt"}, `20\d{12}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := folder(t, test.files...)
			if len(test.files) == 2 && filepath.Ext(test.files[1]) == ".go" {
				ok(t, os.WriteFile(filepath.Join(dir, test.files[1]), []byte("package x"), 0o600))
			}
			written, err := migrations.Export(dir)
			ok(t, err)
			if len(written) != 1 || !regexp.MustCompile(`^`+test.want+`_create_idempotency_keys\.sql$`).MatchString(filepath.Base(written[0])) {
				t.Fatalf("wrote %q, want %s_…", written, test.want)
			}
			again, err := migrations.Export(dir)
			ok(t, err)
			entries, err := os.ReadDir(dir)
			ok(t, err)
			if len(again) != 0 || len(entries) != len(test.files)+1 {
				t.Errorf("the second Export wrote %q; the folder has %d files", again, len(entries))
			}
		})
	}
}

// The application's own goose runs what was exported, and comes to the same table as Up.
func TestExportedFilesRun(t *testing.T) {
	t.Parallel()
	for _, opts := range [][]migrations.Option{
		{migrations.WithTable("app.keys")},
		{migrations.WithTable("app.Keys"), migrations.WithPartitions(4)},
	} {
		ctx := context.Background()
		dir := folder(t, "00001_ours.sql")
		written, err := migrations.Export(dir, opts...)
		ok(t, err)
		pool, applied := open(t, emptyDatabase(t)), open(t, emptyDatabase(t))
		exec(t, pool, "CREATE SCHEMA app")
		exec(t, applied, "CREATE SCHEMA app")
		provider, err := goose.NewProvider(goose.DialectPostgres, pool, os.DirFS(dir), goose.WithDisableGlobalRegistry(true))
		ok(t, err)
		results, err := provider.Up(ctx)
		ok(t, err)
		if len(results) != 1+len(written) {
			t.Errorf("%d migrations ran, want %d", len(results), 1+len(written))
		}
		ok(t, migrations.Validate(ctx, pool, opts...))
		ok(t, migrations.Up(ctx, applied, opts...))
		const ours = `WHERE c.relname !~ 'goose' AND `
		dump := strings.Replace(schemaDump, "WHERE c.relnamespace", ours+"c.relnamespace", 1)
		equal(t, "schema", query(t, pool, dump), query(t, applied, dump))
		_, err = provider.DownTo(ctx, 0)
		ok(t, err)
		equal(t, "schema after Down", query(t, pool, dump), "")
	}
}

// Renamed, renumbered and beside other tables' files, an exported file is known again; edited in the one thing that cannot
// be changed later, it is refused.
func TestExportKnowsItsFilesAgain(t *testing.T) {
	t.Parallel()
	dir := folder(t, "00001_ours.sql")
	first, err := migrations.Export(dir)
	ok(t, err)
	ok(t, os.Rename(first[0], filepath.Join(dir, "00777_webhook_keys.sql")))
	other, err := migrations.Export(dir, migrations.WithTable("app.keys"), migrations.WithPartitions(8))
	ok(t, err)
	if len(other) != 1 || filepath.Base(other[0]) != "00778_create_idempotency_keys.sql" {
		t.Errorf("another table: wrote %q", other)
	}
	for _, opts := range [][]migrations.Option{{}, {migrations.WithTable("app.keys"), migrations.WithPartitions(8)}} {
		if again, err := migrations.Export(dir, opts...); err != nil || len(again) != 0 {
			t.Errorf("wrote %q, %v", again, err)
		}
	}
	_, err = migrations.Export(dir, migrations.WithPartitions(8))
	contains(t, err, "idempotency: export migrations: ", "00777_webhook_keys.sql creates", "without partitions, not with 8 partitions")
	_, err = migrations.Export(dir, migrations.WithTable("app.keys"))
	contains(t, err, "with 8 partitions, not without partitions")
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 3 {
		t.Errorf("%d files, %v", len(entries), err)
	}
}

func TestExportRefusesAFolderThatIsNone(t *testing.T) {
	t.Parallel()
	_, err := migrations.Export(filepath.Join(t.TempDir(), "missing"))
	contains(t, err, "idempotency: export migrations: ", "missing")
	file := filepath.Join(folder(t, "00001_a.sql"), "00001_a.sql")
	_, err = migrations.Export(file)
	contains(t, err, "idempotency: export migrations: ", "00001_a.sql")
	_, err = migrations.Export("", migrations.WithTable("a b"))
	contains(t, err, "idempotency: export migrations: table: ")
}

// A file that appears between the look at the folder and the writing is not overwritten.
func TestExportOverwritesNothing(t *testing.T) {
	t.Parallel()
	path := filepath.Join(folder(t, "00001_a.sql"), "00001_a.sql")
	before, err := os.ReadFile(path)
	ok(t, err)
	if err := migrations.CreateFile(path, "ours"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("got %v", err)
	}
	after, err := os.ReadFile(path)
	ok(t, err)
	equal(t, "file", string(after), string(before))
}
