package pglocal

import (
	"cmp"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// usualFolders are where packages put the server programs without adding them to PATH.
var usualFolders = []string{
	"/usr/lib/postgresql/*/bin",                          // Debian, Ubuntu
	"/usr/pgsql-*/bin",                                   // Fedora and its kin, from the PostgreSQL project
	"/usr/libexec/postgresql*",                           // Alpine
	"/usr/lib/postgresql*/bin",                           // openSUSE
	"/usr/lib64/postgresql-*/bin",                        // Gentoo
	"/opt/homebrew/opt/postgresql@*/bin",                 // Homebrew on Apple silicon
	"/usr/local/opt/postgresql@*/bin",                    // Homebrew on Intel
	"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",    // Homebrew on Linux
	"/opt/local/lib/postgresql*/bin",                     // MacPorts
	"/Applications/Postgres.app/Contents/Versions/*/bin", // Postgres.app
	"/usr/local/pgsql/bin",                               // built from source
}

// findPrograms returns the first folder that has the programs and is usable: of PATH, of pg_config, of the patterns.
func findPrograms(ctx context.Context, patterns []string, usable func(folder string) bool) (string, error) {
	candidates := filepath.SplitList(os.Getenv("PATH"))
	if folder := configuredFolder(ctx); folder != "" {
		candidates = append(candidates, folder)
	}
	for _, pattern := range patterns {
		candidates = append(candidates, newestFirst(pattern)...)
	}
	for _, folder := range candidates {
		// A relative entry of PATH means another folder once the programs run elsewhere.
		if filepath.IsAbs(folder) && hasPrograms(folder) && usable(folder) {
			return folder, nil
		}
	}
	return "", ErrNoPrograms
}

// configuredFolder asks pg_config where the programs are. A lone pg_config may be libpq's, so the answer is only a
// candidate.
func configuredFolder(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	output, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(output))
}

// hasPrograms tells whether a folder has both programs: client packages bring some of the others.
func hasPrograms(folder string) bool {
	return isProgram(filepath.Join(folder, "postgres")) && isProgram(filepath.Join(folder, "initdb"))
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// newestFirst lists the folders that match a pattern by the version in their path.
func newestFirst(pattern string) []string {
	folders, _ := filepath.Glob(pattern) // fails for malformed patterns alone
	slices.SortStableFunc(folders, func(a, b string) int { return cmp.Compare(version(b), version(a)) })
	return folders
}

var versionNumber = regexp.MustCompile(`\d+(\.\d+)?`)

// version is the last number in a path, compared as a number: "9.6" comes before "10", and "lib64" says nothing.
func version(path string) float64 {
	numbers := versionNumber.FindAllString(path, -1)
	if len(numbers) == 0 {
		return 0
	}
	number, _ := strconv.ParseFloat(numbers[len(numbers)-1], 64) // the pattern matches numbers alone
	return number
}
