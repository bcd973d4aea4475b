//go:build unix

package pglocal

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	startTimeout = time.Minute
	portAttempts = 5
)

// running keeps started servers reachable. The pipe to the watchdog of a server that nobody refers to any more would be
// closed by the garbage collector, and the server stopped under its users.
var running sync.Map

// Start starts a server and returns when it accepts connections. It gives up after a minute, or when ctx ends; ctx has no
// say in how long the server runs. Where the programs must be downloaded first, that has five minutes of its own.
func Start(ctx context.Context, options Options) (*Server, error) {
	owner, err := chooseAccount()
	if err != nil {
		return nil, err
	}
	chosen, err := choosePrograms(ctx, options, owner)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	server, err := start(ctx, chosen, options, owner)
	if err != nil {
		return nil, fmt.Errorf("start PostgreSQL from %s: %w", chosen.folder, err)
	}
	return server, nil
}

func start(ctx context.Context, chosen programs, options Options, owner account) (_ *Server, err error) {
	folder, data, err := makeFolders(options, owner)
	if err != nil {
		return nil, err
	}
	guard, err := startWatchdog(folder, data) // before anything is in the folders, so that nothing can be left behind
	if err != nil {
		return nil, errors.Join(err, os.Remove(data), os.Remove(folder))
	}
	launch := &launch{programs: chosen, options: options, owner: owner, folder: folder, data: data, guard: guard, password: newPassword()}
	defer func() {
		if err != nil {
			err = errors.Join(err, launch.end())
		}
	}()
	if err := launch.placePrograms(); err != nil {
		return nil, explainFull(folder, err)
	}
	if err := launch.initialize(ctx); err != nil {
		return nil, explainFull(data, err)
	}
	port, err := launch.serve(ctx)
	if err != nil {
		return nil, explainFull(data, err)
	}
	server := &Server{folder: folder, data: data, port: port, password: launch.password}
	server.stop = sync.OnceValue(func() error {
		running.Delete(server)
		return launch.end()
	})
	running.Store(server, nil)
	return server, nil
}

// makeFolders makes the server's folder and that of its files, which may be in memory. The programs are never there, since
// such file systems are often ones from which nothing may be run; nor is a server that is to sync its files.
func makeFolders(options Options, owner account) (folder, data string, err error) {
	parent, err := owner.temporary()
	if err != nil {
		return "", "", err
	}
	if folder, err = owner.makeFolder(parent, "pglocal-"); err != nil {
		return "", "", explainFull(parent, err)
	}
	filesParent := folder
	if memory := memoryFolder(); memory != "" && options.Settings["fsync"] != "on" && owner.canReach(memory) {
		filesParent = memory
	}
	if data, err = owner.makeFolder(filesParent, "pglocal-data-"); err != nil {
		return "", "", errors.Join(err, os.Remove(folder))
	}
	return folder, data, nil
}

// explainFull says what to do about a full disk.
func explainFull(folder string, err error) error {
	text := err.Error()
	switch {
	case strings.Contains(text, "could not create shared memory segment"):
		return err // which the system says to have no space for, too
	case isFull(text):
		return fmt.Errorf("the disk of %s is full: free 200 MB there, or set TMPDIR to a folder on another one", folder)
	default:
		return err
	}
}

// launch is a server on its way up.
type launch struct {
	programs programs
	options  Options
	owner    account
	folder   string
	data     string
	guard    *watchdog
	password string
	process  *os.Process // the postmaster, once it was started
}

// placePrograms brings downloaded programs to where the account can reach them.
func (l *launch) placePrograms() error {
	if l.programs.tree == "" || l.owner.canReach(l.programs.tree) {
		return nil
	}
	place := filepath.Join(l.folder, programsFolder)
	if err := placeTree(l.programs.tree, place); err != nil {
		return err
	}
	l.programs.folder = filepath.Join(place, "bin")
	return nil
}

// initialize creates the server's files.
func (l *launch) initialize(ctx context.Context) error {
	passwordFile, err := l.writePassword()
	if err != nil {
		return err
	}
	command := exec.CommandContext(ctx, filepath.Join(l.programs.folder, "initdb"),
		"--pgdata="+l.data, "--username="+superuser, "--auth=scram-sha-256", "--pwfile="+passwordFile,
		"--encoding=UTF8", "--locale=C", "--no-sync", "--wal-segsize=1")
	if err := l.start(command); err != nil {
		return err
	}
	if err := command.Wait(); err != nil {
		return l.failure(command, errors.Join(err, ctx.Err()))
	}
	return os.Remove(passwordFile)
}

// writePassword writes a file that the account alone can read.
func (l *launch) writePassword() (string, error) {
	verifier, err := passwordVerifier(l.password, l.programs.major)
	if err != nil {
		return "", err
	}
	path := filepath.Join(l.folder, "password")
	if err := os.WriteFile(path, []byte(verifier+"\n"), 0o600); err != nil {
		return "", err
	}
	return path, l.owner.give(path)
}

// serve starts the postmaster and returns its port. Between our choice of a free port and the postmaster's use of it
// somebody else may have taken it: then another one is tried.
func (l *launch) serve(ctx context.Context) (int, error) {
	for attempt := 1; ; attempt++ {
		port, err := choosePort()
		if err != nil {
			return 0, err
		}
		command := l.postmaster(port)
		if err := l.start(command); err != nil {
			return 0, err
		}
		l.process = command.Process
		err = l.await(ctx)
		if err == nil {
			return port, nil
		}
		if attempt == portAttempts || !strings.Contains(l.lastLines(command), "Address already in use") {
			return 0, l.failure(command, err)
		}
	}
}

// choosePort is a variable so that a test can choose one that is taken.
var choosePort = func() (int, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(loopback, "0"))
	if err != nil {
		return 0, err
	}
	return listener.Addr().(*net.TCPAddr).Port, listener.Close()
}

func (l *launch) postmaster(port int) *exec.Cmd {
	settings := map[string]string{
		"listen_addresses": loopback,
		// A socket's path may have about 100 bytes, and temporary folders have longer ones.
		"unix_socket_directories": "",
		"max_connections":         "200",
		"fsync":                   "off",
		"synchronous_commit":      "off",
		"full_page_writes":        "off",
		// Shared memory in files of the folder, not in /dev/shm, where it would outlive a killed server.
		"dynamic_shared_memory_type": "mmap",
	}
	for name, value := range l.options.Settings {
		settings[name] = value
	}
	arguments := []string{"-D", l.data, "-p", strconv.Itoa(port)}
	for name, value := range settings {
		arguments = append(arguments, "-c", name+"="+value)
	}
	return exec.Command(filepath.Join(l.programs.folder, "postgres"), arguments...)
}

// await returns when the postmaster accepts connections. It reads the file in which the postmaster says so, as pg_ctl
// does: a connection might reach another server that took the port.
func (l *launch) await(ctx context.Context) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if hasEnded(l.process) {
			return errors.New("it ended at once")
		}
		if l.isReady() {
			return nil
		}
	}
}

// isReady reads postmaster.pid: the process id is its first line, the state its eighth.
func (l *launch) isReady() bool {
	content, err := os.ReadFile(filepath.Join(l.data, "postmaster.pid"))
	if err != nil {
		return false
	}
	lines := strings.Split(string(content), "\n")
	return len(lines) >= 8 && lines[0] == strconv.Itoa(l.process.Pid) && strings.TrimSpace(lines[7]) == "ready"
}

// hasEnded asks without waiting. A goroutine in Wait would do too, but it would stay for as long as the server does, and
// users look for leaked goroutines in their tests.
func hasEnded(process *os.Process) bool {
	pid, err := syscall.Wait4(process.Pid, nil, syscall.WNOHANG, nil)
	return pid == process.Pid || errors.Is(err, syscall.ECHILD)
}

// end stops the server by the way that is also taken when our process dies.
func (l *launch) end() error {
	l.guard.release()
	if l.process != nil {
		_, _ = l.process.Wait() // reaps it, where that hasn't been done
	}
	for _, folder := range []string{l.data, l.folder} {
		if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("stop PostgreSQL: folder %s could not be removed", folder)
		}
	}
	return nil
}

// start starts a program under the account, in the watchdog's group, away from our standard output.
func (l *launch) start(command *exec.Cmd) error {
	output, err := os.Create(l.logFile(command))
	if err != nil {
		return err
	}
	defer output.Close()
	command.Dir = l.folder // initdb refuses to start where its user can't be
	command.Env = environment()
	command.Stdout, command.Stderr = output, output
	command.SysProcAttr = l.guard.attributes(l.owner)
	return command.Start()
}

// environment is ours without what steers PostgreSQL from outside. A zone that is set saves initdb a search for it.
func environment() []string {
	kept := []string{"LC_ALL=C", "TZ=UTC"}
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		switch {
		case strings.HasPrefix(name, "PG"), strings.HasPrefix(name, "LC_"), strings.HasPrefix(name, "LANG"), name == "TZ":
		default:
			kept = append(kept, variable)
		}
	}
	return kept
}

func (l *launch) logFile(command *exec.Cmd) string {
	return filepath.Join(l.folder, filepath.Base(command.Path)+".log")
}

// failure adds the last lines of what a program wrote to an error: its folder is about to go.
func (l *launch) failure(command *exec.Cmd, err error) error {
	return fmt.Errorf("%s: %w\n%s", filepath.Base(command.Path), err, l.lastLines(command))
}

func (l *launch) lastLines(command *exec.Cmd) string {
	const most = 12
	content, _ := os.ReadFile(l.logFile(command)) // without it there is nothing to add
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}
