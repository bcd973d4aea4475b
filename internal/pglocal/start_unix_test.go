//go:build unix

package pglocal

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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
	os.Exit(m.Run())
}

// child starts a server, tells its parent, and dies.
func child(death string) {
	server, err := Start(context.Background(), Options{})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(server.port, server.folder)
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
			requireGone(t, child.port, child.folder)
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
	requireGone(t, child.port, child.folder)
}

// runningChild is a child with its server.
type runningChild struct {
	command *exec.Cmd
	output  *bufio.Scanner
	port    int
	folder  string
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
	port, folder, found := strings.Cut(child.line(t), " ")
	if child.port, err = strconv.Atoi(port); err != nil || !found {
		t.Fatalf("the child said %q %q", port, folder)
	}
	child.folder = folder
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
	if _, err := os.Stat(server.folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("folder %s is still there", server.folder)
	}
	if isListening(server.port) {
		t.Errorf("port %d still answers", server.port)
	}
}

func TestProgramsRunAsAnotherUserForRoot(t *testing.T) {
	t.Parallel()
	server := startServer(t, Options{})
	info, err := os.Stat(filepath.Join(server.folder, "data"))
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
	real, err := findPrograms(t.Context(), usualFolders, hasPrograms)
	if err != nil {
		t.Fatal(err)
	}
	programs := func(t *testing.T, initdb string) string {
		folder := makePublicFolder(t)
		script(t, filepath.Join(folder, "initdb"), initdb)
		script(t, filepath.Join(folder, "postgres"), `exec "`+filepath.Join(real, "postgres")+`" "$@"`)
		return folder
	}
	tests := map[string]struct {
		options func(t *testing.T) Options
		want    string
	}{
		"a program that is not there": {
			options: func(t *testing.T) Options { return Options{Programs: makePublicFolder(t)} },
			want:    "initdb: no such file",
		},
		"initdb that fails": {
			options: func(t *testing.T) Options { return Options{Programs: programs(t, "echo the disk is full >&2; exit 1")} },
			want:    "the disk is full",
		},
		"a version that is too old": {
			options: func(t *testing.T) Options {
				return Options{Programs: programs(t, "mkdir data && echo 9.6 >data/PG_VERSION")}
			},
			want: "version 9.6, and 12 or newer",
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
	script(t, filepath.Join(folder, "initdb"), "sleep 600") // the shell's child must go too
	script(t, filepath.Join(folder, "postgres"), "exit 0")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Start(ctx, Options{Programs: folder}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the context's error", err)
	}
	left, err := filepath.Glob(filepath.Join(folder, "pglocal-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
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
func requireGone(t *testing.T, port int, folder string) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		_, err := os.Stat(folder)
		listening := isListening(port)
		if errors.Is(err, os.ErrNotExist) && !listening {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still there: folder %s (%v), listening %t", folder, err, listening)
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
