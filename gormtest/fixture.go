package gormtest

import (
	"fmt"
	"net/http"
)

// Fixture is a delivery as its sender makes it, but for the signature. The same number is the same event. The body is small, and
// has the members by which handlers and digests go wrong.
type Fixture struct {
	Source  string // "stripe", "github" or "shopify"
	EventID string // as the sender names it, in the body or in a header
	Header  http.Header
	Body    []byte
}

// Stripe is a payment that succeeded. Its id is in the body. So is the number of deliveries that are outstanding, which differs
// between attempts 1, 2, …: with the plugin's default digest the second attempt is ErrDigestMismatch; a JSONDigest that ignores
// /pending_webhooks makes it a replay.
func Stripe(event, attempt int) Fixture {
	id := fmt.Sprintf("evt_%016d", event)
	body := fmt.Sprintf(`{"id":%q,"object":"event","type":"payment_intent.succeeded","livemode":false,"pending_webhooks":%d,`+
		`"data":{"object":{"id":"pi_%016d","object":"payment_intent","amount":4200,"currency":"eur","status":"succeeded"}}}`,
		id, max(3-attempt, 0), event)
	return Fixture{Source: "stripe", EventID: id, Header: headerOfJSON(), Body: []byte(body)}
}

// GitHub is an issue that was opened. Its id is in the header X-GitHub-Delivery alone, and the same at each redelivery.
func GitHub(event int) Fixture {
	id := fmt.Sprintf("72d3162e-cc78-11e3-81ab-%012x", event)
	header := headerOfJSON()
	header.Set("X-GitHub-Event", "issues") //nolint:canonicalheader // as GitHub writes it
	header.Set("X-GitHub-Delivery", id)    //nolint:canonicalheader // the same
	body := fmt.Sprintf(`{"action":"opened","issue":{"number":%d,"title":"It happened twice"},`+
		`"repository":{"id":1,"full_name":"shop/app"}}`, event)
	return Fixture{Source: "github", EventID: id, Header: header, Body: []byte(body)}
}

// Shopify is an order that was paid. Its id is in the header X-Shopify-Event-Id. X-Shopify-Triggered-At is the event's time, and
// X-Shopify-Webhook-Id is not the event's: a handler that takes that for the id is wrong once an event has two subscriptions.
func Shopify(event int) Fixture {
	id := fmt.Sprintf("98880550-7158-44d4-b7cd-%012x", event)
	header := headerOfJSON()
	header.Set("X-Shopify-Topic", "orders/paid")
	header.Set("X-Shopify-Event-Id", id)
	header.Set("X-Shopify-Webhook-Id", fmt.Sprintf("b54557e4-bdd9-4b37-8a5f-%012x", event))
	header.Set("X-Shopify-Triggered-At", "2025-03-01T12:00:00.000000000Z")
	body := fmt.Sprintf(`{"id":%d,"admin_graphql_api_id":"gid://shopify/Order/%[1]d","financial_status":"paid",`+
		`"total_price":"42.00"}`, 4500000000000+event)
	return Fixture{Source: "shopify", EventID: id, Header: header, Body: []byte(body)}
}

func headerOfJSON() http.Header { return http.Header{"Content-Type": {"application/json"}} }
