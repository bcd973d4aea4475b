package wire

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// alarm waits to some microseconds. Go's own timers, on an idle process, are the network poller's, which on Linux waits
// for whole milliseconds: 0.25 ms would become 1.1.
type alarm struct {
	timer *os.File // nil: the kernel gives none
	fd    int
}

func newAlarm() *alarm {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return &alarm{}
	}
	return &alarm{timer: os.NewFile(uintptr(fd), "timer"), fd: fd}
}

func (a *alarm) wait(d time.Duration) {
	if d <= 0 {
		return
	}
	due := unix.ItimerSpec{Value: unix.NsecToTimespec(d.Nanoseconds())}
	if a.timer == nil || unix.TimerfdSettime(a.fd, 0, &due, nil) != nil {
		time.Sleep(d)
		return
	}
	var expirations [8]byte
	_, _ = a.timer.Read(expirations[:]) // a packet that comes early is no loss
}

func (a *alarm) close() {
	if a.timer != nil {
		_ = a.timer.Close()
	}
}
