package pglocal

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestFindPrograms(t *testing.T) {
	both := []string{"initdb", "postgres"}
	anybody := func(string) bool { return true }
	root := t.TempDir()
	folder := func(name string, programs ...string) string {
		return makePrograms(t, filepath.Join(root, name), programs...)
	}
	client := folder("client", "psql", "initdb")
	serverAlone := folder("server", "postgres")
	usual := filepath.Join(root, "usual", "*", "bin")
	newest := folder("usual/17/bin", both...)
	folder("usual/18/bin", "psql", "pg_dump")
	folder("usual/9.6/bin", both...)
	configured := folder("configured", both...)
	onPath := folder("path", both...)
	closed := folder("closed", both...)

	// pg_config says where the programs are, or, where only libpq is installed, where they would be.
	honest := folder("honest")
	script(t, filepath.Join(honest, "pg_config"), "echo "+configured)
	libpq := folder("libpq")
	script(t, filepath.Join(libpq, "pg_config"), "echo "+libpq)
	broken := folder("broken")
	script(t, filepath.Join(broken, "pg_config"), "exit 1")

	tests := map[string]struct {
		path   []string
		usable func(string) bool
		want   string
	}{
		"PATH first":                         {path: []string{honest, onPath}, want: onPath},
		"then pg_config":                     {path: []string{client, honest}, want: configured},
		"postgres without initdb":            {path: []string{serverAlone, onPath}, want: onPath},
		"the newest usual folder by number":  {path: []string{client}, want: newest},
		"a lone pg_config is not enough":     {path: []string{libpq}, want: newest},
		"a broken pg_config doesn't matter":  {path: []string{broken}, want: newest},
		"a folder out of reach is passed by": {path: []string{closed, onPath}, usable: func(f string) bool { return f != closed }, want: onPath},
		"a relative entry is passed by":      {path: []string{"path", ""}, want: newest},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Chdir(root)
			t.Setenv("PATH", strings.Join(append(test.path, "/usr/bin/nowhere"), string(os.PathListSeparator)))
			if test.usable == nil {
				test.usable = anybody
			}
			got, err := findPrograms(t.Context(), []string{filepath.Join(root, "none*"), usual}, test.usable)
			if err != nil || got != test.want {
				t.Errorf("got %q, %v, want %q", got, err, test.want)
			}
		})
	}
}

func TestNoProgramsIsOneSentence(t *testing.T) {
	root := t.TempDir()
	script(t, filepath.Join(root, "pg_config"), "echo "+root)
	t.Setenv("PATH", root)
	_, err := findPrograms(t.Context(), []string{filepath.Join(root, "*")}, func(string) bool { return true })
	if !errors.Is(err, ErrNoPrograms) {
		t.Fatalf("got %v, want ErrNoPrograms", err)
	}
	for _, needed := range []string{"install PostgreSQL", "apt install postgresql", "DSN"} {
		if !strings.Contains(err.Error(), needed) {
			t.Errorf("%q does not say %q", err, needed)
		}
	}
	if strings.ContainsAny(err.Error(), "\n.") {
		t.Errorf("%q is more than a sentence without its end", err)
	}
}

func TestNewestFirst(t *testing.T) {
	root := t.TempDir()
	var want []string
	for _, name := range []string{"postgresql-18/bin", "postgresql-10/bin", "postgresql-9.6/bin", "postgresql-9.5/bin"} {
		want = append(want, makePrograms(t, filepath.Join(root, "lib64", name)))
	}
	if got := newestFirst(filepath.Join(root, "lib64", "postgresql-*", "bin")); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// makePrograms makes a folder with programs that do nothing.
func makePrograms(t *testing.T, folder string, names ...string) string {
	t.Helper()
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		script(t, filepath.Join(folder, name), "exit 0")
	}
	return folder
}

func script(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+content+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}
