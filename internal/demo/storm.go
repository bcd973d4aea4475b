package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// stagger is between the first deliveries of two events. Theirs overlap nevertheless.
	stagger = 35 * time.Millisecond

	// A sender waits longer after each failure, unless the answer says how long. Real ones wait minutes and hours.
	firstBackoff   = 100 * time.Millisecond
	longestBackoff = 2 * time.Second
	maxTries       = 10
)

// storm delivers the events, as their senders would and all at once.
type storm struct {
	url     string
	client  *http.Client
	journal *journal
	events  []*event
	seed    uint64
	planned int

	began   time.Time
	settled []atomic.Int32 // deliveries that have their final answer, by event
}

func newStorm(url string, journal *journal, events []*event, seed uint64) *storm {
	s := &storm{
		url: url, journal: journal, events: events, seed: seed,
		began: journal.begin(), settled: make([]atomic.Int32, len(events)),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: 30 * time.Second},
	}
	for _, e := range events {
		s.planned += e.scenario.deliveries()
	}
	return s
}

// run returns when every delivery has its final answer, or its sender has given up.
func (s *storm) run(ctx context.Context) (time.Duration, error) {
	defer s.client.CloseIdleConnections()
	var senders sync.WaitGroup
	for turn, index := range randomFor(s.seed, "order of events").Perm(len(s.events)) {
		senders.Go(func() {
			if pause(ctx, time.Duration(turn)*stagger) == nil {
				s.deliver(ctx, index)
			}
		})
	}
	senders.Wait()
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	return time.Since(s.began), nil
}

// deliver begins an event's deliveries, wave by wave.
func (s *storm) deliver(ctx context.Context, index int) {
	var deliveries sync.WaitGroup
	defer deliveries.Wait()
	e, number := s.events[index], 0
	for _, w := range e.scenario.waves {
		if w.settled {
			deliveries.Wait()
		}
		if pause(ctx, w.pause) != nil {
			return
		}
		for i := range w.deliveries + w.changed {
			number++
			d := &delivery{event: e, number: number, lost: w.lost, changed: i >= w.deliveries, body: e.body}
			if d.changed {
				d.body = e.changedBody()
			}
			deliveries.Go(func() {
				s.send(ctx, d)
				s.settled[index].Add(1)
			})
		}
	}
}

// delivery is one copy of an event that its sender wants delivered. It may take several requests.
type delivery struct {
	event   *event
	number  int
	body    []byte
	changed bool
	lost    bool
}

// send makes requests until one has a final answer: after a 5xx, or none, a sender comes back.
func (s *storm) send(ctx context.Context, d *delivery) {
	random := randomFor(s.seed, fmt.Sprint(d.event.id, d.number))
	backoff := firstBackoff
	for try := 1; try <= maxTries; try++ {
		r := &request{number: s.journal.next(), delivery: d.number, try: try, changed: d.changed, lost: d.lost && try == 1}
		_ = s.post(ctx, d, r) // without an answer the status stays 0
		if ctx.Err() != nil {
			return
		}
		s.journal.add(d.event.key(), r)
		if r.final() || pause(ctx, max(r.delay, jittered(random, backoff))) != nil {
			return
		}
		backoff = min(2*backoff, longestBackoff)
	}
}

func jittered(random *rand.Rand, d time.Duration) time.Duration {
	return d/2 + time.Duration(random.Int64N(int64(d)))
}

// post makes a request.
func (s *storm) post(ctx context.Context, d *delivery, r *request) error {
	url := s.url + "/webhooks/" + d.event.sender.name
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(d.body))
	if err != nil {
		return err
	}
	post.Header = d.event.httpHeader()
	post.Header.Set(numberHeader, strconv.Itoa(r.number))
	start := time.Now()
	r.sent = start.Sub(s.began)
	defer func() { r.took = time.Since(start) }()
	response, err := s.client.Do(post)
	if err != nil {
		return err
	}
	return r.read(response)
}

// read takes the answer: everything of it that the application chose.
func (r *request) read(response *http.Response) error {
	body, err := io.ReadAll(response.Body)
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return err
	}
	var answer bytes.Buffer
	fmt.Fprintln(&answer, response.StatusCode)
	response.Header.Del("Date")
	if err := response.Header.Write(&answer); err != nil {
		return err
	}
	answer.Write(body)
	r.status, r.answer = response.StatusCode, answer.Bytes()
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil {
		r.delay = time.Duration(seconds) * time.Second
	}
	return nil
}
