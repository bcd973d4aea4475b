package pglocal

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// inventoryFile lists what belongs to downloaded programs. It is written last, so a tree without it isn't whole; and one
// that has it may have lost something since: cleaners of temporary files do that, and so does a machine that loses its
// power, after which files of the right size may hold zeros.
const inventoryFile = "inventory"

var errIncomplete = errors.New("a part is missing or damaged")

// writeInventory writes down what a tree holds.
func writeInventory(tree string) error {
	content, err := takeInventory(tree)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(tree, inventoryFile), content, 0o644)
}

// checkInventory tells whether a tree is whole: nil, or fs.ErrNotExist if there is no tree at all.
func checkInventory(tree string) error {
	if _, err := os.Lstat(tree); err != nil {
		return err
	}
	written, err := os.ReadFile(filepath.Join(tree, inventoryFile))
	if err != nil {
		return errIncomplete
	}
	found, err := takeInventory(tree)
	if err != nil || !bytes.Equal(found, written) || len(found) == 0 {
		return errIncomplete
	}
	return nil
}

// takeInventory lists files with their mode and sum, and links with their target, in the order of their names. The sum
// tells accidents only, and takes a few milliseconds for all of it, where a cryptographic one takes a tenth of a second.
func takeInventory(tree string) ([]byte, error) {
	var list bytes.Buffer
	err := filepath.WalkDir(tree, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name := strings.TrimPrefix(path, tree+string(filepath.Separator))
		if name == inventoryFile {
			return nil
		}
		what, err := describeFile(path, entry)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(&list, "%s %q\n", what, name)
		return err
	})
	return list.Bytes(), err
}

func describeFile(path string, entry fs.DirEntry) (string, error) {
	if entry.Type()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(path)
		return fmt.Sprintf("link %q", target), err
	}
	if !entry.Type().IsRegular() {
		return "", fmt.Errorf("%s is neither a file nor a link", path)
	}
	info, err := entry.Info()
	if err != nil {
		return "", err
	}
	sum, err := checksum(path)
	return fmt.Sprintf("%o %d %08x", info.Mode().Perm(), info.Size(), sum), err
}

func checksum(path string) (uint32, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli)) // which processors have an instruction for
	_, err = io.Copy(sum, bufio.NewReaderSize(file, 1<<18))
	return sum.Sum32(), err
}
