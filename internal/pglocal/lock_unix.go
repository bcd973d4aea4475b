//go:build unix

package pglocal

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// fileLock is a lock between processes. It ends with its process, in whatever way.
type fileLock struct {
	file *os.File
	has  bool // file systems of other machines may have no locks
}

// lock waits for the cache's lock.
func (c *cache) lock(ctx context.Context) (*fileLock, error) {
	// Never removed: a process that waits for it would get a lock on a file that the next one doesn't see.
	file, err := os.OpenFile(filepath.Join(c.folder, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	lock := &fileLock{file: file}
	told := false
	for {
		switch err := tryLock(file); {
		case err == nil:
			lock.has = true
			return lock, nil
		case errors.Is(err, syscall.EINTR):
			continue
		case !errors.Is(err, syscall.EWOULDBLOCK):
			return lock, nil
		}
		if !told {
			c.report(c.progress(Waiting))
			told = true
		}
		select {
		case <-ctx.Done():
			lock.release()
			return nil, context.Cause(ctx)
		case <-time.After(50 * time.Millisecond): // waiting in the system call could not be given up
		}
	}
}

func (l *fileLock) held() bool { return l.has }

func (l *fileLock) release() { _ = l.file.Close() }
