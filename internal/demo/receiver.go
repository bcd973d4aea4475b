package demo

import (
	"context"
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
	db       *gorm.DB
	troubles map[eventKey]*mishap
	stopped  chan error
}

// handle is the handler that the README shows.
func (rc *receiver) handle(w http.ResponseWriter, r *http.Request) {
	sender := senderNamed(r.PathValue("sender"))
	if sender == nil {
		http.NotFound(w, r)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, "the body cannot be read", http.StatusBadRequest)
		return
	}
	id := sender.eventID(r.Header, body)
	result, err := idempotency.Do(rc.db.WithContext(r.Context()), sender.name, id, body, func(tx *gorm.DB) error {
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

// refuse tells the sender what to do about an error. 503 and not 409: several senders drop an event on any 4xx.
func refuse(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, idempotency.ErrInFlight):
		w.Header().Set("Retry-After", "1")
		http.Error(w, "another delivery of this event is being handled", http.StatusServiceUnavailable)
	case errors.Is(err, idempotency.ErrDigestMismatch):
		http.Error(w, "this event was delivered before with another body", http.StatusUnprocessableEntity)
	case errors.Is(err, idempotency.ErrInvalidKey):
		http.Error(w, "the event has no usable id", http.StatusBadRequest)
	default:
		http.Error(w, "internal error", http.StatusInternalServerError)
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

func startReceiver(listener net.Listener, db *gorm.DB, troubles map[eventKey]*mishap) *receiver {
	rc := &receiver{url: "http://" + listener.Addr().String(), db: db, troubles: troubles, stopped: make(chan error, 1)}
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
