package idempotency

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

// Defaults and limits of [SweeperConfig].
const (
	defaultBatchSize  = 5000
	defaultMaxBatches = 200
	defaultPause      = 200 * time.Millisecond
	defaultInterval   = 5 * time.Minute

	// maxBatchSize keeps a batch a short transaction: an uncommitted delete blocks a claim of the same key.
	maxBatchSize = 100_000
)

// SweeperConfig sets up a [Sweeper]. The zero value is ready to use; in each field 0 means the default and a negative value
// is refused. What is deleted does not depend on it: that is Config.Retention and SourceConfig.Retention.
type SweeperConfig struct {
	// BatchSize is how many keys one transaction deletes at most, up to 100,000. 5,000 by default.
	BatchSize int

	// MaxBatches is how many batches one Sweep deletes at most. 200 by default.
	MaxBatches int

	// Pause is the time between two batches, for claims and vacuum to get ahead. 200 ms by default.
	Pause time.Duration

	// Interval is the time between two sweeps of Run, jittered by a tenth. 5 minutes by default.
	Interval time.Duration
}

// Sweeper deletes the keys whose retention is over, by the database's clock, in small transactions. Every process of an
// application can run one: only one at a time sweeps a table. Its methods may be called from several goroutines.
type Sweeper struct {
	plugin  *Plugin
	db      *gorm.DB
	config  SweeperConfig
	classes []retentionClass
	brin    *brinKeeper
	turn    chan struct{} // one run at a time in this Sweeper
	due     map[pileName]time.Time
}

// SweepReport is what one run did.
type SweepReport struct {
	Deleted  int64 // keys
	Batches  int   // transactions that deleted any
	CaughtUp bool  // nothing is overdue any more, but for keys that other transactions have locked
	Busy     bool  // another sweeper was at work on the table, and this run left it alone
	Duration time.Duration
}

// NewSweeper returns a sweeper of the table of the plugin that db is registered with. It does no I/O and starts nothing.
//
// Errors: [ConfigError]; [ErrUnsupported] for a handle in a transaction, which would keep every deleted row until it ends;
// those of [Do] for a bad handle.
func NewSweeper(db *gorm.DB, config SweeperConfig) (*Sweeper, error) {
	p, err := usable(db)
	if err != nil {
		return nil, err
	}
	if _, ok := connection(db).(gorm.TxBeginner); !ok {
		return nil, unsupported("a sweeper on a handle in a transaction, or that cannot begin one")
	}
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, err
	}
	return &Sweeper{
		plugin: p, db: db.Session(&gorm.Session{NewDB: true}), config: config, classes: p.config.retentionClasses(),
		brin: newBrinKeeper(), turn: make(chan struct{}, 1), due: make(map[pileName]time.Time),
	}, nil
}

func (c SweeperConfig) withDefaults() SweeperConfig {
	if c.BatchSize == 0 {
		c.BatchSize = defaultBatchSize
	}
	if c.MaxBatches == 0 {
		c.MaxBatches = defaultMaxBatches
	}
	if c.Pause == 0 {
		c.Pause = defaultPause
	}
	if c.Interval == 0 {
		c.Interval = defaultInterval
	}
	return c
}

func (c SweeperConfig) validate() error {
	switch {
	case c.BatchSize < 0 || c.BatchSize > maxBatchSize:
		return &ConfigError{Field: "BatchSize", Reason: fmt.Sprintf("is %d, and must be from 1 to %d", c.BatchSize, maxBatchSize)}
	case c.MaxBatches < 0:
		return &ConfigError{Field: "MaxBatches", Reason: fmt.Sprintf("is %d, and must not be negative", c.MaxBatches)}
	case c.Pause < 0:
		return &ConfigError{Field: "Pause", Reason: fmt.Sprintf("is %v, and must not be negative", c.Pause)}
	case c.Interval < 0:
		return &ConfigError{Field: "Interval", Reason: fmt.Sprintf("is %v, and must not be negative", c.Interval)}
	}
	return nil
}

// retentionClass is the sources that share a retention.
type retentionClass struct {
	class     pgsql.Class
	retention time.Duration
	sources   string // a JSON array; "" for all
}

// args are the arguments of a statement on the class's rows, with what stands between the age and the sources.
func (c retentionClass) args(between ...any) []any {
	args := append([]any{c.retention.Seconds()}, between...)
	if c.class == pgsql.AllSources {
		return args
	}
	return append(args, c.sources)
}

// retentionClasses are the default's class, of all sources that have no retention of their own, and one for each other
// retention, the longest first: it is the one that BRIN serves best.
func (c Config) retentionClasses() []retentionClass {
	bySource := make(map[time.Duration][]string)
	var own []string
	for name, source := range c.Sources {
		if source.Retention != c.Retention {
			bySource[source.Retention] = append(bySource[source.Retention], name)
			own = append(own, name)
		}
	}
	if len(own) == 0 {
		return []retentionClass{{class: pgsql.AllSources, retention: c.Retention}}
	}
	classes := []retentionClass{{class: pgsql.OtherSources, retention: c.Retention, sources: jsonArray(own)}}
	for retention, names := range bySource {
		classes = append(classes, retentionClass{class: pgsql.TheseSources, retention: retention, sources: jsonArray(names)})
	}
	slices.SortFunc(classes, func(a, b retentionClass) int { return cmp.Compare(b.retention, a.retention) })
	return classes
}

func jsonArray(names []string) string {
	slices.Sort(names)
	text, err := json.Marshal(names)
	if err != nil {
		panic(err) // strings always marshal
	}
	return string(text)
}

// Run sweeps at once and then every Interval, until ctx ends, and returns nil then; no goroutine outlives it. A sweep that
// fails is logged and observed, and tried again after a pause that doubles from a second up to the Interval.
func (s *Sweeper) Run(ctx context.Context) error {
	retry := time.Second
	for ctx.Err() == nil {
		pause := s.config.Interval
		if _, err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			s.db.Logger.Error(ctx, "%s", err.Error())
			pause = min(retry, pause)
			retry *= 2
		} else {
			retry = time.Second
		}
		s.sleep(ctx, pause-pause/20+rand.N(pause/10+1)) //nolint:gosec // jitter is no secret
	}
	return nil
}

func (s *Sweeper) sleep(ctx context.Context, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// SweepOnce deletes one batch in a transaction of its own, and returns how many keys it deleted: 0 when nothing is overdue,
// or when another sweeper is at work on the table. Errors are those of [Sweeper.Sweep].
func (s *Sweeper) SweepOnce(ctx context.Context) (int64, error) {
	report, err := s.sweep(ctx, 1)
	return report.Deleted, err
}

// Sweep deletes batches until nothing is overdue, or MaxBatches are done, or ctx ends, and then brings the summaries of the
// BRIN index up to date. Each batch is a transaction of its own: the report says what is deleted, also beside an error.
//
// On a table with several retentions, the shorter ones are swept at most twenty times in their length: the index serves
// the longest best, and the others read more.
//
// Errors: [ErrSchema] for a table that is not ours, before anything is deleted; the context's; the database's.
func (s *Sweeper) Sweep(ctx context.Context) (SweepReport, error) {
	return s.sweep(ctx, s.config.MaxBatches)
}

func (s *Sweeper) sweep(ctx context.Context, batches int) (report SweepReport, err error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return report, fmt.Errorf("idempotency: sweep: %w", ctx.Err())
	}
	began := time.Now()
	defer func() {
		report.Duration = time.Since(began)
		err = withContextError(ctx, err)
		s.plugin.observe(ctx, s.db, Observation{Kind: Swept, Count: report.Deleted, Duration: report.Duration, Err: err})
	}()

	piles, err := s.piles(ctx)
	if err != nil {
		return report, err
	}
	for _, pile := range piles {
		if done, err := s.clear(ctx, pile, batches, &report); err != nil || !done {
			return report, err
		}
	}
	report.CaughtUp = true
	return report, s.brin.keep(ctx, s)
}

// pile is a relation's rows of one retention class.
type pile struct {
	leaf  pgsql.Leaf
	class retentionClass
	byKey bool // Citus has no ctid
}

// piles lists what there is to sweep, after making sure that the table is ours.
func (s *Sweeper) piles(ctx context.Context) ([]pile, error) {
	var leaves []pgsql.Leaf
	var distributed bool
	err := together(ctx, s.db, true, func(e executor) error {
		err := pgsql.CheckSchema(ctx, e.conn, s.plugin.table)
		if err != nil {
			return err
		}
		if distributed, err = pgsql.Distributed(ctx, e.conn, s.plugin.table); err != nil {
			return err
		}
		leaves = []pgsql.Leaf{{Relation: s.plugin.table.Quoted()}}
		if !distributed {
			leaves, err = pgsql.Leaves(ctx, e.conn, s.plugin.table)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("idempotency: sweep: %w", err)
	}
	s.brin.know(leaves)
	var piles []pile
	for i, class := range s.classes {
		for _, leaf := range leaves {
			p := pile{leaf: leaf, class: class, byKey: distributed}
			if i == 0 || !time.Now().Before(s.due[p.name()]) {
				piles = append(piles, p)
			}
		}
	}
	return piles, nil
}

// pileName tells piles apart: two classes can have the same sources, one of them and one of all the others.
type pileName struct {
	relation string
	class    pgsql.Class
	sources  string
}

func (p pile) name() pileName { return pileName{p.leaf.Relation, p.class.class, p.class.sources} }

// clear deletes batches of a pile. It reports whether the run may go on to the next one.
func (s *Sweeper) clear(ctx context.Context, p pile, batches int, report *SweepReport) (bool, error) {
	for report.Batches < batches {
		if report.Batches > 0 {
			s.sleep(ctx, s.config.Pause)
		}
		if err := ctx.Err(); err != nil {
			return false, fmt.Errorf("idempotency: sweep: %w", err)
		}
		deleted, free, err := s.batch(ctx, p)
		if err != nil || !free {
			report.Busy = err == nil
			return false, err
		}
		report.Deleted += deleted
		if deleted > 0 {
			report.Batches++
		}
		if deleted < int64(s.config.BatchSize) {
			s.due[p.name()] = time.Now().Add(p.class.retention / 20)
			return true, nil
		}
	}
	return false, nil
}

// batch deletes at most BatchSize rows. Its transaction holds the lock, the delete and nothing else.
func (s *Sweeper) batch(ctx context.Context, p pile) (deleted int64, free bool, err error) {
	err = together(ctx, s.db, false, func(e executor) error {
		free, err = s.lock(ctx, e)
		if err != nil || !free {
			return err
		}
		if p.byKey {
			deleted, err = e.exec(ctx, "sweep", pgsql.SweepBatchByKey(p.leaf.Relation, p.class.class), p.class.args(s.config.BatchSize)...)
			return err
		}
		return e.query(ctx, "sweep", func(rows *sql.Rows) error {
			var swept sweptRanges
			if err := rows.Scan(&deleted, &swept.transaction, &swept.list); err != nil {
				return err
			}
			s.brin.swept(p.leaf, swept)
			return nil
		}, pgsql.SweepBatch(p.leaf.Relation, p.class.class, p.leaf.Range), p.class.args(s.config.BatchSize)...)
	})
	if err != nil {
		return 0, false, err
	}
	return deleted, free, nil
}

// lock reports whether this sweeper may work on the table in this transaction.
func (s *Sweeper) lock(ctx context.Context, e executor) (free bool, err error) {
	err = e.query(ctx, "lock the table for a sweep", func(rows *sql.Rows) error {
		var planner string
		return rows.Scan(&free, &planner)
	}, pgsql.SweepLock, s.plugin.table.Quoted())
	return free, err
}
