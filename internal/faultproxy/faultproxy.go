// Package faultproxy stands between a client and a PostgreSQL server, and breaks the link where a test says: before a
// request reaches the server, or after the server has answered and before the client knows. It needs no TLS: a client
// must ask for none, or be content without.
package faultproxy

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// Fault is what becomes of a request.
type Fault int

// The faults.
const (
	None      Fault = iota // the request is forwarded, and so is its reply
	CutBefore              // the server never sees the request, and both links break
	CutAfter               // the server has carried out the request when both links break; its reply is lost
)

// Plan decides about each request of each client, in order, by the SQL that it executes or prepares. It may block, which
// delays the request. It is called from a goroutine for each connection.
type Plan func(sql string) Fault

// Proxy is a running proxy.
type Proxy struct {
	listener net.Listener
	network  string
	address  string
	plan     atomic.Pointer[Plan]

	mu     sync.Mutex
	links  map[*link]struct{}
	closed bool
	done   sync.WaitGroup
}

// Start listens on a free port of the loopback address, and forwards to the server at a network address, as in net.Dial.
func Start(network, address string) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: listener, network: network, address: address, links: make(map[*link]struct{})}
	p.Follow(func(string) Fault { return None })
	p.done.Go(p.accept)
	return p, nil
}

// Port is where clients connect to, at 127.0.0.1.
func (p *Proxy) Port() uint16 {
	return p.listener.Addr().(*net.TCPAddr).AddrPort().Port()
}

// Follow makes plan decide about the requests from now on.
func (p *Proxy) Follow(plan Plan) { p.plan.Store(&plan) }

// Close breaks all links and stops listening.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	for l := range p.links {
		l.cut()
	}
	p.mu.Unlock()
	err := p.listener.Close()
	p.done.Wait()
	return err
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.done.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	server, err := net.Dial(p.network, p.address)
	if err != nil {
		_ = client.Close()
		return
	}
	l := &link{client: client, server: server, plan: &p.plan, prepared: make(map[string]string)}
	if !p.keep(l) {
		return
	}
	defer p.forget(l)
	var directions sync.WaitGroup
	directions.Go(l.requests)
	directions.Go(l.replies)
	directions.Wait()
}

// keep remembers a link for Close, which may have come first.
func (p *Proxy) keep(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		l.cut()
		return false
	}
	p.links[l] = struct{}{}
	return true
}

func (p *Proxy) forget(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// link is one client's connection through the proxy.
type link struct {
	client, server net.Conn
	plan           *atomic.Pointer[Plan]
	prepared       map[string]string // the SQL of its prepared statements, by their name
	sql            string            // of the request that is being read
	deaf           atomic.Bool       // the client gets no more replies, and the link is cut at the end of the next one
}

// cut breaks both connections, without the goodbye that would let the server end the session in an orderly way.
func (l *link) cut() {
	_ = l.client.Close()
	_ = l.server.Close()
}

// requests forwards what the client sends, one request at a time: a Query message, or an extended protocol's messages up
// to its Sync.
func (l *link) requests() {
	defer l.cut()
	from := bufio.NewReader(l.client)
	if l.greet(from) != nil {
		return
	}
	var request []byte
	for {
		message, err := readMessage(from)
		if err != nil {
			return
		}
		request = append(request, message...)
		if !l.ends(message) {
			continue
		}
		switch l.fault() {
		case CutBefore:
			return
		case CutAfter:
			l.deaf.Store(true)
		case None:
		}
		if _, err := l.server.Write(request); err != nil {
			return
		}
		request, l.sql = request[:0], ""
	}
}

// fault asks the plan about a request. What has no SQL, such as a password or the goodbye, is none of its business.
func (l *link) fault() Fault {
	if l.sql == "" {
		return None
	}
	return (*l.plan.Load())(l.sql)
}

// The codes in place of a protocol version that ask for encryption.
const (
	sslRequest    = 80877103
	gssencRequest = 80877104
)

// greet forwards the first message, which has no type. A wish for encryption is declined.
func (l *link) greet(from *bufio.Reader) error {
	for {
		greeting, err := readSized(from, nil)
		if err != nil {
			return err
		}
		if len(greeting) == 8 {
			switch binary.BigEndian.Uint32(greeting[4:]) {
			case sslRequest, gssencRequest:
				if _, err := l.client.Write([]byte{'N'}); err != nil {
					return err
				}
				continue
			}
		}
		_, err = l.server.Write(greeting)
		return err
	}
}

// ends reports whether a client's message completes a request, and gathers its SQL on the way.
func (l *link) ends(message []byte) bool {
	body := message[5:]
	switch message[0] {
	case 'Q':
		l.sql, _ = text(body)
	case 'P': // Parse: the statement's name, its SQL
		name, rest := text(body)
		l.sql, _ = text(rest)
		l.prepared[name] = l.sql
		return false
	case 'B': // Bind: the portal's name, the statement's
		_, rest := text(body)
		name, _ := text(rest)
		l.sql = l.prepared[name]
		return false
	case 'D', 'E', 'C', 'H': // Describe, Execute, Close, Flush: Sync follows
		return false
	}
	return true
}

// replies forwards what the server sends. A deaf client's link lasts until ReadyForQuery, which proves that the request
// has been carried out.
func (l *link) replies() {
	defer l.cut()
	from, to := bufio.NewReader(l.server), bufio.NewWriter(l.client)
	for {
		message, err := readMessage(from)
		if err != nil {
			return
		}
		if l.deaf.Load() {
			if message[0] == 'Z' {
				return
			}
			continue
		}
		if _, err := to.Write(message); err != nil {
			return
		}
		if from.Buffered() == 0 && to.Flush() != nil {
			return
		}
	}
}

// readMessage reads a message whole: its type, its length, and that many bytes.
func readMessage(from *bufio.Reader) ([]byte, error) {
	kind, err := from.ReadByte()
	if err != nil {
		return nil, err
	}
	return readSized(from, []byte{kind})
}

// readSized reads a length, which counts itself, and what it is the length of.
func readSized(from *bufio.Reader, message []byte) ([]byte, error) {
	start := len(message)
	message = append(message, 0, 0, 0, 0)
	if _, err := io.ReadFull(from, message[start:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(message[start:])
	if size < 4 || size > 1<<30 {
		return nil, io.ErrUnexpectedEOF
	}
	message = append(message, make([]byte, size-4)...)
	_, err := io.ReadFull(from, message[start+4:])
	return message, err
}

// text splits off a string that ends in a zero byte.
func text(body []byte) (string, []byte) {
	for i, c := range body {
		if c == 0 {
			return string(body[:i]), body[i+1:]
		}
	}
	return string(body), nil
}
