package main

import (
	"cmp"
	"errors"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorm-idempotency/idempotency/internal/demo"
)

// demoVariable names a database for the demo. It is not DATABASE_URL: that is an application's, and a demo has no business
// there unless it is told so.
const demoVariable = "IDEMPOTENCY_DEMO_DSN"

func newDemo() *cobra.Command {
	var options demo.Options
	command := &cobra.Command{
		Use:   "demo",
		Short: "Deliver a storm of duplicate webhooks, and count the effects in the database",
		Long: `Deliver a storm of duplicate webhooks, and count the effects in the database.

The demo starts a webhook receiver on loopback that records orders and payments
through the library, and delivers events to it over HTTP as senders do on a bad
day: each many times, many at once, with handlers that fail or crash, answers
that get lost and bodies that change. Then it counts in the database, with SQL
of its own, how often each event took effect. The exit status is 1 if any
effect happened twice or got lost.

The database is a PostgreSQL that the demo starts with the programs that are
installed on this machine, in a temporary folder, and that is gone afterwards.
With --dsn, or the environment variable ` + demoVariable + `, it is yours:
the demo works in a schema of its own there, idempotency_demo_…, and drops it at
the end. DATABASE_URL is not looked at.

With --payloads each .json file of a folder is delivered as one event. Bodies
of Stripe, Shopify and GitHub are recognised; of any other the event's id is
its member event_id or id, else the file's name.

A delivery is one copy of an event, and takes several HTTP requests if it has
to be sent again. With --seed the payloads and the plan of the storm, its
deliveries and pauses, are the same again. Which request comes first, and how
many each delivery takes, is up to the machine.`,
		Example: `  # with the PostgreSQL programs of this machine
  idempotency demo

  # in a database of yours
  idempotency demo --dsn postgres://user@localhost:5432/postgres

  # with your own webhooks
  idempotency demo --payloads ./testdata/webhooks

  # then deliver by hand, with curl
  idempotency demo --serve --listen 127.0.0.1:8080

  # for a machine
  idempotency demo --json | jq .totals`,
		Args: usage(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			if options.JSON && options.Serve {
				return usageError{errors.New("--json prints one report and ends, so --serve cannot go with it")}
			}
			options.DSN = cmp.Or(options.DSN, os.Getenv(demoVariable))
			options.Screen = screenOn(command.OutOrStdout())
			return demo.Run(command.Context(), options)
		},
	}
	flags := command.Flags()
	flags.SortFlags = false
	flags.StringVar(&options.DSN, "dsn", "", "use this database, not a server of the demo's own")
	flags.StringVar(&options.Payloads, "payloads", "", "deliver the JSON files of the folder `DIR`")
	flags.BoolVar(&options.Serve, "serve", false, "then keep the receiver up for curl, until Ctrl-C")
	flags.StringVar(&options.Listen, "listen", "", "loopback `HOST:PORT` of the receiver (a free port)")
	flags.BoolVar(&options.JSON, "json", false, "print the report as JSON, and nothing else")
	flags.Uint64Var(&options.Seed, "seed", uint64(time.Now().UnixNano())%1_000_000, "payloads and plan of the storm by number `N` (any)")
	nameValues(command, "payloads", "listen", "seed")
	flags.Lookup("seed").DefValue = "0" // keeps the help the same at each call
	return command
}
