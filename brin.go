package idempotency

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

// A BRIN index keeps, for each range of pages, the oldest and the newest claim. Vacuum gives swept pages to new rows, and
// summaries only ever widen: after two retention cycles every range claims to hold expired rows, and a sweep that deletes
// nothing reads the whole table. So ranges are summarised anew once their swept rows are dead to everyone.

const (
	// rangesInTurn is how many ranges of each relation are summarised anew in each run whatever happened to them, or a
	// share that gets round them all in about a day of runs. It heals what nobody remembers: a process that ended before
	// its swept rows were dead, another process's sweeps, and snapshots that this role cannot see.
	rangesInTurn  = 4
	runsForAround = 288
)

// sweptRanges are the ranges that one batch deleted rows of.
type sweptRanges struct {
	transaction int64
	list        string // numbers of ranges, with commas
}

// brinKeeper remembers what a sweeper has to summarise anew.
type brinKeeper struct {
	leaves  []pgsql.Leaf
	pending map[string]map[int64]int64 // by relation: the range, and the transaction that last deleted rows of it
	next    map[string]int64           // by relation: the range whose turn it is
	denied  bool                       // the role may not: said once
}

func newBrinKeeper() *brinKeeper {
	return &brinKeeper{pending: make(map[string]map[int64]int64), next: make(map[string]int64)}
}

// know takes the relations of this run. One that is gone is forgotten.
func (b *brinKeeper) know(leaves []pgsql.Leaf) {
	b.leaves = leaves
	for relation := range b.pending {
		if !slices.ContainsFunc(leaves, func(l pgsql.Leaf) bool { return l.Relation == relation && l.Brin != "" }) {
			delete(b.pending, relation)
		}
	}
}

func (b *brinKeeper) swept(leaf pgsql.Leaf, swept sweptRanges) {
	if leaf.Brin == "" || swept.list == "" {
		return
	}
	if b.pending[leaf.Relation] == nil {
		b.pending[leaf.Relation] = make(map[int64]int64)
	}
	for text := range strings.SplitSeq(swept.list, ",") {
		if number, err := strconv.ParseInt(text, 10, 64); err == nil {
			b.pending[leaf.Relation][number] = swept.transaction
		}
	}
}

// keep summarises anew what is due, after a run that has caught up. Where the role may not, or a vacuum is at work, the
// sweeps go on without.
func (b *brinKeeper) keep(ctx context.Context, s *Sweeper) error {
	if b.denied {
		clear(b.pending)
		return nil
	}
	alive, err := s.oldestAlive(ctx)
	if err != nil {
		return err
	}
	for _, leaf := range b.leaves {
		for _, number := range b.due(leaf, alive) {
			err := s.resummarize(ctx, leaf, number)
			switch pgsql.State(err) {
			case "":
				if err != nil {
					return err
				}
				if b.pending[leaf.Relation][number] < alive { // else its turn came before its rows were dead
					delete(b.pending[leaf.Relation], number)
				}
			case "55P03": // lock_not_available: autovacuum is at work, and the next run will do
				return nil
			case "42501": // insufficient_privilege
				b.denied = true
				s.db.Logger.Warn(ctx, fmt.Sprintf("idempotency: this role may not summarise %s anew, so that sweeps will read more "+
					"and more of the table; grant it membership in the role that owns the table", leaf.Brin))
				return nil
			default:
				return err
			}
		}
	}
	return nil
}

// due are the ranges to summarise anew: the swept ones whose rows are dead to everyone, those whose turn it is, and the last
// one, which is not full and which vacuum therefore leaves alone.
func (b *brinKeeper) due(leaf pgsql.Leaf, alive int64) []int64 {
	count := (leaf.Pages + leaf.Range - 1) / max(leaf.Range, 1)
	if leaf.Brin == "" || count == 0 {
		return nil
	}
	var due []int64
	for number, transaction := range b.pending[leaf.Relation] {
		if transaction < alive {
			due = append(due, number)
		}
	}
	next, known := b.next[leaf.Relation]
	if !known {
		next = rand.N(count) //nolint:gosec // no secret: a process that is started for each run must not begin with the same ones
	}
	for range min(count, max(rangesInTurn, count/runsForAround)) {
		due = append(due, next%count)
		next++
	}
	b.next[leaf.Relation] = next % count
	due = append(due, count-1)
	slices.Sort(due)
	return slices.Compact(due)
}

// oldestAlive is the number of the oldest transaction whose deletions may still be alive to somebody.
func (s *Sweeper) oldestAlive(ctx context.Context) (int64, error) {
	var number int64
	err := together(ctx, s.db, true, func(e executor) error {
		return e.query(ctx, "look for old snapshots", func(rows *sql.Rows) error { return rows.Scan(&number) }, pgsql.Horizon)
	})
	return number, err
}

func (s *Sweeper) resummarize(ctx context.Context, leaf pgsql.Leaf, number int64) error {
	return together(ctx, s.db, false, func(e executor) error {
		if _, err := e.exec(ctx, "limit the wait for the index", pgsql.ResummarizeTimeout); err != nil {
			return err
		}
		_, err := e.exec(ctx, "summarise the index anew", pgsql.Resummarize, leaf.Brin, number*leaf.Range)
		return err
	})
}
