package demo

import (
	"context"
	"fmt"

	"github.com/gorm-idempotency/idempotency"
)

// serve keeps the receiver up and shows how to deliver to it by hand, until the context ends.
func serve(ctx context.Context, p *printer, db *database, rc *receiver, journal *journal) error {
	lines := make(chan string, 64)
	journal.listen(func(o idempotency.Observation) {
		select {
		case lines <- reported(o):
		default: // requests do not wait for a slow terminal: it shows fewer of them
		}
	})
	defer journal.listen(nil)
	p.printf("\n")
	p.paragraph(plain, "The receiver is still up at "+rc.url+". In another terminal, deliver an event of yours:")
	for _, try := range tries(rc.url, db) {
		p.printf("\n  %s\n  %s\n", p.paint(faint, "# "+try.what), try.command)
	}
	p.printf("\nEvery request shows here. Ctrl-C ends the demo.\n")
	for p.err == nil {
		select {
		case line := <-lines:
			p.printf("%s\n", line)
		case <-ctx.Done():
			p.printf("\nThe receiver and what the demo made in the database go now.\n")
			return p.err
		}
	}
	return p.err
}

// try is a command for a shell.
type try struct{ what, command string }

func tries(url string, db *database) []try {
	url += "/webhooks/others"
	return []try{
		{"twice, and the answers are equal: the second is a replay", deliverByHand(url, "msg-1", "pro")},
		{"with another body: 422", deliverByHand(url, "msg-1", "free")},
		{"without an id: 400", fmt.Sprintf(`curl -i %s -d '{"plan":"pro"}'`, url)},
		{"ten at once: one effect, and ten times the same answer", fmt.Sprintf(`seq 10 | xargs -P 10 -I%% curl -s %s \
    -H 'Webhook-Id: msg-2' -d '{"plan":"pro"}' -w '\n'`, url)},
		{"what the database holds", db.psql()},
	}
}

func deliverByHand(url, id, plan string) string {
	return fmt.Sprintf(`curl -i %s \
    -H 'Webhook-Id: %s' -d '{"plan":"%s"}'`, url, id, plan)
}

// reported is a line about a request.
func reported(o idempotency.Observation) string {
	text := (&request{outcome: o.Kind, status: -1}).happened()
	if o.Waited >= perceptible {
		text = fmt.Sprintf("waited %d ms, %s", o.Waited.Milliseconds(), text)
	}
	return shorten(fmt.Sprintf("%s %s: %s (%d ms)", o.Source, o.EventID, text, o.Duration.Milliseconds()), lineWidth)
}

// psql shows the rows. The password of a user's DSN is not printed.
func (d *database) psql() string {
	return fmt.Sprintf(`psql -h %s -p %d -U %s -d %s \
    -x -c 'TABLE %s'`, d.config.Host, d.config.Port, d.config.User, d.config.Database, d.table(keysTable))
}
