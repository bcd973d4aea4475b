package gate

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const key = "stripe/evt_1"

func enter(t *testing.T, g *Gate[string], wait time.Duration) *Pass[string] {
	t.Helper()
	pass, err := g.Enter(t.Context(), key, wait)
	if err != nil {
		t.Fatalf("Enter(wait %v) = %v, want to be let in", wait, err)
	}
	if pass == nil {
		t.Fatalf("Enter(wait %v) went past the gate, want a pass", wait)
	}
	return pass
}

// requireEmpty fails if a key is remembered that nobody is inside of: over months that would be every event's.
func requireEmpty(t *testing.T, g *Gate[string]) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := len(g.occupants); n != 0 {
		t.Errorf("%d keys remain in the gate, want none", n)
	}
}

func TestEnterIsFirstComeFirstServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g Gate[string]
		var order []int
		var queue sync.WaitGroup
		occupant := enter(t, &g, 0)
		for i := range 20 {
			queue.Go(func() {
				pass, err := g.Enter(t.Context(), key, time.Minute)
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, i) // the gate is the lock: -race would notice
				pass.Leave()
			})
			synctest.Wait() // it has queued
		}
		occupant.Leave()
		queue.Wait()
		if len(order) != 20 || !slices.IsSorted(order) {
			t.Errorf("let in in the order %v", order)
		}
		requireEmpty(t, &g)
	})
}

func TestEnterOneAtATimePerKey(t *testing.T) {
	t.Parallel()
	var g Gate[int]
	var inside [10]atomic.Int32
	var visits [10]int // guarded by the gate alone
	var callers sync.WaitGroup
	for i := range 1000 {
		callers.Go(func() {
			k := i % len(inside)
			pass, err := g.Enter(t.Context(), k, time.Minute)
			if err != nil {
				t.Error(err)
				return
			}
			defer pass.Leave()
			if n := inside[k].Add(1); n != 1 {
				t.Errorf("%d callers inside key %d at once", n, k)
			}
			visits[k]++
			inside[k].Add(-1)
		})
	}
	callers.Wait()
	for k, n := range visits {
		if n != 100 {
			t.Errorf("key %d was visited %d times, want 100", k, n)
		}
	}
	if n := len(g.occupants); n != 0 {
		t.Errorf("%d keys remain in the gate", n)
	}
}

func TestEnterOtherKeyIsOpen(t *testing.T) {
	t.Parallel()
	var g Gate[string]
	defer enter(t, &g, 0).Leave()
	pass, err := g.Enter(t.Context(), "stripe/evt_2", 0)
	if pass == nil || err != nil {
		t.Fatalf("Enter(another key) = %v, %v", pass, err)
	}
	pass.Leave()
}

func TestEnterTimesOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g Gate[string]
		occupant := enter(t, &g, time.Second)
		start := time.Now()
		pass, err := g.Enter(t.Context(), key, time.Second)
		if pass != nil || !errors.Is(err, ErrTimeout) {
			t.Errorf("Enter = %v, %v, want ErrTimeout", pass, err)
		}
		if waited := time.Since(start); waited != time.Second {
			t.Errorf("waited %v, want 1s", waited)
		}
		occupant.Leave()
		requireEmpty(t, &g)
	})
}

func TestEnterTimeoutInTheMiddleKeepsTheQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g Gate[string]
		var order []string
		var queue sync.WaitGroup
		occupant := enter(t, &g, 0)
		for _, c := range []struct {
			name string
			wait time.Duration
		}{{"first", time.Minute}, {"impatient", time.Second}, {"last", time.Minute}} {
			queue.Go(func() {
				pass, err := g.Enter(t.Context(), key, c.wait)
				if err == nil {
					order = append(order, c.name)
				}
				pass.Leave() // nil after an error: nothing
			})
			synctest.Wait()
		}
		time.Sleep(2 * time.Second)
		occupant.Leave()
		queue.Wait()
		if want := []string{"first", "last"}; !slices.Equal(order, want) {
			t.Errorf("let in %v, want %v", order, want)
		}
		requireEmpty(t, &g)
	})
}

func TestEnterContext(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name string
		ctx  func(context.Context) (context.Context, context.CancelFunc)
		want error
	}{
		{"canceled in the queue", func(parent context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(parent)
			time.AfterFunc(time.Second, cancel)
			return ctx, cancel
		}, context.Canceled},
		{"canceled before", func(parent context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(parent)
			cancel()
			return ctx, cancel
		}, context.Canceled},
		{"deadline before the wait's end", func(parent context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(parent, time.Second)
		}, context.DeadlineExceeded},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var g Gate[string]
				occupant := enter(t, &g, 0)
				ctx, cancel := c.ctx(t.Context())
				defer cancel()
				pass, err := g.Enter(ctx, key, time.Minute)
				if pass != nil || !errors.Is(err, c.want) {
					t.Errorf("Enter = %v, %v, want %v", pass, err, c.want)
				}
				occupant.Leave()
				requireEmpty(t, &g)
			})
		})
	}
}

func TestEnterEndedContextFindsTheGateOpen(t *testing.T) {
	t.Parallel()
	var g Gate[string]
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, wait := range []time.Duration{0, time.Minute} {
		if pass, err := g.Enter(ctx, key, wait); pass != nil || !errors.Is(err, context.Canceled) {
			t.Errorf("Enter(wait %v) = %v, %v, want context.Canceled", wait, pass, err)
		}
	}
	requireEmpty(t, &g)
}

func TestEnterWithoutWaiting(t *testing.T) {
	t.Parallel()
	for _, wait := range []time.Duration{0, -time.Second} {
		var g Gate[string]
		occupant := enter(t, &g, wait)

		past, err := g.Enter(t.Context(), key, wait)
		if past != nil || err != nil {
			t.Fatalf("occupant has not won: Enter = %v, %v, want to go past", past, err)
		}
		past.Won() // neither may touch the occupant's place
		past.Leave()
		if past, err = g.Enter(t.Context(), key, wait); past != nil || err != nil {
			t.Fatalf("after a caller went past: Enter = %v, %v, want to go past", past, err)
		}

		occupant.Won()
		if pass, err := g.Enter(t.Context(), key, wait); pass != nil || !errors.Is(err, ErrHeld) {
			t.Fatalf("occupant has won: Enter = %v, %v, want ErrHeld", pass, err)
		}

		occupant.Leave()
		enter(t, &g, wait).Leave()
		requireEmpty(t, &g)
	}
}

func TestWonGoesWithTheOccupant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g Gate[string]
		first := enter(t, &g, 0)
		first.Won()
		second := make(chan *Pass[string])
		go func() {
			pass, _ := g.Enter(t.Context(), key, time.Minute)
			second <- pass
		}()
		synctest.Wait()
		first.Leave()
		occupant := <-second
		first.Won() // too late to mean anything
		if pass, err := g.Enter(t.Context(), key, 0); pass != nil || err != nil {
			t.Errorf("the second has not won: Enter = %v, %v, want to go past", pass, err)
		}
		occupant.Leave()
		requireEmpty(t, &g)
	})
}

func TestLeaveTwice(t *testing.T) {
	t.Parallel()
	var g Gate[string]
	first := enter(t, &g, 0)
	first.Leave()
	second := enter(t, &g, 0)
	first.Leave() // must not open the gate to a third
	second.Won()
	if _, err := g.Enter(t.Context(), key, 0); !errors.Is(err, ErrHeld) {
		t.Errorf("Enter = %v, want ErrHeld", err)
	}
	second.Leave()
	second.Leave()
	requireEmpty(t, &g)
}

// A waiter whose context ends while it is being let in must hand the admission on. Which of the two it notices is up to
// the scheduler, so it takes many rounds to see both.
func TestCancelAgainstAdmission(t *testing.T) {
	t.Parallel()
	var g Gate[string]
	var admitted, canceled int
	for range 5000 {
		ctx, cancel := context.WithCancel(t.Context())
		occupant := enter(t, &g, 0)
		var round sync.WaitGroup
		result := make(chan error, 1)
		round.Go(func() {
			pass, err := g.Enter(ctx, key, time.Minute)
			pass.Leave()
			result <- err
		})
		for g.queued() == 0 {
			time.Sleep(time.Microsecond)
		}
		start := make(chan struct{})
		round.Go(func() { <-start; occupant.Leave() })
		round.Go(func() { <-start; cancel() })
		close(start)
		round.Wait()
		switch err := <-result; {
		case err == nil:
			admitted++
		case errors.Is(err, context.Canceled):
			canceled++
		default:
			t.Fatal(err)
		}
		requireEmpty(t, &g)
		if t.Failed() {
			return
		}
	}
	t.Logf("admitted %d, canceled %d", admitted, canceled)
}

// The same, without chance: the admission and the end of the context are both there before the waiter looks.
func TestCancelAndAdmissionTogether(t *testing.T) {
	t.Parallel()
	for range 50 { // select picks either
		var g Gate[string]
		occupant := enter(t, &g, 0)
		waiter, err := g.place(key, true)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		occupant.Leave()
		cancel()
		if pass, err := waiter.await(ctx, time.Minute); pass != nil || !errors.Is(err, context.Canceled) {
			t.Fatalf("await = %v, %v, want context.Canceled", pass, err)
		}
		requireEmpty(t, &g)
	}
}

// queued counts those that wait for key.
func (g *Gate[K]) queued() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, occupant := range g.occupants {
		for p := occupant.next; p != occupant; p = p.next {
			n++
		}
	}
	return n
}

func BenchmarkEnterLeave(b *testing.B) {
	var g Gate[string]
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	b.ReportAllocs()
	for b.Loop() {
		pass, err := g.Enter(ctx, key, time.Second)
		if err != nil {
			b.Fatal(err)
		}
		pass.Won()
		pass.Leave()
	}
}
