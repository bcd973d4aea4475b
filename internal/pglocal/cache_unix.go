//go:build unix

package pglocal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

const (
	cacheVariable      = "IDEMPOTENCY_CACHE_DIR"
	repositoryVariable = "IDEMPOTENCY_POSTGRES_REPOSITORY"

	noRepository = "off"

	// downloadedVersion exists in the repository for all systems: embedded-postgres's own tests fetch it on each.
	downloadedVersion = "18.3.0"

	privatePattern = "download-*"
)

// The whole is half of what "go test" gives a package.
var defaultLimits = limits{whole: 5 * time.Minute, connect: 15 * time.Second, stall: 30 * time.Second}

// cache is a folder that keeps downloaded programs.
type cache struct {
	folder     string
	repository string
	limits     limits
	report     func(Progress)
}

// defaultRepository is embedded-postgres's own, which it does not export.
func defaultRepository() string {
	return reflect.ValueOf(embeddedpostgres.DefaultConfig()).FieldByName("binaryRepositoryURL").String()
}

// downloadedPrograms returns the programs that the cache has, or downloads them into it. Its error is a part of a
// sentence.
func downloadedPrograms(ctx context.Context, options Options) (programs, error) {
	c := &cache{
		repository: cmp.Or(options.Repository, os.Getenv(repositoryVariable), defaultRepository()),
		limits:     options.limits,
		report:     options.Progress,
	}
	if c.limits == (limits{}) {
		c.limits = defaultLimits
	}
	if c.report == nil {
		c.report = func(Progress) {}
	}
	var err error
	if c.folder, err = cacheFolder(options.Cache); err != nil {
		return programs{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.limits.whole,
		fmt.Errorf("it took longer than %v", c.limits.whole))
	defer cancel()
	if err := c.fill(ctx); err != nil {
		return programs{}, err
	}
	return programs{folder: filepath.Join(c.tree(), "bin"), major: firstVersion(downloadedVersion), tree: c.tree()}, nil
}

func cacheFolder(chosen string) (string, error) {
	chosen = cmp.Or(chosen, os.Getenv(cacheVariable))
	if chosen == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("there is no folder to download them to (%w): set %s to one", err, cacheVariable)
		}
		chosen = filepath.Join(user, "idempotency")
	}
	// Programs start each other by their path, from another folder.
	return filepath.Abs(chosen)
}

// tree is where the programs are. One cache may serve several systems, as a home folder that containers share does.
func (c *cache) tree() string {
	system := runtime.GOOS + "-" + runtime.GOARCH
	if _, err := os.Stat("/etc/alpine-release"); err == nil {
		system += "-alpine" // another C library, for which embedded-postgres takes other programs by this same file
	}
	return filepath.Join(c.folder, "postgresql-"+downloadedVersion+"-"+system)
}

// fill sees to it that the cache holds whole programs.
//
// They are made whole in a private folder, and only then given their name, so that a process that is killed leaves nothing
// that looks like them. A lock keeps two processes from downloading at once; where the file system has no locks, the second
// one finds the name taken and throws its own away.
func (c *cache) fill(ctx context.Context) error {
	if checkInventory(c.tree()) == nil {
		return nil // no need for the right to write
	}
	if c.repository == noRepository {
		return fmt.Errorf("%s=%s forbids downloading them", repositoryVariable, noRepository)
	}
	if err := os.MkdirAll(c.folder, 0o755); err != nil {
		return c.explain(err)
	}
	lock, err := c.lock(ctx)
	if err != nil {
		return c.explain(err)
	}
	defer lock.release()
	broken := checkInventory(c.tree())
	if broken == nil {
		return nil // by the process that had the lock
	}
	if lock.held() {
		c.removeLeftovers()
	}
	return c.explain(c.download(ctx, broken))
}

// removeLeftovers removes what killed processes have left. The lock says that nobody else is at work.
func (c *cache) removeLeftovers() {
	folders, _ := filepath.Glob(filepath.Join(escapeGlob(c.folder), privatePattern)) // the pattern is well formed
	for _, folder := range folders {
		_ = os.RemoveAll(folder) // it is in nobody's way
	}
}

func (c *cache) download(ctx context.Context, broken error) error {
	private, err := os.MkdirTemp(c.folder, privatePattern)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(private) }() // what stays is removed before the next download
	if err := c.fetch(ctx, private); err != nil {
		return err
	}
	unpacked := filepath.Join(private, programsFolder)
	if err := openToAll(unpacked); err != nil {
		return err
	}
	if _, err := (account{}).askVersion(ctx, filepath.Join(unpacked, "bin")); err != nil {
		return fmt.Errorf("what it has for this system is of no use: %w", err)
	}
	if err := writeInventory(unpacked); err != nil {
		return err
	}
	if !errors.Is(broken, os.ErrNotExist) {
		// Aside first: a name is free at once, and whoever uses the programs keeps its open files.
		_ = os.Rename(c.tree(), filepath.Join(private, "broken")) // the next step says if it is still there
	}
	err = os.Rename(unpacked, c.tree())
	if err != nil && checkInventory(c.tree()) == nil {
		return nil // another process was quicker
	}
	return err
}

// explain makes an error a part of the sentence that says why there are no programs.
func (c *cache) explain(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("downloading PostgreSQL %s from %s failed: %w",
		downloadedVersion, redacted(c.repository), explainFile(c.folder, err))
}

func (c *cache) progress(stage Stage) Progress {
	return Progress{Stage: stage, Version: downloadedVersion, Repository: redacted(c.repository), Folder: c.folder}
}
