package gormtest

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Option changes how [Hammer], [CrashPoints], [Record] and [RequireSingleConn] go about it. Each ignores those that don't
// concern it. The last one wins. A value that makes no sense fails the test before any SQL.
type Option func(*settings)

type settings struct {
	events      int
	deliveries  int
	concurrency int
	timeout     time.Duration
	tables      []string
	hosts       []string
	headers     []string
}

// WithEvents is how many events [Hammer] delivers, at least 2. 20 by default.
func WithEvents(n int) Option { return func(s *settings) { s.events = n } }

// WithDeliveries is how often [Hammer] delivers each event during the storm, at least 2. 10 by default.
func WithDeliveries(n int) Option { return func(s *settings) { s.deliveries = n } }

// WithConcurrency is how many deliveries [Hammer] has under way at a time, at least 2. 50 by default. They share up to 20
// connections.
func WithConcurrency(n int) Option { return func(s *settings) { s.concurrency = n } }

// WithTimeout is how long one delivery may take, before its context is cancelled and the test fails. 10 seconds by default.
func WithTimeout(d time.Duration) Option { return func(s *settings) { s.timeout = d } }

// WithExempt names tables, as "table" or "schema.table", that are written at every delivery on purpose, such as a log of what
// was received. Nothing is said about changes in them.
func WithExempt(tables ...string) Option { return func(s *settings) { s.tables = tables } }

// WithExemptHosts names hosts that a handler calls on purpose while it holds its key. [Recorder.Calls] lists those calls too.
func WithExemptHosts(hosts ...string) Option { return func(s *settings) { s.hosts = hosts } }

// WithExemptHeaders names headers of the answer that differ between deliveries on purpose, such as an X-Request-Id that
// middleware sets. They are not compared.
func WithExemptHeaders(names ...string) Option { return func(s *settings) { s.headers = names } }

func collect(opts []Option) (settings, error) {
	s := settings{events: 20, deliveries: 10, concurrency: 50, timeout: 10 * time.Second}
	for _, opt := range opts {
		if opt != nil {
			opt(&s)
		}
	}
	for name, n := range map[string]int{"WithEvents": s.events, "WithDeliveries": s.deliveries, "WithConcurrency": s.concurrency} {
		if n < 2 {
			return s, fmt.Errorf("%s(%d): fewer than 2 show nothing", name, n)
		}
	}
	if slices.Contains(s.headers, "") {
		return s, errors.New("WithExemptHeaders: a header has no name")
	}
	if s.timeout <= 0 {
		return s, fmt.Errorf("WithTimeout(%v): want more than 0", s.timeout)
	}
	return s, nil
}
