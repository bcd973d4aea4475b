package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

const (
	// samplePages is how much of a table is read: 128 MiB of it.
	samplePages = 16384

	// shownSources is how many sources have a line of their own.
	shownSources = 20
)

func newStats() *cobra.Command {
	var d database
	var asJSON bool
	command := &cobra.Command{
		Use:   "stats",
		Short: "Show how many keys there are, of which sources and hours, and what they take",
		Long: `Show how many keys there are, of which sources and hours, and what they take.

At most about 16,384 pages of the table are read, which is 128 MiB, so that it
takes no longer on a table of a billion keys. On a larger table the numbers of
keys are estimated from these pages, which are drawn by lot, and the answer says
so: another call gives slightly different ones, and a source with few keys may
be missing. Sizes are exact.`,
		Example: `  idempotency stats --dsn postgres://user@localhost:5432/shop

  # for a machine
  idempotency stats --json | jq '.sources[] | select(.share > 0.5)'`,
		Args: usage(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			pool, err := d.pool(command.Context())
			if err != nil {
				return err
			}
			defer pool.Close()
			s, err := d.stats(command.Context(), pool, samplePages)
			if err != nil {
				return err
			}
			out := command.OutOrStdout()
			if asJSON {
				return printJSON(out, s)
			}
			return s.print(out, penFor(out))
		},
	}
	d.addFlags(command)
	addJSONFlag(command, &asJSON)
	return command
}

// stats are the answer. Times are the database's, in UTC.
type stats struct {
	Table       string        `json:"table"`
	At          time.Time     `json:"at"`
	Keys        int64         `json:"keys"`
	Exact       bool          `json:"exact"` // else the numbers of keys and answers are estimates
	Pages       int64         `json:"pages"`
	PagesRead   int64         `json:"pages_read"`
	Oldest      *moment       `json:"oldest"` // of the keys read; null: there are none, or their times are infinite
	Bytes       statsBytes    `json:"bytes"`
	Answered    int64         `json:"answered"` // keys with an answer
	AnswerBytes int64         `json:"answer_bytes"`
	Updates     int64         `json:"updates"`
	HOTShare    *float64      `json:"hot_share"` // of the updates; null: there were none
	Sources     []statsSource `json:"sources"`
	Hours       []statsHour   `json:"hours"`
}

type statsBytes struct {
	Total   int64   `json:"total"`
	Table   int64   `json:"table"`
	Indexes int64   `json:"indexes"`
	Toast   int64   `json:"toast"`
	PerKey  float64 `json:"per_key"`
}

type statsSource struct {
	Source string  `json:"source"`
	Keys   int64   `json:"keys"`
	Share  float64 `json:"share"`
}

type statsHour struct {
	Hour time.Time `json:"hour"`
	Keys int64     `json:"keys"` // claimed in it, and not deleted since
}

// stats reads the figures, after making sure that the table is one of keys.
func (d *database) stats(ctx context.Context, pool *sql.DB, pages int64) (*stats, error) {
	table, err := pgsql.ParseTable(d.table)
	if err != nil {
		return nil, err
	}
	var figures pgsql.Stats
	err = read(ctx, pool, func(tx *sql.Tx) error {
		if err := pgsql.CheckSchema(ctx, tx, table); err != nil {
			return err
		}
		distributed, err := pgsql.Distributed(ctx, tx, table)
		if err != nil {
			return err
		}
		if distributed {
			return errors.New("the table is distributed by Citus: its views citus_tables and citus_shards have the figures")
		}
		figures, err = pgsql.ReadStats(ctx, tx, table, pages)
		return err
	})
	if err != nil {
		return nil, err
	}
	return newStatsOf(table, figures), nil
}

func newStatsOf(table pgsql.Table, figures pgsql.Stats) *stats {
	s := &stats{
		Table: table.String(), At: figures.Now.UTC(), Keys: figures.Keys, Exact: figures.Sampled == 1,
		Pages: figures.Pages, PagesRead: int64(float64(figures.Pages)*figures.Sampled + 0.5),
		Bytes: statsBytes{
			Total: figures.TableBytes + figures.IndexBytes + figures.ToastBytes,
			Table: figures.TableBytes, Indexes: figures.IndexBytes, Toast: figures.ToastBytes,
		},
		Answered: figures.Answered, AnswerBytes: figures.AnswerBytes, Updates: figures.Updates,
		Sources: []statsSource{},
	}
	if figures.Keys > 0 {
		s.Bytes.PerKey = float64(s.Bytes.Total) / float64(figures.Keys)
	}
	if !figures.Oldest.IsZero() {
		s.Oldest = momentOf(figures.Oldest)
	}
	if figures.Updates > 0 {
		share := float64(figures.HOTUpdates) / float64(figures.Updates)
		s.HOTShare = &share
	}
	for _, name := range slices.Sorted(maps.Keys(figures.Sources)) {
		keys := figures.Sources[name]
		s.Sources = append(s.Sources, statsSource{Source: name, Keys: keys, Share: float64(keys) / float64(figures.Keys)})
	}
	slices.SortStableFunc(s.Sources, func(a, b statsSource) int { return cmp.Compare(b.Keys, a.Keys) })
	for ago := 23; ago >= 0; ago-- {
		hour := s.At.Truncate(time.Hour).Add(-time.Duration(ago) * time.Hour)
		s.Hours = append(s.Hours, statsHour{Hour: hour, Keys: figures.Hours[hour]})
	}
	return s
}

func (s *stats) print(out io.Writer, p pen) error {
	text := s.summary()
	if s.Keys > 0 {
		text += "\n"
	}
	if _, err := io.WriteString(out, text); err != nil || s.Keys == 0 {
		return err
	}
	if err := s.bySource(p).print(out); err != nil {
		return err
	}
	if _, err := io.WriteString(out, "\n"); err != nil {
		return err
	}
	return s.byHour(p).print(out)
}

// about is a number of keys, or what is made of some.
func (s *stats) about(text string) string {
	if s.Exact {
		return text
	}
	return "about " + text
}

func (s *stats) summary() string {
	text := fmt.Sprintf("%s: %s", s.Table, s.about(count(s.Keys, "key", "keys")))
	if !s.Exact {
		text += fmt.Sprintf(", estimated from %s of %s pages", humanize.Comma(s.PagesRead), humanize.Comma(s.Pages))
	}
	text += fmt.Sprintf("\n\nsize     %s: table %s, indexes %s, TOAST %s", size(s.Bytes.Total), size(s.Bytes.Table), size(s.Bytes.Indexes), size(s.Bytes.Toast))
	if s.Keys > 0 {
		text += fmt.Sprintf("; %s", s.about(fmt.Sprintf("%.0f B a key", s.Bytes.PerKey)))
	}
	if s.Oldest != nil {
		text += fmt.Sprintf("\noldest   %s, %.1f days ago", s.Oldest, float64(s.At.Unix()-s.Oldest.Unix())/day.Seconds())
		if !s.Exact {
			text += ", of those read"
		}
	}
	if s.Keys > 0 {
		text += "\nanswers  " + s.answers()
	}
	text += "\nHOT      "
	if s.HOTShare == nil {
		return text + "no updates\n"
	}
	return text + fmt.Sprintf("%s of %s\n", percent(*s.HOTShare), count(s.Updates, "update", "updates"))
}

func (s *stats) answers() string {
	text := fmt.Sprintf("%s of the keys", percent(float64(s.Answered)/float64(s.Keys)))
	if s.Answered > 0 {
		text += fmt.Sprintf("; %s each, %s of the size", s.about(fmt.Sprintf("%.0f B", float64(s.AnswerBytes)/float64(s.Answered))),
			percent(float64(s.AnswerBytes)/float64(s.Bytes.Total)))
	}
	return text
}

func (s *stats) bySource(p pen) *table {
	t := newTable("source", "keys", "share", "")
	for i, source := range s.Sources {
		if i == shownSources {
			rest := statsSource{Source: fmt.Sprintf("(%s more)", humanize.Comma(int64(len(s.Sources)-i)))}
			for _, other := range s.Sources[i:] {
				rest.Keys += other.Keys
				rest.Share += other.Share
			}
			s.line(t, rest, p)
			break
		}
		s.line(t, source, p)
	}
	return t
}

func (s *stats) line(t *table, source statsSource, p pen) {
	t.row(source.Source, humanize.Comma(source.Keys), percent(source.Share), p.bar(source.Keys, s.Keys))
}

func (s *stats) byHour(p pen) *table {
	var most int64
	for _, hour := range s.Hours {
		most = max(most, hour.Keys)
	}
	t := newTable("hour (UTC)", "keys", "")
	for i, hour := range s.Hours {
		name := hour.Hour.Format("Mon 15:04")
		if i == len(s.Hours)-1 {
			name += " so far"
		}
		t.row(name, humanize.Comma(hour.Keys), p.bar(hour.Keys, most))
	}
	return t
}

func percent(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) }

// size is a number of bytes.
func size(bytes int64) string { return humanize.IBytes(uint64(max(0, bytes))) }
