package wire

import (
	"bytes"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"
)

// echo is a server that says back what it hears.
func echo(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { defer conn.Close(); _, _ = io.Copy(conn, conn) }()
		}
	}()
	return listener
}

func start(t *testing.T, roundTrip time.Duration) (*Link, net.Conn) {
	t.Helper()
	link, err := Start("tcp", echo(t).Addr().String(), roundTrip)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = link.Close() })
	conn, err := net.Dial("tcp", link.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return link, conn
}

// Nothing arrives early, and what follows does not wait for what is on its way: three hundred packets take one delay, and
// not three hundred. (That would be fifteen seconds: the limit is no measure of time, but of kind.)
func TestDelayIsADistance(t *testing.T) {
	t.Parallel()
	const roundTrip = 100 * time.Millisecond
	_, conn := start(t, roundTrip)
	began := time.Now()
	go func() { _, _ = conn.Write(make([]byte, 300*packetBytes)) }()
	answer := make([]byte, 300*packetBytes)
	if _, err := io.ReadFull(conn, answer[:1]); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < roundTrip {
		t.Errorf("the first byte came back after %v, want at least %v", took, roundTrip)
	}
	if _, err := io.ReadFull(conn, answer[1:]); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 50*roundTrip {
		t.Errorf("they took %v", took)
	}
}

// Bytes arrive in order and whole, with a delay and without.
func TestLinkCarriesEverything(t *testing.T) {
	t.Parallel()
	for _, roundTrip := range []time.Duration{0, time.Millisecond} {
		_, conn := start(t, roundTrip)
		sent := bytes.Repeat([]byte("some bytes that are carried "), 100_000)
		go func() { _, _ = conn.Write(sent) }()
		got := make([]byte, len(sent))
		if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("round trip %v: not what was sent, %v", roundTrip, err)
		}
	}
}

// A connection ends when one side of it does, and Close leaves none.
func TestCloseEndsConnections(t *testing.T) {
	t.Parallel()
	link, conn := start(t, time.Millisecond)
	if err := link.Close(); err != nil {
		t.Error(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the connection is still there")
	}
}

// ReadyForQuery is found wherever the bytes are split, and what looks like one inside a message is not counted.
func TestRoundTripsAreCounted(t *testing.T) {
	t.Parallel()
	said := []byte("D\x00\x00\x00\x0aZZZZZZ" + "Z\x00\x00\x00\x05I" + "C\x00\x00\x00\x04" + "Z\x00\x00\x00\x05T")
	for size := 1; size <= len(said); size++ {
		var trips atomic.Int64
		c := &counter{trips: &trips}
		for rest := said; len(rest) > 0; {
			n := min(size, len(rest))
			c.read(rest[:n])
			rest = rest[n:]
		}
		if trips.Load() != 2 {
			t.Errorf("in pieces of %d bytes: %d round trips are counted, want 2", size, trips.Load())
		}
	}
}
