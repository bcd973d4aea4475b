package main

import (
	"context"
	"errors"
	"time"
)

// group is something to measure. It gives one or several groups of results, and those that it has when ctx ends.
type group struct {
	name    string
	about   string
	measure func(ctx context.Context, r *session) ([]Group, error)
}

// groups are in the order of what one wants to know first.
var groups = []group{
	{"delivery", "every arm on one connection, commits not waiting for the disk", measureDelivery},
	{"commit", "the chief arms with commits that wait for the disk", measureCommit},
	{"roundtrips", "round trips to the server, counted", measureRoundTrips},
	{"allocations", "allocations of a delivery", measureAllocations},
	{"network", "the chief arms across a network of 0, 0.5 and 2 ms", measureNetwork},
	{"connections", "throughput on 1 to 64 connections, beside pgbench", measureConnections},
	{"analysed", "the chief arms on tables that autovacuum has come by", measureAnalysed},
	{"answers", "answers of 0 B to 1 MB", measureAnswers},
	{"tables", "claims on tables of 0 and 1 million keys; with --large of 10 million", measureTables},
	{"storm", "other keys' throughput while one key is delivered over and over", measureStorm},
	{"hotkey", "64 deliveries of one key at once, from one process and from four", measureHotKey},
	{"sweeping", "claims while expired keys are swept, and a sweep's memory", measureSweeping},
	{"cycles", "three cycles of insert, sweep and vacuum: what a sweep reads and takes", measureCycles},
	{"hot", "share of HOT updates, answers of 40 B to 1,500 B", measureHOT},
}

// session is what a measurement has at hand.
type session struct {
	server   *server
	size     size
	progress progress
}

// size is how much is measured.
type size struct {
	name     string
	settings map[string]string // of the server, if it is the benchmark's own

	rounds, deliveries int           // of each arm in each round
	limit              time.Duration // of one comparison
	levels             []int         // connections
	perConnection      int           // deliveries of each in a round
	delays             []time.Duration
	keys               []int // in a table
	analysed           int   // keys in a table that has been analysed
	answers            []int // bytes
	window             time.Duration
	windows            int
	expired            int // keys to sweep beside claims
	month              int // keys of a retention cycle
	updates            int // deliveries of each answer's size
}

var full = size{
	name: "full", settings: durableSettings, rounds: 40, deliveries: 50, limit: 45 * time.Second,
	levels: []int{1, 4, 8, 16, 32, 64}, perConnection: 40,
	delays: []time.Duration{0, 500 * time.Microsecond, 2 * time.Millisecond},
	keys:   []int{0, 1_000_000}, analysed: 100_000, answers: []int{0, 200, 10_000, 1_000_000},
	window: 500 * time.Millisecond, windows: 10, expired: 1_000_000, month: 200_000, updates: 40_000,
}

// short is to see that everything works: its figures mean little, and its server is not durable.
var short = size{
	name: "short", settings: map[string]string{"max_connections": "320"}, rounds: leastRounds, deliveries: 6, limit: time.Second,
	levels: []int{1, 4}, perConnection: 5,
	delays: []time.Duration{0, 500 * time.Microsecond, 2 * time.Millisecond},
	keys:   []int{0, 2_000}, analysed: 1_000, answers: []int{0, 200, 10_000, 1_000_000},
	window: 50 * time.Millisecond, windows: leastRounds, expired: 2_000, month: 3_000, updates: 300,
}

func (s size) large() size {
	s.name += ", large"
	s.keys = append(s.keys, 10*s.keys[len(s.keys)-1])
	return s
}

// on makes a database, opens it, hands it over, and drops it.
func (r *session) on(ctx context.Context, commit string, work func(*database) error) (err error) {
	d, err := r.server.create(ctx, commit)
	if err != nil {
		return endedBy(ctx, err)
	}
	defer func() { err = errors.Join(err, d.drop()) }()
	return work(d)
}

// with is on, with handles of a number of connections.
func (r *session) with(ctx context.Context, commit string, connections int, work func(*database, *handles) error) error {
	return r.on(ctx, commit, func(d *database) error {
		h, err := d.open(ctx, connections, nil)
		if err != nil {
			return endedBy(ctx, err)
		}
		defer h.close()
		return work(d, h)
	})
}

// comparison is one of the run's size.
func (r *session) comparison(workers int, arms ...arm) comparison {
	return comparison{arms: arms, workers: workers, deliveries: r.size.deliveries, rounds: r.size.rounds, limit: r.size.limit}
}
