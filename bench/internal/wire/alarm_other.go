//go:build !linux

package wire

import "time"

// alarm is Go's own timer, which is precise enough elsewhere.
type alarm struct{}

func newAlarm() *alarm { return &alarm{} }

func (*alarm) wait(d time.Duration) {
	if d > 0 {
		time.Sleep(d)
	}
}

func (*alarm) close() {}
