//go:build unix && !solaris && !aix

package pglocal

import (
	"os"
	"syscall"
)

// tryLock is a variable so that a test can have a file system without locks.
var tryLock = func(file *os.File) error {
	return syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}
