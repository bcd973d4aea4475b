package pglocal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// openToAll lets everybody read a tree, and run what its owner may run, whatever umask it was unpacked with.
func openToAll(tree string) error {
	return filepath.WalkDir(tree, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			return os.Chmod(path, 0o755)
		case !entry.Type().IsRegular():
			return nil
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if info.Mode().Perm()&0o100 != 0 {
			mode = 0o755
		}
		return os.Chmod(path, mode)
	})
}

// placeTree makes a tree appear in another place, by hard links if both are on one file system, else as a copy.
//
// It is for root, whose cache is in a home that the account of the server cannot enter. Only the way to a file is closed
// there, not the file, so a second name for it elsewhere is enough and costs nothing; and a shared second place would have
// to be guarded against those who can write to it.
func placeTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(to, strings.TrimPrefix(path, from))
		switch {
		case entry.IsDir():
			return placeFolder(target)
		case entry.Type()&fs.ModeSymlink != 0:
			return placeLink(path, target)
		default:
			return placeFile(path, target)
		}
	})
}

func placeFolder(target string) error {
	if err := os.Mkdir(target, 0o700); err != nil {
		return err
	}
	return os.Chmod(target, 0o755)
}

func placeLink(path, target string) error {
	destination, err := os.Readlink(path)
	if err != nil {
		return err
	}
	if filepath.IsAbs(destination) {
		return fmt.Errorf("%s leads out of its folder", path)
	}
	return os.Symlink(destination, target)
}

func placeFile(path, target string) error {
	if linkFile(path, target) == nil {
		return nil
	}
	return copyFile(path, target)
}

// linkFile is a variable so that a test can have two file systems.
var linkFile = os.Link

func copyFile(path, target string) (err error) {
	source, err := os.Open(path)
	if err != nil {
		return err
	}
	defer source.Close()
	info, err := source.Stat()
	if err != nil {
		return err
	}
	copied, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, copied.Close()) }()
	if _, err := io.Copy(copied, source); err != nil {
		return err
	}
	return copied.Chmod(info.Mode().Perm()) // whatever the umask
}
