package migrations

import (
	"io"
	"io/fs"
	"path"
	"regexp"
	"strings"
)

// renderedFS gives the migrations of an inner file system for one table. The text is rendered here and not by goose's
// ENVSUB, which reads the environment: a variable that happens to be set must never redirect a migration.
type renderedFS struct {
	inner  fs.FS
	target target
}

func (r renderedFS) Open(name string) (fs.File, error) {
	file, err := r.inner.Open(name)
	if err != nil || path.Ext(name) != ".sql" {
		return file, err
	}
	text, err := io.ReadAll(file)
	if err != nil {
		_ = file.Close() // The error of reading is the one that explains.
		return nil, err
	}
	return renderedFile{File: file, text: strings.NewReader(render(string(text), r.target))}, nil
}

// renderedFile is a file with another text.
type renderedFile struct {
	fs.File
	text *strings.Reader
}

func (f renderedFile) Read(p []byte) (int, error) {
	return f.text.Read(p)
}

var (
	indexWord = regexp.MustCompile(`\bidx_idempotency_keys_(\w+)`)
	tableWord = regexp.MustCompile(`\bidempotency_keys\b`)
	direction = regexp.MustCompile(`(?m)^-- \+goose (?:Up|Down)$`)
)

// render makes a migration the target's, and its transactions take turns.
func render(text string, t target) string {
	return direction.ReplaceAllStringFunc(name(text, t), func(annotation string) string {
		return annotation + "\n" + strings.Join(takeTurns, ";\n") + ";\n"
	})
}

// name puts the target's names, and its partitions, into a migration.
func name(text string, t target) string {
	text = indexWord.ReplaceAllStringFunc(text, func(word string) string {
		return quote(indexName(t.table, indexWord.FindStringSubmatch(word)[1]))
	})
	text = tableWord.ReplaceAllLiteralString(text, t.keysTable())
	return t.partition(text)
}
