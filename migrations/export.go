package migrations

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pressly/goose/v3"
)

// Export writes the migrations as goose files into dir, an existing folder of the application's own migrations, and
// returns the paths of those that it wrote. They are numbered to come last, in the folder's way: where its newest file has
// a timestamp, or there is none, by the time in UTC, as goose create does; otherwise by the next number, with as many
// digits.
//
// A migration that the folder has already, for the same table, is left alone, whatever its number: so a second Export
// returns no paths, and one after an update of the library writes what is new. A folder that has it for the same table
// with another number of partitions is refused. Files that exist are never overwritten. If Export fails it has written
// nothing, unless removing what it wrote failed as well, which the error then says.
//
// The application's goose runs and records the files, so [WithVersionTable] means nothing here, and the application need
// not call [Up]; it should call [Validate]. A name without a schema means the first schema of the search path.
func Export(dir string, opts ...Option) ([]string, error) {
	written, err := export(dir, gather(opts), time.Now())
	if err != nil {
		return nil, fmt.Errorf("idempotency: export migrations: %w", err)
	}
	return written, nil
}

func export(dir string, o options, now time.Time) ([]string, error) {
	files, t, err := unopened(o)
	if err != nil {
		return nil, err
	}
	f, err := readFolder(dir)
	if err != nil {
		return nil, err
	}
	var written []string
	for _, m := range files {
		there, err := f.has(m, t)
		if err != nil {
			return nil, errors.Join(err, remove(written))
		}
		if there {
			continue
		}
		_, title, _ := strings.Cut(m.name, "_")
		path := filepath.Join(dir, f.next(now)+"_"+title)
		if err := create(path, mark(m, t)+" "+kind(t)+"\n"+m.text); err != nil {
			return nil, errors.Join(err, remove(written))
		}
		written = append(written, path)
	}
	return written, nil
}

// mark is how an exported file is known again: names are the application's to change.
func mark(m migration, t target) string {
	return "-- gorm-idempotency " + m.name + " for " + t.keysTable()
}

// kind is the end of the mark's line.
func kind(t target) string {
	if len(t.partitions) == 0 {
		return "without partitions"
	}
	return fmt.Sprintf("with %d partitions", len(t.partitions))
}

// folder is a folder of goose migrations.
type folder struct {
	texts  map[string]string // of the SQL files, by name
	last   int64             // the highest version
	digits int               // how it is written
}

func readFolder(dir string) (*folder, error) {
	files := os.DirFS(dir)
	entries, err := fs.ReadDir(files, ".")
	if err != nil {
		return nil, fmt.Errorf("read the folder %s: %w", dir, err)
	}
	f := &folder{texts: make(map[string]string)}
	for _, entry := range entries {
		version, err := versionOf(entry.Name())
		if err != nil || entry.IsDir() {
			continue // goose passes over it, too
		}
		if version > f.last {
			number, _, _ := strings.Cut(entry.Name(), "_")
			f.last, f.digits = version, len(number)
		}
		if filepath.Ext(entry.Name()) != ".sql" {
			continue
		}
		content, err := fs.ReadFile(files, entry.Name())
		if err != nil {
			return nil, err
		}
		f.texts[entry.Name()] = string(content)
	}
	return f, nil
}

// versionOf is the number that a migration's name begins with.
func versionOf(name string) (int64, error) {
	return goose.NumericComponent(name)
}

// has reports whether a file was exported into the folder, under whatever name.
func (f *folder) has(m migration, t target) (bool, error) {
	for name, text := range f.texts {
		_, found, ok := strings.Cut(text, mark(m, t)+" ")
		if !ok {
			continue
		}
		if found, _, _ = strings.Cut(found, "\n"); strings.TrimSpace(found) != kind(t) {
			return false, fmt.Errorf("%s creates %s %s, not %s: if it was never applied, remove it first", name, t.keysTable(),
				strings.TrimSpace(found), kind(t))
		}
		return true, nil
	}
	return false, nil
}

const timestamp = "20060102150405" // goose's

// next is the next number in the folder's way.
func (f *folder) next(now time.Time) string {
	if f.last > 0 && f.digits < len(timestamp) {
		f.last++
		return fmt.Sprintf("%0*d", f.digits, f.last)
	}
	f.digits = len(timestamp)
	at, _ := strconv.ParseInt(now.UTC().Format(timestamp), 10, 64) // digits alone
	f.last = max(at, f.last+1)
	return strconv.FormatInt(f.last, 10)
}

// create writes a file that does not exist.
func create(path, text string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644) //nolint:gosec // into the folder that the caller names
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	if err = errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

func remove(paths []string) error {
	var errs []error
	for _, path := range paths {
		errs = append(errs, os.Remove(path))
	}
	return errors.Join(errs...)
}
