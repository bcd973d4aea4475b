package demo

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"
)

// trouble is what befalls the first run of an event's handler, after it has written its rows.
type trouble int

const (
	noTrouble trouble = iota
	fails             // it returns an error
	crashes           // it panics, and the sender's connection breaks
	dawdles           // it takes longer than duplicates wait
)

const (
	usualPause = 20 * time.Millisecond // what a handler's own work may take
	longPause  = 1500 * time.Millisecond
)

var errTrouble = errors.New("demo: the handler's first run fails")

// mishap is the trouble of one event.
type mishap struct {
	trouble trouble
	runs    atomic.Int32
}

// troubles says what befalls each event.
func troubles(events []*event) map[eventKey]*mishap {
	all := make(map[eventKey]*mishap, len(events))
	for _, e := range events {
		all[e.key()] = &mishap{trouble: e.scenario.trouble}
	}
	return all
}

// strike stands for what a real handler does besides writing, and for what goes wrong there. An event that the demo does
// not know, by a reader's own curl, has no mishap.
func (m *mishap) strike(ctx context.Context) error {
	if m == nil || m.runs.Add(1) > 1 {
		return pause(ctx, usualPause)
	}
	switch m.trouble {
	case fails:
		return errors.Join(pause(ctx, usualPause), errTrouble)
	case crashes:
		panic(http.ErrAbortHandler) // breaks the connection without an answer
	case dawdles:
		return pause(ctx, longPause)
	default:
		return pause(ctx, usualPause)
	}
}

func pause(ctx context.Context, duration time.Duration) error {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
