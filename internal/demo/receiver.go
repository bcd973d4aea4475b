package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
)

const maxBody = 1 << 20

// receiver is the application of the demo: an HTTP server with one handler.
type receiver struct {
	url      string
	server   *http.Server
	keys     *idempotency.DB
	troubles map[eventKey]*mishap
	journal  *journal
	stopped  chan error
}

// handle is the README's handler, for several senders and without their signatures.
func (rc *receiver) handle(w http.ResponseWriter, r *http.Request) {
	sender := senderNamed(r.PathValue("sender"))
	if sender == nil {
		http.NotFound(w, r)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, "incomplete or too large", http.StatusServiceUnavailable)
		return
	}
	// Here a real one verifies the sender's signature, before anything else looks at the body.
	if !json.Valid(body) {
		http.Error(w, "not an event", http.StatusBadRequest)
		return
	}
	id := sender.eventID(r.Header, body)

	result, err := rc.keys.WithContext(r.Context()).Idempotent(sender.name, id, body, func(tx *gorm.DB) error {
		return rc.record(tx, sender, id, body)
	})
	if err != nil {
		refuse(w, err)
		return
	}
	maps.Copy(w.Header(), result.Header)
	w.WriteHeader(result.Status)
	_, _ = w.Write(result.Body) //nolint:gosec // the body is JSON; a sender that is gone comes back for it
}

// refuse answers a request that had no effect. Several senders drop an event at any 4xx, so what another request can mend
// is a 5xx. A real one logs the error of a 500; here the handler fails on purpose.
func refuse(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, idempotency.ErrInFlight):
		w.Header().Set("Retry-After", "1")
		http.Error(w, "this event is being worked on", http.StatusServiceUnavailable)
	case errors.Is(err, idempotency.ErrDigestMismatch):
		http.Error(w, "this id came with another payload", http.StatusUnprocessableEntity)
	case errors.Is(err, idempotency.ErrInvalidKey):
		http.Error(w, "this id cannot be a key", http.StatusBadRequest)
	default:
		http.Error(w, "try again", http.StatusInternalServerError)
	}
}

// Order and Payment are the effect of an event: one row of each.
type Order struct {
	ID          int64
	Source      string
	EventID     string
	Reference   string
	AmountCents int64
	Currency    string
}

// Payment pays for an Order.
type Payment struct {
	ID          int64
	OrderID     int64
	Source      string
	EventID     string
	AmountCents int64
	Currency    string
}

// record is the effect. Its answer names the rows and the time, so that a second run could not give the same answer.
func (rc *receiver) record(tx *gorm.DB, sender *sender, id string, body []byte) error {
	rc.journal.claimed(tx.Statement.Context)
	bought, err := sender.purchase(body)
	if err != nil {
		return err
	}
	order := Order{Source: sender.name, EventID: id, Reference: bought.reference, AmountCents: bought.cents, Currency: bought.currency}
	if err := tx.Create(&order).Error; err != nil {
		return err
	}
	payment := Payment{OrderID: order.ID, Source: sender.name, EventID: id, AmountCents: bought.cents, Currency: bought.currency}
	if err := tx.Create(&payment).Error; err != nil {
		return err
	}
	if err := rc.troubles[eventKey{sender.name, id}].strike(tx.Statement.Context); err != nil {
		return err
	}
	return idempotency.Respond(tx, http.StatusCreated, map[string]any{
		"order": order.ID, "payment": payment.ID, "at": time.Now().UTC().Format("15:04:05.000000"),
	})
}

// listen takes the receiver's address. It accepts whatever is sent to it without checking a signature, so only the loopback
// address will do.
func listen(ctx context.Context, address string) (net.Listener, error) {
	if address == "" {
		address = "127.0.0.1:0"
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("--listen %q is not an address: write it as in 127.0.0.1:8080", address)
	}
	if ip := net.ParseIP(host); host != "localhost" && !ip.IsLoopback() {
		return nil, fmt.Errorf("--listen %q would let other machines write to the demo, which checks no signatures: "+
			"name a loopback address, as in 127.0.0.1:8080", address)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("the receiver cannot listen on %s: name another port with --listen, or leave it out for a free one (%w)", address, err)
	}
	return listener, nil
}

func startReceiver(listener net.Listener, db *gorm.DB, troubles map[eventKey]*mishap, journal *journal) *receiver {
	rc := &receiver{
		url: "http://" + listener.Addr().String(), keys: idempotency.Wrap(db),
		troubles: troubles, journal: journal, stopped: make(chan error, 1),
	}
	mux := http.NewServeMux()
	mux.Handle("POST /webhooks/{sender}", numbered(http.HandlerFunc(rc.handle)))
	rc.server = &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          log.New(io.Discard, "", 0), // the demo's handlers panic on purpose
	}
	go func() { rc.stopped <- rc.server.Serve(listener) }()
	return rc
}

// stop waits for handlers that are running, but not for long: a sender that was interrupted is not there any more.
func (rc *receiver) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	err := rc.server.Shutdown(ctx)
	if err != nil {
		err = rc.server.Close()
	}
	if served := <-rc.stopped; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}
