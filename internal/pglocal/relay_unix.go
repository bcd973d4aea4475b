//go:build unix

package pglocal

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// relay stands between embedded-postgres and the repository, on loopback. What embedded-postgres lacks is done here: a
// download that ends when its context does or when nothing comes any more, that tells how far it is, and that says why it
// failed.
type relay struct {
	cache    *cache
	base     string // of the repository
	client   *http.Client
	listener net.Listener
	server   *http.Server
	path     string // a secret: other users of the machine have no business here
	done     chan struct{}

	mu  sync.Mutex
	err error
}

// repositoryError is why the repository did not give what was asked of it.
type repositoryError struct{ error }

func (e *repositoryError) Unwrap() error { return e.error }

var errStalled = errors.New("nothing came any more")

func startRelay(ctx context.Context, c *cache) (*relay, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(loopback, "0"))
	if err != nil {
		return nil, err
	}
	r := &relay{
		cache:    c,
		base:     strings.TrimRight(c.repository, "/"),
		client:   newClient(c.limits),
		listener: listener,
		path:     "/" + rand.Text(),
		done:     make(chan struct{}),
	}
	r.server = &http.Server{
		Handler:           http.StripPrefix(r.path, http.HandlerFunc(r.serve)),
		ReadHeaderTimeout: c.limits.connect,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	// Else the client of embedded-postgres, which is the process's default one, would keep a connection and its goroutines.
	r.server.SetKeepAlivesEnabled(false)
	go func() {
		defer close(r.done)
		_ = r.server.Serve(listener) // ends with the server
	}()
	return r, nil
}

// newClient is the default one but for its limits: it also obeys HTTPS_PROXY.
func newClient(l limits) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: l.connect}).DialContext,
			TLSHandshakeTimeout:   l.connect,
			ResponseHeaderTimeout: l.connect,
			ForceAttemptHTTP2:     true,
		},
		CheckRedirect: func(next *http.Request, before []*http.Request) error {
			switch {
			case len(before) >= 10:
				return errors.New("it redirects for ever")
			case before[0].URL.Scheme == "https" && next.URL.Scheme != "https":
				return errors.New("it redirects to an address without encryption")
			default:
				return nil
			}
		},
	}
}

func (r *relay) url() string { return "http://" + r.listener.Addr().String() + r.path }

func (r *relay) stop() {
	_ = r.server.Close() // it only closes connections
	<-r.done
	r.client.CloseIdleConnections()
}

// serve answers with what the repository does, or keeps the cause and breaks off.
func (r *relay) serve(w http.ResponseWriter, request *http.Request) {
	ctx, cancel := context.WithCancelCause(request.Context())
	defer cancel(nil)
	if err := r.forward(ctx, cancel, w, request.URL.Path); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		r.fail(err)
		panic(http.ErrAbortHandler) // which nobody takes for a whole answer
	}
}

func (r *relay) forward(ctx context.Context, cancel context.CancelCauseFunc, w http.ResponseWriter, path string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.base+path, nil)
	if err != nil {
		return unwrapURL(err)
	}
	response, err := r.client.Do(request)
	if err != nil {
		return fmt.Errorf("%w (check the network, and HTTPS_PROXY if there is a proxy)", unwrapURL(err))
	}
	defer func() { _ = response.Body.Close() }()
	isSum := strings.HasSuffix(path, ".sha256")
	switch {
	case response.StatusCode == http.StatusNotFound && isSum:
		w.WriteHeader(http.StatusNotFound) // embedded-postgres does without; the archive has sums of its own
		return nil
	case response.StatusCode == http.StatusNotFound:
		return errors.New("it has none for this system: " + path + " is not there")
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("it answers %s for %s", response.Status, path)
	}
	watched := &watchedReader{reader: response.Body, timer: time.AfterFunc(r.cache.limits.stall, func() { cancel(errStalled) }), limit: r.cache.limits.stall}
	defer watched.timer.Stop()
	if isSum {
		return relaySum(w, watched)
	}
	return r.relayArchive(w, watched, response.ContentLength)
}

// relaySum passes on the sum alone. Mirrors add a line's end or a file name, and embedded-postgres compares all of it.
func relaySum(w io.Writer, body io.Reader) error {
	const most = 1 << 10
	content, err := io.ReadAll(io.LimitReader(body, most))
	if err != nil {
		return err
	}
	sum, _, _ := strings.Cut(strings.TrimSpace(strings.ToLower(string(content))), " ")
	_, err = io.WriteString(w, sum)
	return err
}

func (r *relay) relayArchive(w http.ResponseWriter, body io.Reader, size int64) error {
	if size > 0 {
		w.Header().Set("Content-Length", fmt.Sprint(size))
	}
	counted := &countedWriter{writer: w, cache: r.cache, now: r.cache.progress(Downloading)}
	counted.now.Total = max(size, 0)
	if _, err := io.Copy(counted, body); err != nil {
		return err
	}
	counted.tell()
	r.cache.report(r.cache.progress(Unpacking))
	return nil
}

func (r *relay) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = &repositoryError{err}
	}
}

func (r *relay) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// watchedReader gives up when nothing comes for a while.
type watchedReader struct {
	reader io.Reader
	timer  *time.Timer
	limit  time.Duration
}

func (w *watchedReader) Read(into []byte) (int, error) {
	n, err := w.reader.Read(into)
	if n > 0 {
		w.timer.Reset(w.limit)
	}
	return n, err
}

// countedWriter tells how much came, ten times a second at most.
type countedWriter struct {
	writer io.Writer
	cache  *cache
	now    Progress
	told   time.Time
}

func (c *countedWriter) Write(content []byte) (int, error) {
	n, err := c.writer.Write(content)
	c.now.Received += int64(n)
	if time.Since(c.told) >= 100*time.Millisecond {
		c.tell()
	}
	return n, err
}

func (c *countedWriter) tell() {
	c.told = time.Now()
	c.cache.report(c.now)
}

// unwrapURL takes an error of package http without the address, which the sentence around it says without its password.
func unwrapURL(err error) error {
	var located *url.Error
	if errors.As(err, &located) {
		return located.Err
	}
	return err
}

// redacted is an address without its password, and without its user, which may be a token.
func redacted(address string) string {
	parsed, err := url.Parse(address)
	if err != nil {
		return "the repository"
	}
	if parsed.User != nil {
		parsed.User = url.User("…")
	}
	text, err := url.PathUnescape(parsed.String())
	if err != nil {
		return parsed.String()
	}
	return text
}
