//go:build unix

package pglocal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// programsFolder is where fetch unpacks the programs, inside the private folder.
const programsFolder = "programs"

// fetch downloads and unpacks the programs into a private folder.
func (c *cache) fetch(ctx context.Context, private string) error {
	c.report(c.progress(Downloading))
	relay, err := startRelay(ctx, c)
	if err != nil {
		return err
	}
	err = unpack(relay.url(), private)
	relay.stop()
	switch {
	case err == nil:
		return nil
	case relay.failure() != nil:
		return relay.failure() // embedded-postgres keeps the causes to itself
	case ctx.Err() != nil:
		return context.Cause(ctx)
	default:
		return err
	}
}

// unpack has embedded-postgres download and unpack the programs, and do nothing more.
//
// It has no call for that: its Start goes on to initdb and the server, as the caller, which fails for root, on a fixed
// port and with no care for what it leaves. So it is given a folder for the server's files that it refuses to clear, since
// os.RemoveAll refuses paths that end with a dot. It makes its runtime folder after unpacking and before that: the folder
// shows that the programs are whole. If it came to a server after all, that would refuse port 0.
func unpack(repository, private string) (err error) {
	defer func() {
		if cause := recover(); cause != nil { // it panics when it cannot clear up
			err = fmt.Errorf("unpack: %v", cause)
		}
	}()
	runtimeFolder := filepath.Join(private, "runtime")
	database := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(downloadedVersion).
		BinaryRepositoryURL(repository).
		Port(0).
		CachePath(filepath.Join(private, "archive")).
		BinariesPath(filepath.Join(private, programsFolder)).
		RuntimePath(runtimeFolder).
		DataPath(runtimeFolder + "/.").
		Logger(io.Discard))
	before := embeddedLogs()
	defer removeOpen(before)
	if err = database.Start(); err == nil {
		return errors.Join(errors.New("it started a server"), database.Stop())
	}
	if _, missing := os.Stat(runtimeFolder); missing == nil {
		return nil
	}
	return err
}

// embeddedLogs lists the log files that embedded-postgres leaves in the temporary folder.
func embeddedLogs() map[string]bool {
	logs := map[string]bool{}
	paths, _ := filepath.Glob(filepath.Join(escapeGlob(os.TempDir()), "embedded_postgres_log*")) // well formed
	for _, path := range paths {
		logs[path] = true
	}
	return logs
}

// removeOpen removes those of its log files that have come since and that this process has open: others may be those of
// another process.
func removeOpen(before map[string]bool) {
	for path := range embeddedLogs() {
		if !before[path] && isOpenHere(path) {
			_ = os.Remove(path) // it is empty
		}
	}
}

func isOpenHere(path string) bool {
	wanted, err := os.Stat(path)
	if err != nil {
		return false
	}
	descriptors, _ := filepath.Glob("/dev/fd/*") // well formed
	for _, descriptor := range descriptors {
		if found, err := os.Stat(descriptor); err == nil && os.SameFile(found, wanted) {
			return true
		}
	}
	return false
}
