package main

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/schollz/progressbar/v3"
)

// progress shows how far a sweep has got.
type progress interface {
	update(result sweepResult)
	end()
}

// countLimit is how long a bar may keep the sweep from beginning, to find out how long it has to be.
const countLimit = 2 * time.Second

// lineInterval is the least time between two lines of a log.
const lineInterval = 10 * time.Second

// progress is a bar on a terminal, and elsewhere a line every now and then.
func (s *sweep) progress(ctx context.Context, pool *sql.DB, out io.Writer) progress {
	if screenOn(out).Size == nil {
		return &lines{out: out, began: time.Now(), next: time.Now().Add(lineInterval)}
	}
	return newBar(out, s.expected(ctx, pool))
}

// expected is how many keys there are to delete, or -1 if it would take long to know.
func (s *sweep) expected(ctx context.Context, pool *sql.DB) int64 {
	counted, err := s.overdue(ctx, pool, countLimit)
	if err != nil {
		return -1 // the sweep itself will say what is wrong, if anything is
	}
	if limit := int64(s.maxBatches) * int64(s.batchSize); limit > 0 {
		return min(limit, counted.Overdue)
	}
	return counted.Overdue
}

// bar is for a terminal. It is gone when the sweep has ended.
type bar struct {
	drawn   *progressbar.ProgressBar
	length  int64 // -1: not known
	deleted int64
}

func newBar(out io.Writer, length int64) *bar {
	b := &bar{length: length}
	options := []progressbar.Option{
		progressbar.OptionSetWriter(out),
		progressbar.OptionSetDescription(b.caption()),
		progressbar.OptionFullWidth(),
		progressbar.OptionSetRenderBlankState(true),
		progressbar.OptionSetSpinnerChangeInterval(0), // else a goroutine draws beside this one, and does not end
	}
	if !readsUTF8() {
		options = append(options, progressbar.OptionSetTheme(progressbar.ThemeASCII))
	}
	b.drawn = progressbar.NewOptions64(b.ahead(), options...)
	return b
}

func (b *bar) update(result sweepResult) {
	b.deleted = result.Deleted
	if b.length >= 0 && b.deleted > b.length { // keys expire meanwhile
		b.length = b.deleted
		b.drawn.ChangeMax64(b.ahead())
	}
	b.drawn.Describe(b.caption())
	_ = b.drawn.Set64(b.deleted)
}

// ahead is a number that is never reached: the bar would take it for the end, and show no more.
func (b *bar) ahead() int64 {
	if b.length < 0 {
		return -1
	}
	return b.length + 1
}

func (b *bar) caption() string {
	if b.length < 0 {
		return humanize.Comma(b.deleted) + " keys deleted"
	}
	return fmt.Sprintf("%s of %s deleted", humanize.Comma(b.deleted), count(b.length, "key", "keys"))
}

func (b *bar) end() { _ = b.drawn.Clear() }

// lines are for a log.
type lines struct {
	out   io.Writer
	began time.Time
	next  time.Time
}

func (l *lines) update(result sweepResult) { l.updateAt(time.Now(), result) }

func (l *lines) updateAt(now time.Time, result sweepResult) {
	if now.Before(l.next) {
		return
	}
	l.next = now.Add(lineInterval)
	elapsed := now.Sub(l.began).Seconds()
	_, _ = fmt.Fprintf(l.out, "sweeping: %s deleted in %s, %.0f s, %s/s\n", count(result.Deleted, "key", "keys"),
		count(int64(result.Batches), "batch", "batches"), elapsed, count(int64(float64(result.Deleted)/elapsed), "key", "keys"))
}

func (*lines) end() {}
