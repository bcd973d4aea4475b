package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

func newForget() *cobra.Command {
	var d database
	var yes, asJSON bool
	command := &cobra.Command{
		Use:   "forget SOURCE ID",
		Short: "Delete one key, so that the next delivery of its event takes effect again",
		Long: `Delete one key, so that the next delivery of its event takes effect again.

It shows the key, and asks before it deletes it. First undo the effect that the
event has had: nothing else does. What was answered stays answered. There is no
way back but another delivery of the event.

A key that a delivery holds right now is not there yet, and cannot be deleted.

The exit status is 0 if the key was deleted, and 1 if not, also where there is
no such key.`,
		Example: `  idempotency forget stripe evt_1Nv0FGQ9RKHgCVdK

  # without the question, in a script
  idempotency forget stripe evt_1Nv0FGQ9RKHgCVdK --yes

  # an id that begins with a dash
  idempotency forget --yes -- stripe -evt`,
		Args: arguments("SOURCE", "ID"),
		RunE: func(command *cobra.Command, args []string) error {
			ctx, out := command.Context(), command.OutOrStdout()
			db, pool, err := d.open(ctx, idempotency.Config{}, command.ErrOrStderr())
			if err != nil {
				return err
			}
			defer pool.Close()
			if err := idempotency.CheckSchema(ctx, db); err != nil {
				return err
			}
			key, err := d.lookupAlone(ctx, db, args[0], args[1])
			if errors.Is(err, idempotency.ErrKeyNotFound) {
				return d.notFound(ctx, pool, args[0], args[1])
			}
			if err != nil {
				return err
			}
			if !yes {
				_, _ = fmt.Fprintln(command.ErrOrStderr(), describe(key))
				if err := confirm(command, "Delete it, so that the event takes effect again at its next delivery?"); err != nil {
					return err
				}
			}
			if err := d.forget(ctx, db, key); err != nil {
				return err
			}
			if asJSON {
				return printJSON(out, forgotten{Source: key.Source, EventID: key.EventID, ClaimedAt: key.claimed})
			}
			_, err = fmt.Fprintf(out, "Deleted the key of event %q of source %q, claimed at %s.\n", key.EventID, key.Source, key.claimed)
			return err
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	d.addFlags(command)
	command.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	addJSONFlag(command, &asJSON)
	return command
}

// forgotten is the answer.
type forgotten struct {
	Source    string  `json:"source"`
	EventID   string  `json:"event_id"`
	ClaimedAt *moment `json:"claimed_at"`
}

// forget deletes the key that was shown and no later one: if somebody else was quicker, and the event has taken effect again
// since, it would take effect once too often.
func (d *database) forget(ctx context.Context, db *gorm.DB, shown *storedKey) error {
	return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		now, err := d.lookup(ctx, tx, shown.Source, shown.EventID)
		switch {
		case errors.Is(err, idempotency.ErrKeyNotFound):
			return errors.New("the key was deleted by somebody else meanwhile: nothing was done")
		case err != nil:
			return err
		case !now.claimed.equal(shown.claimed):
			return fmt.Errorf("the key was deleted by somebody else meanwhile, and claimed again at %s: nothing was done", now.claimed)
		}
		return idempotency.Forget(ctx, tx, shown.Source, shown.EventID)
	}, &sql.TxOptions{Isolation: sql.LevelRepeatableRead}) // so that a change between the two is an error
}

// notFound says why there is no key.
func (d *database) notFound(ctx context.Context, pool *sql.DB, source, id string) error {
	table, err := pgsql.ParseTable(d.table)
	if err != nil {
		return err
	}
	var holder *pgsql.Session
	err = read(ctx, pool, func(tx *sql.Tx) error {
		holder, err = pgsql.HolderOf(ctx, tx, table, source, id)
		return err
	})
	switch {
	case err != nil:
		return err
	case holder != nil:
		return fmt.Errorf("event %q of source %q is in flight: %s holds its key and has not committed it", id, source, holderName(holder))
	default:
		return fmt.Errorf("there is no key of event %q of source %q in %s: it was never claimed, or it was deleted since", id, source, table)
	}
}

func holderName(holder *pgsql.Session) string {
	name := fmt.Sprintf("backend %d", holder.PID)
	if holder.Prepared != "" {
		name = fmt.Sprintf("the prepared transaction %q", holder.Prepared)
	}
	if holder.Visible() {
		name += ", in a transaction since " + instant(holder.Since) + ","
	}
	return name
}

// describe is what there is to know before the question.
func describe(key *storedKey) string {
	answer := "no answer"
	if key.ResponseStatus != nil {
		answer = fmt.Sprintf("the answer %d of %s", *key.ResponseStatus, count(int64(len(key.ResponseRaw)), "byte", "bytes"))
	}
	state := ", with " + answer
	if key.completed == nil {
		state = ", and never completed: other code than the library wrote it"
	}
	return fmt.Sprintf("Event %q of source %q was claimed at %s%s.", key.EventID, key.Source, key.claimed, state)
}

// instant is a time as messages have it.
func instant(at time.Time) string { return at.UTC().Format(time.DateTime) + " UTC" }
