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
	oldestMajor  = 12
)

// running keeps started servers reachable. The pipe to the watchdog of a server that nobody refers to any more would be
// closed by the garbage collector, and the server stopped under its users.
var running sync.Map

// Start starts a server and returns when it accepts connections. It gives up after a minute, or when ctx ends; ctx has no
// say in how long the server runs.
func Start(ctx context.Context, options Options) (*Server, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	owner, err := chooseAccount()
	if err != nil {
		return nil, err
	}
	if options.Programs == "" {
		if options.Programs, err = findPrograms(ctx, usualFolders, owner.canReach); err != nil {
			return nil, err
		}
	}
	server, err := start(ctx, options, owner)
	if err != nil {
		return nil, fmt.Errorf("start PostgreSQL from %s: %w", options.Programs, err)
	}
	return server, nil
}

func start(ctx context.Context, options Options, owner account) (_ *Server, err error) {
	folder, err := owner.makeFolder()
	if err != nil {
		return nil, err
	}
	guard, err := startWatchdog(folder) // before anything else is in the folder, so that nothing can be left behind
	if err != nil {
		return nil, errors.Join(err, os.Remove(folder))
	}
	launch := &launch{options: options, owner: owner, folder: folder, guard: guard}
	defer func() {
		if err != nil {
			err = errors.Join(err, launch.end())
		}
	}()
	if err := launch.initialize(ctx); err != nil {
		return nil, err
	}
	port, err := launch.serve(ctx)
	if err != nil {
		return nil, err
	}
	server := &Server{folder: folder, port: port}
	server.stop = sync.OnceValue(func() error {
		running.Delete(server)
		return launch.end()
	})
	running.Store(server, nil)
	return server, nil
}

// launch is a server on its way up.
type launch struct {
	options Options
	owner   account
	folder  string
	guard   *watchdog
	process *os.Process // the postmaster, once it was started
}

func (l *launch) data() string { return filepath.Join(l.folder, "data") }

// initialize creates the server's files.
func (l *launch) initialize(ctx context.Context) error {
	command := exec.CommandContext(ctx, filepath.Join(l.options.Programs, "initdb"),
		"--pgdata="+l.data(), "--username="+superuser, "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
	if err := l.start(command); err != nil {
		return err
	}
	if err := command.Wait(); err != nil {
		return l.failure(command, errors.Join(err, ctx.Err()))
	}
	return l.checkVersion()
}

func (l *launch) checkVersion() error {
	content, err := os.ReadFile(filepath.Join(l.data(), "PG_VERSION"))
	if err != nil {
		return err
	}
	found := strings.TrimSpace(string(content))
	if version(found) < oldestMajor {
		return fmt.Errorf("it is version %s, and %d or newer is needed", found, oldestMajor)
	}
	return nil
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
	arguments := []string{"-D", l.data(), "-p", strconv.Itoa(port)}
	for name, value := range settings {
		arguments = append(arguments, "-c", name+"="+value)
	}
	return exec.Command(filepath.Join(l.options.Programs, "postgres"), arguments...)
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
	content, err := os.ReadFile(filepath.Join(l.data(), "postmaster.pid"))
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
	if _, err := os.Stat(l.folder); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("stop PostgreSQL: folder %s could not be removed", l.folder)
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
