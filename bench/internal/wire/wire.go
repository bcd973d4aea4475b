// Package wire is a network between a client and a PostgreSQL server on the same machine: it delays what they say to each
// other, and counts their round trips.
//
// It needs no TLS: a client must ask for none.
package wire

import (
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Link is a running network of one server. Clients connect to its port.
type Link struct {
	listener net.Listener
	network  string
	address  string
	oneWay   time.Duration
	trips    atomic.Int64

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
	done   sync.WaitGroup
}

// Start listens on a free port of the loopback address, and connects clients to the server at a network address, as in
// net.Dial. What one side says arrives at the other half a round trip later; a round trip of zero delays nothing.
func Start(network, address string, roundTrip time.Duration) (*Link, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start a network: %w", err)
	}
	l := &Link{listener: listener, network: network, address: address, oneWay: roundTrip / 2, conns: make(map[net.Conn]struct{})}
	l.done.Go(l.accept)
	return l, nil
}

// Port is where clients connect to, at 127.0.0.1.
func (l *Link) Port() uint16 { return l.listener.Addr().(*net.TCPAddr).AddrPort().Port() }

// RoundTrips counts the answers for which a client has waited, on all connections so far: a server ends each of them with
// ReadyForQuery.
func (l *Link) RoundTrips() int64 { return l.trips.Load() }

// Close breaks all connections and stops listening.
func (l *Link) Close() error {
	l.mu.Lock()
	l.closed = true
	for conn := range l.conns {
		_ = conn.Close()
	}
	l.mu.Unlock()
	err := l.listener.Close()
	l.done.Wait()
	return err
}

func (l *Link) accept() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return
		}
		l.done.Go(func() { l.connect(client) })
	}
}

func (l *Link) connect(client net.Conn) {
	defer client.Close()
	server, err := net.Dial(l.network, l.address)
	if err != nil {
		return
	}
	defer server.Close()
	if !l.keep(client, server) {
		return
	}
	defer l.forget(client, server)

	var directions sync.WaitGroup
	directions.Go(func() { l.carry(client, server, func([]byte) {}) })
	directions.Go(func() { l.carry(server, client, (&counter{trips: &l.trips}).read) })
	directions.Wait()
}

// keep remembers connections for Close, which may have come first.
func (l *Link) keep(conns ...net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range conns {
		l.conns[conn] = struct{}{}
	}
	return !l.closed
}

func (l *Link) forget(conns ...net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range conns {
		delete(l.conns, conn)
	}
}

// packet is bytes on their way.
type packet struct {
	bytes []byte
	due   time.Time
}

const (
	packetBytes = 32 << 10
	onTheirWay  = 1024 // packets
)

// carry takes bytes from one side to the other. Reading goes on while earlier packets are on their way: the delay is a
// distance, and not a bottleneck.
func (l *Link) carry(from, to net.Conn, seen func([]byte)) {
	defer from.Close()
	defer to.Close()
	if l.oneWay == 0 {
		pump(from, func(bytes []byte) bool { seen(bytes); _, err := to.Write(bytes); return err == nil })
		return
	}
	packets := make(chan packet, onTheirWay)
	var arriving sync.WaitGroup
	arriving.Go(func() { l.arrive(packets, to, seen) })
	pump(from, func(bytes []byte) bool {
		packets <- packet{append([]byte(nil), bytes...), time.Now().Add(l.oneWay)}
		return true
	})
	close(packets)
	arriving.Wait()
}

func pump(from net.Conn, pass func([]byte) bool) {
	buffer := make([]byte, packetBytes)
	for {
		n, err := from.Read(buffer)
		if n > 0 && !pass(buffer[:n]) || err != nil {
			return
		}
	}
}

// arrive hands packets over when they are due. It takes all of them, whatever happens, so that carry can end.
func (l *Link) arrive(packets <-chan packet, to net.Conn, seen func([]byte)) {
	clock := newAlarm()
	defer clock.close()
	for p := range packets {
		clock.wait(time.Until(p.due))
		seen(p.bytes)
		if _, err := to.Write(p.bytes); err != nil {
			_ = to.Close()
		}
	}
}

// counter finds ReadyForQuery in what a server says: messages of a type and a length, which counts itself.
type counter struct {
	trips  *atomic.Int64
	header [5]byte
	have   int    // bytes of the header
	skip   uint32 // bytes of the message that are still to come
}

const readyForQuery = 'Z'

func (c *counter) read(bytes []byte) {
	for len(bytes) > 0 {
		if c.skip > 0 {
			n := min(int(c.skip), len(bytes))
			c.skip -= uint32(n) //nolint:gosec // at most skip
			bytes = bytes[n:]
			continue
		}
		n := copy(c.header[c.have:], bytes)
		c.have += n
		bytes = bytes[n:]
		if c.have < len(c.header) {
			return
		}
		if c.header[0] == readyForQuery {
			c.trips.Add(1)
		}
		c.have, c.skip = 0, max(binary.BigEndian.Uint32(c.header[1:]), 4)-4
	}
}
