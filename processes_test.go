package idempotency_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
)

// These tell a test that it runs in a process of its own, which its parent has started: with which database, and to play
// which role.
const (
	childDSN  = "IDEMPOTENCY_TEST_CHILD_DSN"
	childRole = "IDEMPOTENCY_TEST_CHILD_ROLE"
)

// child is a process that runs one test of this binary again.
type child struct {
	t       *testing.T
	command *osexec.Cmd
	say     io.WriteCloser
	hear    *bufio.Scanner
}

// spawn starts this test again in another process, as a child that is to play a role.
func spawn(t *testing.T, dsn, role string) *child {
	t.Helper()
	command := osexec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.count=1", "-test.timeout=2m")
	command.Env = append(os.Environ(), childDSN+"="+dsn, childRole+"="+role)
	command.Stderr = os.Stderr
	say, err := command.StdinPipe()
	requireError(t, err, nil)
	hear, err := command.StdoutPipe()
	requireError(t, err, nil)
	requireError(t, command.Start(), nil)
	t.Cleanup(func() { _ = command.Process.Kill(); _ = command.Wait() })
	return &child{t: t, command: command, say: say, hear: bufio.NewScanner(hear)}
}

// requireSays waits for the child's next line that starts with a word, and returns what follows.
func (c *child) requireSays(word string) string {
	c.t.Helper()
	for c.hear.Scan() {
		if rest, ok := strings.CutPrefix(c.hear.Text(), word+" "); ok {
			return rest
		}
		if line := c.hear.Text(); line != "" {
			c.t.Logf("child: %s", line)
		}
	}
	c.t.Fatalf("the child has ended without saying %q", word)
	return ""
}

// openAsChild opens the parent's database, which it has prepared.
func openAsChild(t *testing.T, dsn string, log logger.Interface) *gorm.DB {
	t.Helper()
	return open(t, setup{driver: postgres.Open(dsn), gorm: gorm.Config{Logger: log}})
}

// tell says something to the parent.
func tell(word string, what any) {
	fmt.Printf("\n%s %v\n", word, what) // the test framework writes to the same pipe
}

// Case C65: fifty goroutines in each of four processes deliver one event whose handler is slow. It runs once, and
// everybody gets its answer, or is told that it is in flight.
func TestFourProcessesDeliverOneEvent(t *testing.T) {
	const processes, goroutines = 4, 50
	if dsn := os.Getenv(childDSN); dsn != "" {
		db := openAsChild(t, dsn, logger.Discard)
		tell("ready", os.Getpid())
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		var runs, answers, inFlight atomic.Int32
		var callers sync.WaitGroup
		for i := range goroutines {
			callers.Go(func() {
				wait := []time.Duration{0, never}[i%2]
				result, err := idempotency.Do(db, "s", "evt", nil, func(tx *gorm.DB) error {
					runs.Add(1)
					time.Sleep(300 * time.Millisecond) // so that the others come meanwhile; nothing depends on it
					return placeOrder("evt")(tx)
				}, idempotency.WithWait(wait))
				switch {
				case err == nil && result.Status == 201 && string(result.Body) == `{"order":"evt"}`:
					answers.Add(1)
				case errors.Is(err, idempotency.ErrInFlight) && wait == 0:
					inFlight.Add(1)
				default:
					t.Errorf("%+v, %v", result, err)
				}
			})
		}
		callers.Wait()
		tell("tally", fmt.Sprint(runs.Load(), answers.Load(), inFlight.Load()))
		return
	}
	t.Parallel()
	dsn := gormtest.DSN(t)
	db := open(t, setup{dsn: dsn})
	var children []*child
	for range processes {
		children = append(children, spawn(t, dsn, ""))
	}
	for _, c := range children {
		c.requireSays("ready")
	}
	for _, c := range children {
		_, err := io.WriteString(c.say, "go\n")
		requireError(t, err, nil)
	}
	var runs, answers, inFlight int
	for _, c := range children {
		var r, a, f int
		_, err := fmt.Sscan(c.requireSays("tally"), &r, &a, &f)
		requireError(t, err, nil)
		runs, answers, inFlight = runs+r, answers+a, inFlight+f
	}
	t.Logf("%d runs, %d answers, %d in flight", runs, answers, inFlight)
	if runs != 1 || answers < processes*goroutines/2 || answers+inFlight != processes*goroutines {
		t.Errorf("%d runs, %d answers, %d in flight", runs, answers, inFlight)
	}
	requireEffects(t, db, "evt", 1)
}
