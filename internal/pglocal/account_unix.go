//go:build unix

package pglocal

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is who runs the server programs.
type account struct {
	uid, gid   uint32
	name       string
	credential *syscall.Credential // nil: the caller
}

// chooseAccount returns the caller, or for root, whom the programs refuse, a user that exists: initdb fails for a uid
// that has no name.
func chooseAccount() (account, error) {
	if os.Geteuid() != 0 {
		return account{uid: uint32(os.Geteuid()), gid: uint32(os.Getegid())}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		if found, err := user.Lookup(name); err == nil {
			return droppedTo(found)
		}
	}
	return account{}, errors.New(`PostgreSQL refuses to run as root, and neither "postgres" nor "nobody" is a user here: ` +
		"add one of them, or run this as another user")
}

func droppedTo(found *user.User) (account, error) {
	uid, err := strconv.ParseUint(found.Uid, 10, 32)
	if err != nil {
		return account{}, fmt.Errorf("user %s: %w", found.Username, err)
	}
	gid, err := strconv.ParseUint(found.Gid, 10, 32)
	if err != nil {
		return account{}, fmt.Errorf("user %s: %w", found.Username, err)
	}
	credential := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return account{uid: credential.Uid, gid: credential.Gid, name: found.Username, credential: credential}, nil
}

// makeFolder makes an empty folder that belongs to the account.
func (a account) makeFolder(parent, prefix string) (string, error) {
	folder, err := os.MkdirTemp(parent, prefix)
	if err != nil {
		return "", err
	}
	if err := a.give(folder); err != nil {
		return "", errors.Join(err, os.Remove(folder))
	}
	return folder, nil
}

// give makes something the account's.
func (a account) give(path string) error {
	if a.credential == nil {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}

// temporary returns a temporary folder that the account can reach: root's TMPDIR often lies in root's home.
func (a account) temporary() (string, error) {
	folders := []string{os.TempDir(), "/tmp", "/var/tmp"}
	for _, folder := range folders {
		if a.canReach(folder) {
			return folder, nil
		}
	}
	return "", fmt.Errorf("user %s can enter none of %q: set TMPDIR to a folder that everybody may enter", a.name, folders)
}

// canReach tells whether the account may pass through a folder and all those above it.
func (a account) canReach(folder string) bool {
	if a.credential == nil {
		return true // the caller finds out by using it
	}
	folder, err := filepath.EvalSymlinks(folder)
	for err == nil && a.canEnter(folder) {
		parent := filepath.Dir(folder)
		if parent == folder {
			return true
		}
		folder = parent
	}
	return false
}

func (a account) canEnter(folder string) bool {
	info, err := os.Stat(folder)
	if err != nil {
		return false
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return false
	case owner.Uid == a.uid:
		return info.Mode().Perm()&0o100 != 0
	case owner.Gid == a.gid:
		return info.Mode().Perm()&0o010 != 0
	default:
		return info.Mode().Perm()&0o001 != 0
	}
}
