//go:build unix

package pglocal

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
)

// childDeath names the way in which this test binary, started again as the child of a test, is to die.
const childDeath = "PGLOCAL_TEST_CHILD_DEATH"

func TestMain(m *testing.M) {
	if death := os.Getenv(childDeath); death != "" {
		child(death)
	}
	if repository := os.Getenv(cacheChild); repository != "" {
		downloadAsChild(repository)
	}
	os.Exit(m.Run())
}

// child starts a server, tells its parent, and dies.
func child(death string) {
	server, err := Start(context.Background(), Options{})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(server.port, server.folder, server.data)
	switch death {
	case "exit":
		os.Exit(0)
	case "panic":
		panic("as ordered")
	case "collected":
		server = nil // nobody refers to it, and it must stay nevertheless
		for range 3 {
			runtime.GC() // finalizers run after one, what they held goes with the next
			time.Sleep(10 * time.Millisecond)
		}
		fmt.Println("collected")
	}
	select {} // until a signal comes
}

func TestServerEndsWithItsProcess(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		death string
		kill  func(child *os.Process) error
	}{
		"exit":      {death: "exit"},
		"panic":     {death: "panic"},
		"interrupt": {death: "signal", kill: func(child *os.Process) error { return child.Signal(os.Interrupt) }},
		"SIGKILL":   {death: "signal", kill: func(child *os.Process) error { return child.Kill() }},
		"an interrupt of the whole group, as from a terminal": {death: "signal", kill: func(child *os.Process) error {
			return syscall.Kill(-child.Pid, syscall.SIGINT)
		}},
		"SIGKILL of the whole group": {death: "signal", kill: func(child *os.Process) error {
			return syscall.Kill(-child.Pid, syscall.SIGKILL)
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			child := startChild(t, test.death)
			if test.kill != nil {
				child.requireAlive(t)
				if err := test.kill(child.command.Process); err != nil {
					t.Fatal(err)
				}
			}
			_ = child.command.Wait() // an error in most cases
			requireGone(t, child.port, child.folders)
		})
	}
}

func TestServerOutlivesItsReferences(t *testing.T) {
	t.Parallel()
	child := startChild(t, "collected")
	if line := child.line(t); line != "collected" {
		t.Fatalf("got %q from the child", line)
	}
	child.requireAlive(t)
	if err := child.command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.command.Wait()
	requireGone(t, child.port, child.folders)
}

// runningChild is a child with its server.
type runningChild struct {
	command *exec.Cmd
	output  *bufio.Scanner
	port    int
	folders []string
}

func startChild(t *testing.T, death string) *runningChild {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), childDeath+"="+death)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a group that can be signalled without us
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = command.Process.Kill() })
	child := &runningChild{command: command, output: bufio.NewScanner(output)}
	said := strings.Split(child.line(t), " ")
	if child.port, err = strconv.Atoi(said[0]); err != nil || len(said) != 3 {
		t.Fatalf("the child said %q", said)
	}
	child.folders = said[1:]
	return child
}

func (c *runningChild) line(t *testing.T) string {
	t.Helper()
	if !c.output.Scan() {
		t.Fatal("the child said nothing")
	}
	return c.output.Text()
}

func (c *runningChild) requireAlive(t *testing.T) {
	t.Helper()
	if !isListening(c.port) {
		t.Fatal("the server isn't up")
	}
}

func TestStop(t *testing.T) {
	t.Parallel()
	server := startServer(t, Options{Settings: map[string]string{"fsync": "on", "work_mem": "5MB"}})
	db, err := sql.Open("pgx", server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var fsync, workMem, encoding string
	err = db.QueryRowContext(t.Context(), `SELECT current_setting('fsync'), current_setting('work_mem'), current_setting('server_encoding')`).
		Scan(&fsync, &workMem, &encoding)
	if err != nil || fsync != "on" || workMem != "5MB" || encoding != "UTF8" {
		t.Errorf("got fsync %s, work_mem %s, encoding %s, %v", fsync, workMem, encoding, err)
	}
	// An open transaction doesn't keep the server.
	if _, err := db.BeginTx(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for range 2 {
		if err := server.Stop(); err != nil {
			t.Errorf("Stop: %v", err)
		}
	}
	// The watchdog kills a server that doesn't end by itself after ten seconds, and its shared memory is left.
	if elapsed := time.Since(began); elapsed > 9*time.Second {
		t.Errorf("the server took %v to end: it was killed", elapsed)
	}
	// Stop returns when everything is gone, so there is nothing to wait for.
	for _, folder := range []string{server.folder, server.data} {
		if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("folder %s is still there", folder)
		}
	}
	if isListening(server.port) {
		t.Errorf("port %d still answers", server.port)
	}
}

// Without a password any local user could be superuser, and run programs as the server's account.
func TestNobodyElseMayConnect(t *testing.T) {
	t.Parallel()
	server, other := startServer(t, Options{}), startServer(t, Options{})
	if server.password == other.password || len(server.password) < 20 {
		t.Errorf("the passwords are %q and %q", server.password, other.password)
	}
	right, err := url.Parse(server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	for name, user := range map[string]*url.Userinfo{
		"no password":    url.User(superuser),
		"a wrong one":    url.UserPassword(superuser, other.password),
		"another's name": url.UserPassword("somebody", server.password),
	} {
		wrong := *right
		wrong.User = user
		db, err := sql.Open("pgx", wrong.String())
		if err != nil {
			t.Fatal(err)
		}
		if err := db.PingContext(t.Context()); err == nil || !strings.Contains(err.Error(), "28P01") {
			t.Errorf("%s: got %v, want a refusal", name, err)
		}
		_ = db.Close()
	}
	db, err := sql.Open("pgx", server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var rules string
	var quick bool // but for versions that cannot read a longer password file
	err = db.QueryRowContext(t.Context(), `
		SELECT (SELECT string_agg(DISTINCT auth_method, ' ') FROM pg_hba_file_rules), current_setting('server_version_num')::int < 140000
			OR (SELECT rolpassword LIKE 'SCRAM-SHA-256$1000:%' FROM pg_authid WHERE rolname = current_user)`).Scan(&rules, &quick)
	if err != nil || rules != "scram-sha-256" || !quick {
		t.Errorf("rules %q, few iterations is %t, %v", rules, quick, err)
	}
	if left, _ := filepath.Glob(filepath.Join(server.folder, "password*")); len(left) > 0 {
		t.Errorf("the password is left in %q", left)
	}
}

// Programs of before version 14 cannot read a longer password file.
func TestPasswordFileOfOldPrograms(t *testing.T) {
	t.Parallel()
	for major, want := range map[float64]bool{12.22: true, 13: true, 14: false, 18.3: false} {
		got, err := passwordVerifier("secret", major)
		if err != nil || (got == "secret") != want || want && len(got) > 98 {
			t.Errorf("%v: got %q, %v", major, got, err)
		}
	}
}

func TestFilesInMemory(t *testing.T) {
	memory := memoryFolder()
	if memory == "" {
		t.Skip("this machine has no room in memory, or sets TMPDIR")
	}
	if server := startServer(t, Options{}); !strings.HasPrefix(server.data, memory) {
		t.Errorf("the files are in %s", server.data)
	}
	synced := startServer(t, Options{Settings: map[string]string{"fsync": "on"}})
	if !strings.HasPrefix(synced.data, synced.folder) {
		t.Errorf("the files of a server that syncs are in %s", synced.data)
	}
	t.Setenv("TMPDIR", makePublicFolder(t))
	if memory := memoryFolder(); memory != "" {
		t.Errorf("TMPDIR is set, and the files go to %s", memory)
	}
}

func TestProgramsRunAsAnotherUserForRoot(t *testing.T) {
	t.Parallel()
	server := startServer(t, Options{})
	info, err := os.Stat(filepath.Join(server.data, "base"))
	if err != nil {
		t.Fatal(err)
	}
	owner := info.Sys().(*syscall.Stat_t).Uid
	if caller := os.Geteuid(); caller == 0 && owner == 0 || caller != 0 && int(owner) != caller {
		t.Errorf("the files belong to user %d, and the caller is %d", owner, caller)
	}
}

func TestFolderThatTheAccountCannotEnter(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives its server to another user")
	}
	home := filepath.Join(t.TempDir(), "root", "tmp") // as TMPDIR in root's home
	if err := os.MkdirAll(home, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(home), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", home)
	server := startServer(t, Options{})
	if strings.HasPrefix(server.folder, home) {
		t.Errorf("the server's folder is %s", server.folder)
	}
}

func TestLongTemporaryFolder(t *testing.T) {
	long := filepath.Join(makePublicFolder(t), "with spaces, 'quotes' and $HOME", strings.Repeat("long", 40))
	if err := os.MkdirAll(long, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", long)
	server := startServer(t, Options{})
	if !strings.HasPrefix(server.folder, long) {
		t.Errorf("the server's folder is %s", server.folder)
	}
	if err := server.Stop(); err != nil {
		t.Error(err)
	}
}

func TestPortThatIsTaken(t *testing.T) {
	taken, err := net.Listen("tcp", net.JoinHostPort(loopback, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	original := choosePort
	defer func() { choosePort = original }()
	asked := 0
	choosePort = func() (int, error) {
		if asked++; asked == 1 {
			return taken.Addr().(*net.TCPAddr).Port, nil
		}
		return original()
	}
	startServer(t, Options{})
	if asked != 2 {
		t.Errorf("%d ports were tried, want 2", asked)
	}
}

func TestStartFailures(t *testing.T) {
	t.Parallel()
	real := installed(t).folder
	programs := func(t *testing.T, initdb, postgres string) string {
		folder := makePublicFolder(t)
		script(t, filepath.Join(folder, "initdb"), initdb)
		script(t, filepath.Join(folder, "postgres"), postgres)
		return folder
	}
	genuine := `exec "` + filepath.Join(real, "postgres") + `" "$@"`
	tests := map[string]struct {
		options func(t *testing.T) Options
		want    string
	}{
		"programs that are not there": {
			options: func(t *testing.T) Options { return Options{Programs: makePublicFolder(t)} },
			want:    "does not have both postgres and initdb",
		},
		"programs of another machine": {
			options: func(t *testing.T) Options {
				return Options{Programs: programs(t, "exit 0", "echo cannot execute binary file >&2; exit 126")}
			},
			want: "do not run (exit status 126: cannot execute binary file)",
		},
		"initdb that fails": {
			options: func(t *testing.T) Options {
				return Options{Programs: programs(t, "echo something is amiss >&2; exit 1", genuine)}
			},
			want: "something is amiss",
		},
		"a disk that is full": {
			options: func(t *testing.T) Options {
				return Options{Programs: programs(t, "echo 'could not write file: No space left on device' >&2; exit 1", genuine)}
			},
			want: "is full: free 200 MB there, or set TMPDIR",
		},
		"a version that is too old": {
			options: func(t *testing.T) Options {
				return Options{Programs: programs(t, "exit 0", "echo 'postgres (PostgreSQL) 9.6.24'")}
			},
			want: "version 9.6.24, which is too old",
		},
		"a setting that the server refuses": {
			options: func(*testing.T) Options { return Options{Settings: map[string]string{"max_connections": "lots"}} },
			want:    `invalid value for parameter "max_connections"`,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, err := Start(t.Context(), test.options(t))
			if err == nil {
				_ = server.Stop()
				t.Fatal("no error")
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %q, want it to say %q", err, test.want)
			}
		})
	}
}

func TestStartGivesUpWithItsContext(t *testing.T) {
	folder := makePublicFolder(t)
	t.Setenv("TMPDIR", folder)
	running := filepath.Join(folder, "running")
	script(t, filepath.Join(folder, "initdb"), "touch '"+running+"'; sleep 600") // the shell's child must go too
	script(t, filepath.Join(folder, "postgres"), "echo 'postgres (PostgreSQL) 16.1'")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(running); err == nil {
				cancel()
			}
			time.Sleep(2 * time.Millisecond)
		}
	}()
	if _, err := Start(ctx, Options{Programs: folder}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
	if _, err := os.Stat(running); err != nil {
		t.Error("it was not initdb that was given up")
	}
	left, err := filepath.Glob(filepath.Join(folder, "pglocal-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

// installed are the machine's own programs.
func installed(t *testing.T) programs {
	t.Helper()
	owner, err := chooseAccount()
	if err != nil {
		t.Fatal(err)
	}
	found, err := findPrograms(t.Context(), usualFolders, owner.askVersion)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func makePublicFolder(t *testing.T) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "pglocal-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	if err := os.Chmod(folder, 0o777); err != nil {
		t.Fatal(err)
	}
	return folder
}

func startServer(t *testing.T, options Options) *Server {
	t.Helper()
	began := time.Now()
	server, err := Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("ready after %v", time.Since(began))
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	return server
}

// requireGone waits, with a deadline, for the watchdog of a dead process.
func requireGone(t *testing.T, port int, folders []string) {
	t.Helper()
	isThere := func(folder string) bool {
		_, err := os.Stat(folder)
		return !errors.Is(err, os.ErrNotExist)
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		listening := isListening(port)
		if !slices.ContainsFunc(folders, isThere) && !listening {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still there: one of %q, listening %t", folders, listening)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func isListening(port int) bool {
	connection, err := net.DialTimeout("tcp", net.JoinHostPort(loopback, strconv.Itoa(port)), time.Second)
	if err != nil {
		return false
	}
	_ = connection.Close()
	return true
}
