package pglocal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	"/usr/lib64/postgresql/*/bin",                        // Slackware
	"/usr/lib/psql*/bin",                                 // Void
	"/opt/homebrew/opt/postgresql*/bin",                  // Homebrew on Apple silicon
	"/usr/local/opt/postgresql*/bin",                     // Homebrew on Intel
	"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",     // Homebrew on Linux
	"/opt/local/lib/postgresql*/bin",                     // MacPorts
	"/Applications/Postgres.app/Contents/Versions/*/bin", // Postgres.app
	"/Library/PostgreSQL/*/bin",                          // EnterpriseDB's installer on macOS
	"/opt/PostgreSQL/*/bin",                              // and on Linux
	"/usr/local/pgsql/bin",                               // built from source
}

// programs are server programs that can be started.
type programs struct {
	folder string // holds postgres and initdb
	major  float64
	tree   string // where they were downloaded: the folder that has all they need. "" if they are installed
}

// versionOf asks the programs of a folder for their version.
type versionOf func(ctx context.Context, folder string) (major float64, err error)

// findPrograms returns the programs of the first folder that has ones that run and aren't too old: of PATH, of pg_config,
// of the patterns. If there is none its error is a part of a sentence: why those that it has seen won't do.
func findPrograms(ctx context.Context, patterns []string, ask versionOf) (programs, error) {
	candidates := filepath.SplitList(os.Getenv("PATH"))
	if folder := configuredFolder(ctx); folder != "" {
		candidates = append(candidates, folder)
	}
	for _, pattern := range patterns {
		candidates = append(candidates, newestFirst(pattern)...)
	}
	var unfit error // the first is the one that people know of
	for _, folder := range candidates {
		// A relative entry of PATH means another folder once the programs run elsewhere.
		if !filepath.IsAbs(folder) || !hasPrograms(folder) {
			continue
		}
		major, err := ask(ctx, folder)
		if err == nil {
			return programs{folder: folder, major: major}, nil
		}
		unfit = cmp.Or(unfit, err)
	}
	return programs{}, cmp.Or(unfit, errNoneInstalled)
}

var errNoneInstalled = errors.New("none are installed")

const oldestMajor = 12

// checkVersion reads what "postgres --version" says: "postgres (PostgreSQL) 18beta1 (Debian 18~beta1)".
func checkVersion(folder, answer string) (float64, error) {
	_, number, found := strings.Cut(answer, "(PostgreSQL) ")
	major := firstVersion(number)
	switch {
	case !found || major == 0:
		return 0, fmt.Errorf("those in %s do not say which version they are", folder)
	case major < oldestMajor:
		return 0, fmt.Errorf("those in %s are of version %s, which is too old", folder, strings.Fields(number)[0])
	default:
		return major, nil
	}
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
	return firstVersion(numbers[len(numbers)-1])
}

func firstVersion(text string) float64 {
	number, _ := strconv.ParseFloat(versionNumber.FindString(text), 64) // 0 for what is none
	return number
}

// escapeGlob makes a path mean itself in a pattern.
func escapeGlob(path string) string {
	return regexp.MustCompile(`[*?\[\\]`).ReplaceAllString(path, `\$0`)
}
