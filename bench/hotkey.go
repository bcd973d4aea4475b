package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
)

const (
	hotDeliveries = 64
	hotPool       = 8                    // connections of each process
	hotWork       = 5 * time.Millisecond // which the handler takes beside its write
)

// measureHotKey delivers one event many times at once, from one process and from four, and waits until each delivery has the
// answer. The processes are others than this one in both cases.
func measureHotKey(ctx context.Context, r *session) ([]Group, error) {
	g := Group{Name: "hotkey", Unit: "ms", Axis: "processes",
		Title: fmt.Sprintf("%d deliveries of one key at once, until all are answered", hotDeliveries)}
	err := r.on(ctx, fast, func(d *database) (err error) {
		senders, err := startSenders(ctx, d.dsn(nil))
		if err != nil {
			return endedBy(ctx, err)
		}
		defer func() { err = errors.Join(err, senders.stop()) }()
		took := make(map[hotCase][]float64)
		for round := -1; round < r.size.windows; round++ { // the first one warms up
			for _, c := range hotCases {
				ms, err := senders.deliver(ctx, c)
				if err != nil {
					return endedBy(ctx, err)
				}
				if round >= 0 {
					took[c] = append(took[c], ms)
				}
			}
			r.progress.step()
		}
		for _, c := range hotCases {
			g.add(c.store, c.setting(), float64(c.processes), took[c])
		}
		return d.eachOnce(ctx)
	})
	return []Group{g}, err
}

// hotCase is a store and from how many processes it is used.
type hotCase struct {
	store     string
	processes int
}

var hotCases = []hotCase{
	{nameOurs, 1}, {nameOurs, 4}, {nameOursPipelined, 1}, {nameOursPipelined, 4},
	{namePageGORM, 1}, {namePageGORM, 4}, {nameLease, 1}, {nameLease, 4},
}

func (c hotCase) setting() string {
	if c.processes == 1 {
		return "1 process"
	}
	return fmt.Sprintf("%d processes", c.processes)
}

// errand is what a sender is told to do: deliver an event so many times at once.
type errand struct {
	Store      string `json:"store"`
	Event      string `json:"event"`
	Deliveries int    `json:"deliveries"`
}

// sender is another process of this program.
type sender struct {
	command *exec.Cmd
	tell    *json.Encoder
	hear    *json.Decoder
	close   func() error
}

type senders []*sender

// senderVariable tells a process that it is a sender, and on which database.
const senderVariable = "IDEMPOTENCY_BENCH_SENDER_DSN"

const hotSenders = 4

func startSenders(ctx context.Context, dsn string) (_ senders, err error) {
	var started senders
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start a process: %w", err), started.stop())
		}
	}()
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	for range hotSenders {
		command := exec.CommandContext(ctx, program) //nolint:gosec // it is this one
		command.Env = append(os.Environ(), senderVariable+"="+dsn)
		command.Stderr = os.Stderr
		in, err := command.StdinPipe()
		if err != nil {
			return nil, err
		}
		out, err := command.StdoutPipe()
		if err != nil {
			return nil, err
		}
		if err := command.Start(); err != nil {
			return nil, err
		}
		started = append(started, &sender{command: command, tell: json.NewEncoder(in), hear: json.NewDecoder(bufio.NewReader(out)), close: in.Close})
	}
	return started, nil
}

// stop ends the processes, which go when nobody tells them anything any more.
func (s senders) stop() error {
	var errs []error
	for _, one := range s {
		_ = one.close()
		var exit *exec.ExitError
		if err := one.command.Wait(); err != nil && !errors.As(err, &exit) { // one that was killed went as it should
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// deliver spreads the deliveries of a new event over the processes, and returns how long it took until all were answered.
func (s senders) deliver(ctx context.Context, c hotCase) (float64, error) {
	task := errand{Store: c.store, Event: newEvent(), Deliveries: hotDeliveries / c.processes}
	began := time.Now()
	for _, one := range s[:c.processes] {
		if err := one.tell.Encode(task); err != nil {
			return 0, fmt.Errorf("tell a process to deliver: %w", err)
		}
	}
	for _, one := range s[:c.processes] {
		var problem string
		if err := one.hear.Decode(&problem); err != nil {
			return 0, fmt.Errorf("a process does not answer: %w", err)
		}
		if problem != "" {
			return 0, fmt.Errorf("%s: %s", c.store, problem)
		}
	}
	return time.Since(began).Seconds() * 1000, ctx.Err()
}

// send is what a sender does: errands, until there are no more.
func send(ctx context.Context, dsn string, in io.Reader, out io.Writer) error {
	h, err := open(ctx, dsn, hotPool, idempotency.Config{})
	if err != nil {
		return err
	}
	defer h.close()
	tasks, answers := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var task errand
		if err := tasks.Decode(&task); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read an errand: %w", err)
		}
		problem := ""
		if err := h.run(ctx, task); err != nil {
			problem = err.Error()
		}
		if err := answers.Encode(problem); err != nil {
			return fmt.Errorf("answer: %w", err)
		}
	}
}

// hotLimit is for a store that never answers.
const hotLimit = time.Minute

// run delivers until each delivery has the answer.
func (h *handles) run(ctx context.Context, task errand) error {
	ctx, cancel := context.WithTimeout(ctx, hotLimit)
	defer cancel()
	var failed firstError
	var working sync.WaitGroup
	for _, s := range h.stores() {
		if s.name != task.Store {
			continue
		}
		for range task.Deliveries {
			working.Go(func() {
				err := errInFlight
				for errors.Is(err, errInFlight) && ctx.Err() == nil {
					err = s.deliver(ctx, task.Event, func(tx *gorm.DB) error {
						time.Sleep(hotWork)
						return place(tx, s.name, task.Event)
					})
					if errors.Is(err, errInFlight) {
						time.Sleep(holdPoll)
					}
				}
				if err != nil {
					failed.note(err)
				}
			})
		}
	}
	working.Wait()
	return failed.err()
}
