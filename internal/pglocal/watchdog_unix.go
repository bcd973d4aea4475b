//go:build unix

package pglocal

import (
	"io"
	"os"
	"os/exec"
	"syscall"
)

// watchdogScript waits for the end of its standard input, a pipe whose other end only our process holds, then ends
// everything in its process group and removes the folders.
//
// It signals the group, never a process id: the server may have died before, and its id may be another process's now,
// while the group is ours for as long as the watchdog leads it. The server takes SIGQUIT as "stop at once" and gives its
// shared memory back, which SIGKILL would not, so SIGKILL is for what is left after the folders are gone. The removal is
// repeated because an initdb that is about to end may still be writing.
const watchdogScript = `
trap '' HUP INT QUIT TERM
while read -r _; do :; done
kill -QUIT 0
tries=0
while [ -e "$2/postmaster.pid" ] && [ $tries -lt 500 ]; do sleep 0.02; tries=$((tries + 1)); done
until rm -rf "$2" "$1" || [ $tries -ge 1000 ]; do sleep 0.02; tries=$((tries + 1)); done
kill -KILL 0
`

// watchdog ends the server and removes its folders when release is called or the process that started it is gone.
//
// It is a shell, not this program again: a test binary started anew would run its TestMain, which isn't ours.
type watchdog struct {
	command *exec.Cmd
	pipe    io.Closer // close-on-exec, as all of package os: no other child keeps it open
}

// startWatchdog starts a watchdog in a process group of its own, so that an interrupt from the terminal passes it by.
// Like every child here it inherits neither standard output nor standard error: "go test" waits until they are closed.
func startWatchdog(folder, data string) (*watchdog, error) {
	command := exec.Command("/bin/sh", "-c", watchdogScript, "pglocal-watchdog", folder, data)
	command.Dir = "/"
	// Whoever has set an odd PATH has rm nevertheless, and everything would be left behind without it.
	command.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/bin:/bin")
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	pipe, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, err
	}
	return &watchdog{command: command, pipe: pipe}, nil
}

// attributes place a child in the watchdog's group, under an account.
func (w *watchdog) attributes(a account) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pgid: w.command.Process.Pid, Credential: a.credential}
}

// release has the watchdog do its work, and returns when it has.
func (w *watchdog) release() {
	_ = w.pipe.Close()
	_ = w.command.Wait() // it always dies of its own SIGKILL
}
