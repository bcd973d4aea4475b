//go:build unix

package pglocal

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// bare are the options of a machine without programs, with a cache of the test's own. Nothing here may reach the network.
func bare(t *testing.T, repository string) Options {
	t.Helper()
	t.Setenv("PATH", "/usr/bin/nowhere")
	return Options{
		Cache:      filepath.Join(makePublicFolder(t), "cache"),
		Repository: repository,
		usual:      []string{"/usr/bin/nowhere"},
		limits:     limits{whole: 30 * time.Second, connect: 5 * time.Second, stall: 5 * time.Second},
	}
}

func TestDownload(t *testing.T) {
	repository := newRepository(t)
	options := bare(t, repository.address())
	var stages []Stage
	var last Progress
	options.Progress = func(p Progress) {
		if len(stages) == 0 || stages[len(stages)-1] != p.Stage {
			stages = append(stages, p.Stage)
		}
		if p.Stage == Downloading {
			last = p
		}
	}
	requireWorks(t, startServer(t, options))
	if fmt.Sprint(stages) != fmt.Sprint([]Stage{Downloading, Unpacking}) || last.Received == 0 || last.Received != last.Total {
		t.Errorf("stages %v, at last %+v", stages, last)
	}
	requireTidy(t, options.Cache)

	// The next time nothing is downloaded, and nothing need be written.
	stages = nil
	options.Repository = noRepository
	requireWorks(t, startServer(t, options))
	if repository.archives.Load() != 1 || repository.sums.Load() != 1 || len(stages) > 0 {
		t.Errorf("%d archives and %d sums were asked for, and it told of %v", repository.archives.Load(), repository.sums.Load(), stages)
	}
}

// As for root with a home folder: the account cannot enter what is above the cache.
func TestCacheThatTheAccountCannotReach(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives its server to another user")
	}
	for _, way := range []string{"links", "copies"} {
		t.Run(way, func(t *testing.T) {
			if way == "copies" {
				original := linkFile
				defer func() { linkFile = original }()
				linkFile = func(string, string) error { return syscall.EXDEV }
			}
			previous := syscall.Umask(0o077) // of a careful root
			defer syscall.Umask(previous)
			options := bare(t, newRepository(t).address())
			options.Cache = filepath.Join(t.TempDir(), "root", "cache")
			if err := os.MkdirAll(filepath.Dir(options.Cache), 0o700); err != nil {
				t.Fatal(err)
			}
			server := startServer(t, options)
			requireWorks(t, server)
			if _, err := os.Stat(filepath.Join(server.folder, programsFolder, "bin", "postgres")); err != nil {
				t.Error(err)
			}
			if err := server.Stop(); err != nil {
				t.Error(err)
			}
			if err := checkInventory((&cache{folder: options.Cache}).tree()); err != nil {
				t.Errorf("the cache has suffered: %v", err)
			}
		})
	}
}

func TestBrokenCacheIsFetchedAgain(t *testing.T) {
	repository := newRepository(t)
	options := bare(t, repository.address())
	tree := (&cache{folder: options.Cache}).tree()
	damage := map[string]func() error{
		"a file is gone":          func() error { return os.Remove(filepath.Join(tree, "lib", "so.1")) },
		"a link is gone":          func() error { return os.Remove(filepath.Join(tree, "lib", "so")) },
		"zeros of the right size": func() error { return zero(filepath.Join(tree, "share", "a")) },
		"a program cannot be run": func() error { return os.Chmod(filepath.Join(tree, "bin", "initdb"), 0o644) },
		"half extracted":          func() error { return os.Remove(filepath.Join(tree, inventoryFile)) },
		"emptied":                 func() error { return errors.Join(os.RemoveAll(tree), os.Mkdir(tree, 0o755)) },
		"an empty inventory": func() error {
			return errors.Join(os.RemoveAll(tree), os.Mkdir(tree, 0o755), os.WriteFile(filepath.Join(tree, inventoryFile), nil, 0o644))
		},
		"a file in its place": func() error { return errors.Join(os.RemoveAll(tree), os.WriteFile(tree, nil, 0o644)) },
	}
	fill := func(t *testing.T) {
		t.Helper()
		found, err := downloadedPrograms(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		if err := checkInventory(found.tree); err != nil {
			t.Error(err)
		}
	}
	fill(t)
	for name, do := range damage {
		t.Run(name, func(t *testing.T) {
			before := repository.archives.Load()
			if err := do(); err != nil {
				t.Fatal(err)
			}
			fill(t)
			if asked := repository.archives.Load() - before; asked != 1 {
				t.Errorf("%d archives were asked for, want 1", asked)
			}
			requireTidy(t, options.Cache)
		})
	}
}

func zero(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, make([]byte, info.Size()), 0o644)
}

// cacheChild is the repository from which this test binary, started again, is to download to the folder in cacheFolderChild.
// It may be told to do without locks.
const cacheChild, cacheFolderChild, noLockChild = "PGLOCAL_TEST_REPOSITORY", "PGLOCAL_TEST_CACHE", "PGLOCAL_TEST_NO_LOCK"

func downloadAsChild(repository string) {
	if os.Getenv(noLockChild) != "" {
		tryLock = func(*os.File) error { return errors.ErrUnsupported }
	}
	_, err := downloadedPrograms(context.Background(), Options{Repository: repository, Cache: os.Getenv(cacheFolderChild)})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Once with the lock, and once without, as on a file system that has none. They must be processes: embedded-postgres itself
// lets one after the other download inside a process.
func TestProcessesThatDownloadAtOnce(t *testing.T) {
	const processes = 3
	download := func(t *testing.T, repository *repository, variables ...string) {
		folder := makePublicFolder(t)
		var group sync.WaitGroup
		for range processes {
			group.Go(func() {
				command := exec.CommandContext(t.Context(), os.Args[0])
				command.Env = append(os.Environ(), cacheChild+"="+repository.address(), cacheFolderChild+"="+folder)
				command.Env = append(command.Env, variables...)
				if output, err := command.CombinedOutput(); err != nil {
					t.Errorf("%v: %s", err, output)
				}
			})
		}
		group.Wait()
		requireTidy(t, folder)
		if err := checkInventory((&cache{folder: folder}).tree()); err != nil {
			t.Error(err)
		}
	}
	t.Run("with a lock", func(t *testing.T) {
		repository := newRepository(t)
		download(t, repository)
		if asked := repository.archives.Load(); asked != 1 {
			t.Errorf("%d archives were asked for, want 1", asked)
		}
	})
	t.Run("without", func(t *testing.T) {
		repository := newRepository(t)
		send := repository.current().answer
		all := make(chan struct{})
		var arrived atomic.Int32
		together := func(w http.ResponseWriter, archive []byte, gone <-chan struct{}) {
			if arrived.Add(1) == processes {
				close(all)
			}
			select { // all are at it at the same time
			case <-all:
			case <-time.After(20 * time.Second):
				t.Error("they took turns")
			}
			send(w, archive, gone)
		}
		repository.instead(func(a *answers) { a.answer = together })
		download(t, repository, noLockChild+"=1")
	})
}

func TestWaitingForAnotherProcessEnds(t *testing.T) {
	options := bare(t, newRepository(t).address())
	options.limits.whole = 200 * time.Millisecond
	var told []Stage
	options.Progress = func(p Progress) { told = append(told, p.Stage) }
	other := &cache{folder: options.Cache}
	if err := os.MkdirAll(options.Cache, 0o755); err != nil {
		t.Fatal(err)
	}
	lock, err := other.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.release()
	_, err = Start(t.Context(), options)
	requireSentence(t, err, "it took longer than 200ms")
	if len(told) != 1 || told[0] != Waiting {
		t.Errorf("told of %v", told)
	}
}

func TestLeftoversOfKilledProcessesAreRemoved(t *testing.T) {
	options := bare(t, newRepository(t).address())
	if err := os.MkdirAll(filepath.Join(options.Cache, "download-123", "programs"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := downloadedPrograms(t.Context(), options); err != nil {
		t.Fatal(err)
	}
	requireTidy(t, options.Cache)
}

func TestDownloadFailures(t *testing.T) {
	const secret = "hush-hush"
	junk := func(w http.ResponseWriter, _ []byte, _ <-chan struct{}) {
		_, _ = fmt.Fprint(w, "<html>please log in</html>")
	}
	useless := func(t *testing.T) *repository {
		return serveArchive(t, makeArchive(t, map[string]string{
			"bin/postgres": "#!/bin/sh\necho 'libicu.so: not found' >&2; exit 127\n", "bin/initdb": "#!/bin/sh\n", "bin/pg_ctl": "",
		}))
	}
	tests := map[string]struct {
		prepare func(t *testing.T, options *Options)
		want    string
	}{
		"no network": {func(t *testing.T, o *Options) {
			o.Repository = "http://user:" + secret + "@" + closedPort(t) + "/maven"
		}, "connection refused (check the network, and HTTPS_PROXY"},
		"a host that does not exist": {func(_ *testing.T, o *Options) {
			o.Repository = "https://nowhere.invalid/maven"
		}, "nowhere.invalid"},
		"not an address":          {func(_ *testing.T, o *Options) { o.Repository = "maven" }, "unsupported protocol scheme"},
		"downloads are forbidden": {func(_ *testing.T, o *Options) { o.Repository = noRepository }, "IDEMPOTENCY_POSTGRES_REPOSITORY=off forbids downloading them"},
		"no archive for this system": {func(t *testing.T, o *Options) {
			o.Repository = newRepository(t).URL + "/elsewhere"
		}, "it has none for this system"},
		"a repository in trouble": {answering(func(w http.ResponseWriter, _ []byte, _ <-chan struct{}) { w.WriteHeader(http.StatusServiceUnavailable) }), "503 Service Unavailable"},
		"a page instead of an archive": {func(t *testing.T, o *Options) {
			repository := newRepository(t)
			repository.instead(func(a *answers) {
				a.answer, a.sum = junk, func(w http.ResponseWriter, _ string) { w.WriteHeader(http.StatusNotFound) }
			})
			o.Repository = repository.address()
		}, "not a valid zip file"},
		"an archive that was changed": {answering(func(w http.ResponseWriter, archive []byte, _ <-chan struct{}) {
			_, _ = w.Write(append(archive[:len(archive)-1:len(archive)-1], 'x'))
		}), "checksums do not match"},
		"an archive that ends early": {answering(func(w http.ResponseWriter, archive []byte, _ <-chan struct{}) {
			w.Header().Set("Content-Length", fmt.Sprint(len(archive)))
			_, _ = w.Write(archive[:len(archive)/2])
		}), "unexpected EOF"},
		"an archive that stops coming": {func(t *testing.T, o *Options) {
			answering(func(w http.ResponseWriter, archive []byte, gone <-chan struct{}) {
				w.Header().Set("Content-Length", fmt.Sprint(len(archive)))
				_, _ = w.Write(archive[:100])
				w.(http.Flusher).Flush()
				<-gone
			})(t, o)
			o.limits.stall = 200 * time.Millisecond
		}, "nothing came any more"},
		"an archive that comes too slowly": {func(t *testing.T, o *Options) {
			answering(func(_ http.ResponseWriter, _ []byte, gone <-chan struct{}) { <-gone })(t, o)
			o.limits.whole = 200 * time.Millisecond
		}, "it took longer than 200ms"},
		"programs that do not run": {func(t *testing.T, o *Options) { o.Repository = useless(t).address() }, "exit status 127: libicu.so: not found"},
		"a cache in a file": {func(t *testing.T, o *Options) {
			o.Cache = filepath.Join(makePublicFolder(t), "file")
			script(t, o.Cache, "")
		}, "not a directory"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			options := bare(t, "")
			test.prepare(t, &options)
			before := temporaryFiles(t)
			began := time.Now()
			_, err := Start(t.Context(), options)
			requireSentence(t, err, test.want)
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%q contains the password", err)
			}
			if took := time.Since(began); took > 15*time.Second {
				t.Errorf("it took %v", took)
			}
			if checkInventory((&cache{folder: options.Cache}).tree()) == nil {
				t.Error("the cache holds programs")
			}
			requireTidy(t, options.Cache)
			if after := temporaryFiles(t); after != before {
				t.Errorf("temporary files: before %s, after %s", before, after)
			}
		})
	}
}

func answering(answer func(http.ResponseWriter, []byte, <-chan struct{})) func(*testing.T, *Options) {
	return func(t *testing.T, o *Options) {
		repository := newRepository(t)
		repository.instead(func(a *answers) { a.answer = answer })
		o.Repository = repository.address()
	}
}

func TestSumsAsMirrorsSendThem(t *testing.T) {
	for name, sum := range map[string]func(http.ResponseWriter, string){
		"with a line's end":  func(w http.ResponseWriter, sum string) { _, _ = fmt.Fprintln(w, sum) },
		"with a file's name": func(w http.ResponseWriter, sum string) { _, _ = fmt.Fprintln(w, sum+"  file.jar") },
		"in capitals":        func(w http.ResponseWriter, sum string) { _, _ = fmt.Fprint(w, strings.ToUpper(sum)) },
		"not at all":         func(w http.ResponseWriter, _ string) { w.WriteHeader(http.StatusNotFound) },
	} {
		t.Run(name, func(t *testing.T) {
			repository := newRepository(t)
			repository.instead(func(a *answers) { a.sum = sum })
			if _, err := downloadedPrograms(t.Context(), bare(t, repository.address())); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make a small disk; explainFile is tested by itself")
	}
	folder := makePublicFolder(t)
	if err := mountSmall(folder); err != nil {
		t.Skipf("no small disk can be made here: %v", err)
	}
	t.Cleanup(func() {
		// What was killed lets go of its files a moment later, and has to. embedded-postgres forgets to close the one that
		// it could not write, so that it stays open until the collector comes by.
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			runtime.GC()
			err := unmount(folder)
			if err == nil {
				return
			}
			if time.Now().After(deadline) {
				t.Error(err)
				return
			}
		}
	})
	t.Run("cache", func(t *testing.T) {
		options := bare(t, newRepository(t).address())
		options.Cache = filepath.Join(folder, "cache")
		_, err := Start(t.Context(), options)
		requireSentence(t, err, "the disk of "+options.Cache+" is full: free 200 MB there or set IDEMPOTENCY_CACHE_DIR")
		requireTidy(t, options.Cache)
	})
	t.Run("temporary folder", func(t *testing.T) {
		t.Setenv("TMPDIR", folder)
		_, err := Start(t.Context(), Options{})
		if err == nil || !strings.Contains(err.Error(), "is full: free 200 MB there, or set TMPDIR") {
			t.Errorf("got %v", err)
		}
	})
	for _, pattern := range []string{"pglocal-[0-9]*", "pglocal-data*", "embedded*"} {
		if left, _ := filepath.Glob(filepath.Join(folder, pattern)); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	}
}

func TestExplainFile(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"full":          {&os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}, "is full"},
		"full, as text": {errors.New("unable to extract: write x: " + syscall.ENOSPC.Error()), "is full"},
		"quota":         {&os.PathError{Op: "write", Path: "x", Err: syscall.EDQUOT}, "is full"},
		"forbidden":     {&os.PathError{Op: "mkdir", Path: "/c", Err: syscall.EACCES}, "folder /c cannot be written (mkdir /c: permission denied): set IDEMPOTENCY_CACHE_DIR"},
		"read-only":     {&os.PathError{Op: "mkdir", Path: "/c", Err: syscall.EROFS}, "cannot be written"},
		"another":       {errors.New("something else"), "something else"},
		"not a file's":  {&repositoryError{syscall.EACCES}, "permission denied"},
	} {
		if got := explainFile("/c", test.err).Error(); !strings.Contains(got, test.want) || name == "not a file's" && got != test.want {
			t.Errorf("%s: %q does not say %q", name, got, test.want)
		}
	}
}

// Run as the account that root gives its servers to, or as whoever runs the tests.
func TestCacheWithoutPermission(t *testing.T) {
	folder := makePublicFolder(t)
	if err := os.Chmod(folder, 0o555); err != nil {
		t.Fatal(err)
	}
	owner, err := chooseAccount()
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(makePublicFolder(t), "test") // root's build folder is closed to others
	if err := placeFile(os.Args[0], binary); err != nil {
		t.Fatal(err)
	}
	command := exec.Command(binary)
	command.Dir = "/"
	command.Env = []string{cacheChild + "=http://127.0.0.1:1", cacheFolderChild + "=" + filepath.Join(folder, "cache")}
	command.SysProcAttr = &syscall.SysProcAttr{Credential: owner.credential}
	output, err := command.CombinedOutput()
	if want := "cannot be written (mkdir " + filepath.Join(folder, "cache") + ": permission denied): set IDEMPOTENCY_CACHE_DIR"; err == nil || !strings.Contains(string(output), want) {
		t.Errorf("got %v and %q, want it to say %q", err, output, want)
	}
}

func TestNoFolderForTheCache(t *testing.T) {
	t.Setenv("HOME", "")
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv(cacheVariable, "")
	options := bare(t, "http://127.0.0.1:1")
	options.Cache = ""
	_, err := Start(t.Context(), options)
	requireSentence(t, err, "set IDEMPOTENCY_CACHE_DIR to one")
}

func TestInterruptedDownload(t *testing.T) {
	repository := newRepository(t)
	ctx, cancel := context.WithCancel(t.Context())
	repository.instead(func(a *answers) {
		a.answer = func(w http.ResponseWriter, archive []byte, gone <-chan struct{}) {
			_, _ = w.Write(archive[:100])
			w.(http.Flusher).Flush()
			cancel()
			<-gone
		}
	})
	options := bare(t, repository.address())
	_, err := Start(ctx, options)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	requireTidy(t, options.Cache)
}

// requireSentence checks what every failure to get programs has in common.
func requireSentence(t *testing.T, err error, want string) {
	t.Helper()
	if !errors.Is(err, ErrNoPrograms) {
		t.Fatalf("got %v, want ErrNoPrograms", err)
	}
	message := err.Error()
	t.Log(message)
	for _, needed := range []string{want, "no PostgreSQL server programs were found, and ", "install PostgreSQL 12", "apt install postgresql"} {
		if !strings.Contains(message, needed) {
			t.Errorf("%q does not say %q", message, needed)
		}
	}
	if !strings.HasSuffix(message, "or give the DSN of a running server") || strings.Contains(message, "\n") {
		t.Errorf("%q is more than a sentence without its end", message)
	}
}

// requireTidy checks that a cache has nothing but programs and its lock.
func requireTidy(t *testing.T, folder string) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		t.Error(err)
	}
	for _, entry := range entries {
		if entry.Name() != "lock" && !strings.HasPrefix(entry.Name(), "postgresql-"+downloadedVersion) {
			t.Errorf("%s is left in the cache", entry.Name())
		}
	}
}

func requireWorks(t *testing.T, server *Server) {
	t.Helper()
	db, err := sql.Open("pgx", server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.PingContext(t.Context()); err != nil {
		t.Error(err)
	}
}

// temporaryFiles lists what a download may leave in the temporary folder.
func temporaryFiles(t *testing.T) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(os.TempDir(), "embedded_postgres_log*"))
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(found)
}

func closedPort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(loopback, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}
