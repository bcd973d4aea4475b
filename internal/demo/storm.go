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
	maxAttempts    = 10
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
	settled []atomic.Int32 // copies that have their final answer, by event
}

func newStorm(url string, journal *journal, events []*event, seed uint64) *storm {
	s := &storm{
		url: url, journal: journal, events: events, seed: seed,
		began: time.Now(), settled: make([]atomic.Int32, len(events)),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: 30 * time.Second},
	}
	for _, e := range events {
		s.planned += e.scenario.copies()
	}
	return s
}

// run returns when every copy has its final answer, or its sender has given up.
func (s *storm) run(ctx context.Context) (time.Duration, error) {
	defer s.client.CloseIdleConnections()
	s.began = time.Now()
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

// deliver sends an event's waves.
func (s *storm) deliver(ctx context.Context, index int) {
	var copies sync.WaitGroup
	defer copies.Wait()
	e, number := s.events[index], 0
	for _, w := range e.scenario.waves {
		if w.settled {
			copies.Wait()
		}
		if pause(ctx, w.pause) != nil {
			return
		}
		for i := range w.copies + w.changed {
			number++
			c := &parcel{event: e, number: number, lost: w.lost, changed: i >= w.copies, body: e.body}
			if c.changed {
				c.body = e.changedBody()
			}
			copies.Go(func() {
				s.send(ctx, c)
				s.settled[index].Add(1)
			})
		}
	}
}

// parcel is one copy of an event.
type parcel struct {
	event   *event
	number  int
	body    []byte
	changed bool
	lost    bool
}

// send delivers a copy until its answer is final: after a 5xx, or none, a sender comes back.
func (s *storm) send(ctx context.Context, c *parcel) {
	random := randomFor(s.seed, fmt.Sprint(c.event.id, c.number))
	backoff := firstBackoff
	for attempt := 1; attempt <= maxAttempts; attempt++ {
		d := &delivery{number: s.journal.next(), copy: c.number, attempt: attempt, changed: c.changed, lost: c.lost && attempt == 1}
		_ = s.attempt(ctx, c, d) // without an answer the status stays 0
		if ctx.Err() != nil {
			return
		}
		s.journal.add(c.event.key(), d)
		if d.final() || pause(ctx, max(d.delay, jittered(random, backoff))) != nil {
			return
		}
		backoff = min(2*backoff, longestBackoff)
	}
}

func jittered(random *rand.Rand, d time.Duration) time.Duration {
	return d/2 + time.Duration(random.Int64N(int64(d)))
}

// attempt makes one request.
func (s *storm) attempt(ctx context.Context, c *parcel, d *delivery) error {
	url := s.url + "/webhooks/" + c.event.sender.name
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(c.body))
	if err != nil {
		return err
	}
	request.Header = c.event.httpHeader()
	request.Header.Set(numberHeader, strconv.Itoa(d.number))
	start := time.Now()
	d.started = start.Sub(s.began)
	defer func() { d.took = time.Since(start) }()
	response, err := s.client.Do(request)
	if err != nil {
		return err
	}
	return d.read(response)
}

// read takes the answer: everything of it that the application chose.
func (d *delivery) read(response *http.Response) error {
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
	d.status, d.answer = response.StatusCode, answer.Bytes()
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil {
		d.delay = time.Duration(seconds) * time.Second
	}
	return nil
}
