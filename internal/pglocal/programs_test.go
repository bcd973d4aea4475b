package pglocal

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestFindPrograms(t *testing.T) {
	both := []string{"initdb", "postgres"}
	anyVersion := func(context.Context, string) (float64, error) { return 15, nil }
	refuses := func(refused string) versionOf {
		return func(_ context.Context, folder string) (float64, error) {
			if folder == refused {
				return 0, errors.New("as the test wants")
			}
			return 16, nil
		}
	}
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
		path []string
		ask  versionOf
		want string
	}{
		"PATH first":                         {path: []string{honest, onPath}, want: onPath},
		"then pg_config":                     {path: []string{client, honest}, want: configured},
		"postgres without initdb":            {path: []string{serverAlone, onPath}, want: onPath},
		"the newest usual folder by number":  {path: []string{client}, want: newest},
		"a lone pg_config is not enough":     {path: []string{libpq}, want: newest},
		"a broken pg_config doesn't matter":  {path: []string{broken}, want: newest},
		"one that does not run is passed by": {path: []string{closed, onPath}, ask: refuses(closed), want: onPath},
		"a relative entry is passed by":      {path: []string{"path", ""}, want: newest},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Chdir(root)
			t.Setenv("PATH", strings.Join(append(test.path, "/usr/bin/nowhere"), string(os.PathListSeparator)))
			if test.ask == nil {
				test.ask = anyVersion
			}
			got, err := findPrograms(t.Context(), []string{filepath.Join(root, "none*"), usual}, test.ask)
			if err != nil || got.folder != test.want || got.major < 15 {
				t.Errorf("got %+v, %v, want %q", got, err, test.want)
			}
		})
	}
}

func TestWhyInstalledProgramsWillNotDo(t *testing.T) {
	root := t.TempDir()
	t.Setenv("PATH", root)
	folder := makePrograms(t, filepath.Join(root, "old", "bin"), "initdb", "postgres")
	patterns := []string{filepath.Join(root, "*", "bin")}
	ask := func(answer string) versionOf {
		return func(_ context.Context, folder string) (float64, error) { return checkVersion(folder, answer) }
	}
	tests := map[string]struct {
		patterns []string
		answer   string
		want     string
	}{
		"none":              {nil, "", "none are installed"},
		"too old":           {patterns, "postgres (PostgreSQL) 9.6.24\n", folder + " are of version 9.6.24, which is too old"},
		"another product":   {patterns, "postgres (Something) 16.1\n", "do not say which version"},
		"an answer of none": {patterns, "", "do not say which version"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := findPrograms(t.Context(), test.patterns, ask(test.answer))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want it to say %q", err, test.want)
			}
		})
	}
}

func TestCheckVersion(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]float64{
		"postgres (PostgreSQL) 12.22\n":                          12.22,
		"postgres (PostgreSQL) 15.8 (Debian 15.8-1.pgdg120+1)\n": 15.8,
		"postgres (PostgreSQL) 18beta1\n":                        18,
	} {
		if got, err := checkVersion("folder", answer); err != nil || got != want {
			t.Errorf("%q: got %v, %v, want %v", answer, got, err, want)
		}
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
