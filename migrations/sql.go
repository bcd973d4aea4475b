package migrations

import (
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
)

// SQL returns every migration as one transaction of plain SQL, for whoever may not, or will not, let a program change the
// schema: psql runs it, as does any other client that takes several statements. It opens no database.
//
// It ends as [Up] does: the version table is created and the migrations are recorded in it, so that an Up by another role
// finds nothing to do. On a table that has been migrated it changes nothing. It takes its turn among processes that call
// Up. Unlike Up it cannot look first: run [Validate] afterwards, and name a schema if the search path has several, since
// an unqualified name means the first one.
//
// The only errors are those of bad options.
func SQL(opts ...Option) (string, error) {
	text, err := script(gather(opts))
	if err != nil {
		return "", fmt.Errorf("idempotency: migration SQL: %w", err)
	}
	return text, nil
}

func script(o options) (string, error) {
	files, t, err := unopened(o)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	add := func(statements ...string) {
		for _, statement := range statements {
			b.WriteString(strings.TrimSuffix(strings.TrimSpace(statement), ";") + ";\n\n")
		}
	}
	add("BEGIN")
	add(takeTurns...)
	add(versionStatements{}.CreateTable(t.versionTable()), record(t, 0))
	for _, file := range files {
		add(file.up, record(t, file.version))
	}
	add("COMMIT")
	return strings.TrimSuffix(b.String(), "\n"), nil
}

// record is the statement that Up runs, with its parameters put in: both are literals that need no quoting.
func record(t target, version int64) string {
	statement := versionStatements{}.InsertVersion(t.versionTable())
	return strings.NewReplacer("$1", strconv.FormatInt(version, 10), "$2", "true").Replace(statement)
}

// migration is one of the files, rendered.
type migration struct {
	version int64
	name    string // of the file
	text    string // all of it
	up      string // its Up part, without goose's annotations
}

var annotation = regexp.MustCompile(`(?m)^-- \+goose .*\n`)

// unopened renders the migrations without a database, in ascending order. An unqualified table then stays so.
func unopened(o options) ([]migration, target, error) {
	n, err := newNames(o)
	if err != nil {
		return nil, target{}, err
	}
	t := target{names: n, schema: n.table.Schema, versionsSchema: n.versions.Schema}
	entries, err := fs.ReadDir(FS, ".")
	if err != nil {
		return nil, target{}, err
	}
	var list []migration
	for _, entry := range entries {
		content, err := fs.ReadFile(FS, entry.Name())
		if err != nil {
			return nil, target{}, err
		}
		version, err := versionOf(entry.Name())
		if err != nil {
			return nil, target{}, err
		}
		m := migration{version: version, name: entry.Name(), text: name(string(content), t)}
		up, _, _ := strings.Cut(m.text, "-- +goose Down\n")
		m.up = annotation.ReplaceAllLiteralString(up, "")
		list = append(list, m)
	}
	return list, t, nil
}
