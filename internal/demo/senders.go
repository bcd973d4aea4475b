package demo

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
)

// eventKey identifies an event, as the library does.
type eventKey struct{ source, id string }

// purchase is what the shop records of an event, whoever sends it.
type purchase struct {
	reference string
	cents     int64
	currency  string
}

// sender is a shape of webhooks: where the event's id is, and what the body says.
type sender struct {
	name     string // the source of its keys, and the end of its path
	idHeader string // "": the id is in the body
	idInBody func(body []byte) string
	newID    func(*rand.Rand) string
	header   func(kind string) map[string]string // what it sends beside the id

	recognises func(body []byte) bool
	purchase   func(body []byte) (purchase, error)
}

var senders = []*sender{
	{
		name: "stripe", idInBody: stripeID, newID: stripeNewID, purchase: stripePurchase, recognises: stripeShape,
		header: func(string) map[string]string { return nil },
	},
	{
		name: "shopify", idHeader: "X-Shopify-Event-Id", newID: newUUID, purchase: shopifyPurchase, recognises: shopifyShape,
		header: func(kind string) map[string]string { return map[string]string{"X-Shopify-Topic": kind} },
	},
	{
		name: "github", idHeader: "X-GitHub-Delivery", newID: newUUID, purchase: githubPurchase, recognises: githubShape,
		header: func(kind string) map[string]string { return map[string]string{"X-GitHub-Event": kind} },
	},
	// Anything else: the id is in the body, where PayPal, Paddle, Slack and many others have it, or in the header of the
	// Standard Webhooks specification.
	{
		name: "others", idInBody: bodyID, idHeader: "Webhook-Id", newID: newUUID, purchase: anyPurchase,
		recognises: func([]byte) bool { return true },
		header:     func(string) map[string]string { return nil },
	},
}

func senderNamed(name string) *sender {
	for _, s := range senders {
		if s.name == name {
			return s
		}
	}
	return nil
}

// senderOf recognises a body by its shape.
func senderOf(body []byte) *sender {
	for _, s := range senders {
		if s.recognises(body) {
			return s
		}
	}
	panic("the last sender takes anything")
}

// eventID finds the id of a delivery. Where there is none it is empty, which the library refuses.
func (s *sender) eventID(header http.Header, body []byte) string {
	if s.idInBody != nil {
		if id := s.idInBody(body); id != "" {
			return id
		}
	}
	if s.idHeader == "" {
		return ""
	}
	return header.Get(s.idHeader)
}

type stripeEvent struct {
	ID, Object, Type string
	Data             struct {
		Object struct {
			ID          string
			Amount      int64
			AmountTotal int64 `json:"amount_total"`
			Currency    string
		}
	}
}

func stripeID(body []byte) string { return decoded[stripeEvent](body).ID }

func stripeShape(body []byte) bool {
	e := decoded[stripeEvent](body)
	return e.Object == "event" && e.ID != ""
}

func stripePurchase(body []byte) (purchase, error) {
	o := decoded[stripeEvent](body).Data.Object
	return purchase{o.ID, max(o.AmountTotal, o.Amount), strings.ToUpper(o.Currency)}, nil
}

type shopifyOrder struct {
	GID        string `json:"admin_graphql_api_id"`
	Name       string
	TotalPrice string `json:"total_price"`
	Currency   string
}

func shopifyShape(body []byte) bool {
	return strings.HasPrefix(decoded[shopifyOrder](body).GID, "gid://shopify/Order/")
}

func shopifyPurchase(body []byte) (purchase, error) {
	o := decoded[shopifyOrder](body)
	units, fraction, _ := strings.Cut(o.TotalPrice, ".")
	cents, err := strconv.ParseInt(units+(fraction + "00")[:2], 10, 64)
	if err != nil {
		return purchase{}, errors.New("the order's total_price is not a number")
	}
	return purchase{o.Name, cents, o.Currency}, nil
}

type githubEvent struct {
	Action string
	Sender struct{ Login string }

	MarketplacePurchase *struct {
		Account struct{ Login string }
		Plan    struct {
			Cents int64 `json:"monthly_price_in_cents"`
		}
	} `json:"marketplace_purchase"`

	Sponsorship *struct {
		Sponsor struct{ Login string }
		Tier    struct {
			Cents int64 `json:"monthly_price_in_cents"`
		}
	}
}

func githubShape(body []byte) bool {
	e := decoded[githubEvent](body)
	return e.Action != "" && e.Sender.Login != "" && (e.MarketplacePurchase != nil || e.Sponsorship != nil)
}

func githubPurchase(body []byte) (purchase, error) {
	switch e := decoded[githubEvent](body); {
	case e.MarketplacePurchase != nil:
		return purchase{e.MarketplacePurchase.Account.Login, e.MarketplacePurchase.Plan.Cents, "USD"}, nil
	case e.Sponsorship != nil:
		return purchase{e.Sponsorship.Sponsor.Login, e.Sponsorship.Tier.Cents, "USD"}, nil
	}
	return purchase{}, errors.New("the event is about neither a purchase nor a sponsorship")
}

func bodyID(body []byte) string {
	ids := decoded[struct {
		ID      any
		EventID any `json:"event_id"`
	}](body)
	for _, id := range []any{ids.EventID, ids.ID} {
		switch id := id.(type) {
		case string:
			if id != "" {
				return id
			}
		case json.Number:
			return id.String()
		}
	}
	return ""
}

func anyPurchase([]byte) (purchase, error) { return purchase{reference: "as delivered"}, nil }

// decoded is the zero T where the body is of another shape.
func decoded[T any](body []byte) T {
	var value T
	decoder := json.NewDecoder(strings.NewReader(string(body)))
	decoder.UseNumber() // an id that is a large number must keep its digits
	if err := decoder.Decode(&value); err != nil {
		var zero T
		return zero
	}
	return value
}

func stripeNewID(random *rand.Rand) string {
	const letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	id := []byte("evt_1Q")
	for range 22 {
		id = append(id, letters[random.IntN(len(letters))])
	}
	return string(id)
}

func newUUID(random *rand.Rand) string {
	high, low := random.Uint64(), random.Uint64()
	return fmt.Sprintf("%08x-%04x-4%03x-%04x-%012x",
		high>>32, high>>16&0xffff, high&0xfff, low>>48&0x3fff|0x8000, low&0xffffffffffff)
}
