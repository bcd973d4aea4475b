//go:build solaris || aix

package pglocal

import (
	"errors"
	"os"
)

// tryLock is missing from package syscall here, and the cache does without.
var tryLock = func(*os.File) error { return errors.ErrUnsupported }
