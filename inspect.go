package idempotency

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

// Severity says how soon somebody has to look at a [Finding].
type Severity int

// The severities. Only those from Warning on keep a [Report] from being healthy.
const (
	Note     Severity = iota // good to know: what costs more than it has to, or could not be told for certain
	Warning                  // works, and will not for ever: look at it within a day
	Critical                 // deliveries fail, or events take effect again: look at it now
)

// String is the severity as a word that can serve as a label.
func (s Severity) String() string {
	switch s {
	case Note:
		return "note"
	case Warning:
		return "warning"
	case Critical:
		return "critical"
	}
	return fmt.Sprintf("severity(%d)", int(s))
}

// MarshalText is String, for JSON and logs.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (s *Severity) UnmarshalText(text []byte) error {
	for _, known := range []Severity{Note, Warning, Critical} {
		if known.String() == string(text) {
			*s = known
			return nil
		}
	}
	return fmt.Errorf("idempotency: %.32q is not a severity: want note, warning or critical", text)
}

// Finding is something about the table that is not as it should be. A report has at most one of each Check.
type Finding struct {
	Check    string   `json:"check"`    // a word that stays the same from version to version, for alerts: "overdue-keys"
	Severity Severity `json:"severity"` // as a word in JSON
	Message  string   `json:"message"`  // a sentence, with numbers and their units
	Remedy   string   `json:"remedy"`   // what to run or to change
}

// Skipped is a check that could not be made, or not in full, so that no finding of it says nothing.
type Skipped struct {
	Check  string `json:"check"`
	Reason string `json:"reason"`
}

// Report is what [Inspect] found. The numbers are for a graph; one whose check is in Skipped may be 0. In JSON durations are
// numbers of seconds.
type Report struct {
	Table    string    `json:"table"`    // as in Config.Table
	Findings []Finding `json:"findings"` // the most severe first; never nil
	Skipped  []Skipped `json:"skipped"`  // never nil

	// Keys and Overdue are estimates from the sample, and exact where SampledPages is Pages. Overdue are the keys that are
	// older than their retention by more than a tenth of it and more than a day.
	Keys         int64 `json:"keys"`
	Overdue      int64 `json:"overdue_keys"`
	Pages        int64 `json:"pages"`         // of the table's rows, 8 KiB each
	SampledPages int64 `json:"sampled_pages"` // about 256 at most, chosen at random

	OldestClaim time.Duration `json:"-"` // the age of the oldest key in the sample; "oldest_claim_seconds" in JSON

	TableBytes int64 `json:"table_bytes"` // with large answers, and room for new rows
	IndexBytes int64 `json:"index_bytes"`

	// Counters since the server's statistics were last reset. The share of HOT updates is HOTUpdates / Updates.
	Updates    int64 `json:"updates"`
	HOTUpdates int64 `json:"hot_updates"`
	DeadRows   int64 `json:"dead_rows"` // deleted, and not yet removed by VACUUM

	// Holding transactions have written to the table and not ended: they hold keys. Waiting ones wait for a lock, on the
	// table or with a key in hand. The lists have the 20 oldest of each.
	Holding int      `json:"holding"`
	Waiting int      `json:"waiting"`
	Holders []Holder `json:"holders"`
	Waiters []Waiter `json:"waiters"`
}

// Holder is a transaction that has written to the table and not ended.
type Holder struct {
	PID         int           `json:"pid"`         // of its backend; 0 for a prepared transaction
	Prepared    string        `json:"prepared"`    // that one's identifier, for ROLLBACK PREPARED; else ""
	User        string        `json:"user"`        // its role
	Application string        `json:"application"` // its application_name
	State       string        `json:"state"`       // as in pg_stat_activity, such as "idle in transaction"; "" where this role may not see it
	Held        time.Duration `json:"-"`           // since it began; 0 where this role may not see it; "held_seconds" in JSON

	// Keys is how many advisory locks it holds: one a key, and the application's own. Locks are the first five of them, as
	// classid/objid in pg_locks. A transaction with none writes to the table without this library, or claims many keys.
	Keys  int      `json:"keys"`
	Locks []string `json:"locks"`
}

// Waiter is a backend that waits for a lock, on the table or with a key in hand.
type Waiter struct {
	PID         int           `json:"pid"`
	User        string        `json:"user"`
	Application string        `json:"application"`
	Waited      time.Duration `json:"-"`          // since its statement began; 0 where this role may not see it; "waited_seconds" in JSON
	BlockedBy   []int         `json:"blocked_by"` // the backends that it waits for; 0 is a prepared transaction
}

// Healthy reports whether no finding is a [Warning] or worse. A check that was skipped does not make a report unhealthy.
func (r Report) Healthy() bool {
	return !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Severity >= Warning })
}

// MarshalJSON writes durations as seconds.
func (r Report) MarshalJSON() ([]byte, error) {
	type plain Report
	return json.Marshal(struct {
		plain

		Healthy     bool    `json:"healthy"`
		OldestClaim float64 `json:"oldest_claim_seconds"`
	}{plain(r), r.Healthy(), r.OldestClaim.Seconds()})
}

// MarshalJSON writes durations as seconds.
func (h Holder) MarshalJSON() ([]byte, error) {
	type plain Holder
	return json.Marshal(struct {
		plain

		Held float64 `json:"held_seconds"`
	}{plain(h), h.Held.Seconds()})
}

// MarshalJSON writes durations as seconds.
func (w Waiter) MarshalJSON() ([]byte, error) {
	type plain Waiter
	return json.Marshal(struct {
		plain

		Waited float64 `json:"waited_seconds"`
	}{plain(w), w.Waited.Seconds()})
}

// Inspect looks at the table of keys as an operator would: whether rows are swept in time, who holds keys and who waits for
// them, whether its indexes and settings are as they should be, whether somebody deletes keys too early. It goes by the
// Config of the plugin that db is registered with: retentions and sources.
//
// It is cheap enough for every minute, however large the table is: it reads catalogues, counters, the index of claims that
// were never completed, and the rows of about 256 pages chosen at random, of which it estimates the rest. It writes nothing,
// and each of its transactions is read-only and gives up after 500 ms of waiting for a lock and 5 s of anything else: the
// checks it then has no answer to are in Report.Skipped, as are those that this role may not make. To see the sessions of
// other roles it needs pg_read_all_stats, which pg_monitor includes.
//
// What is wrong with the table is a finding and no error: errors are those of [Do] for a bad handle; [ErrUnsupported] for a
// handle in a transaction, which the limits above would change for the statements that come after; the context's; and the
// database's, such as a lost connection. The report is nil exactly when the error is not.
func Inspect(ctx context.Context, db *gorm.DB) (*Report, error) {
	return inspect(ctx, db, usualLimits)
}

// limits are where an inspection begins to find fault.
type limits struct {
	pages    int64         // that a sample reads
	held     time.Duration // by one transaction
	waited   time.Duration // for a lock
	snapshot time.Duration // how long one may keep deleted rows

	updates int64 // before their HOT share says something
	dead    int64 // rows, if they outnumber the live ones
	scans   int64 // of the BRIN index, before their average says something
	ranges  int64 // pages that the BRIN index may lead a scan to, if they are a tenth of the table
	index   int64 // pages that the index of incomplete claims may have for being read
}

var usualLimits = limits{
	pages: 256, held: time.Minute, waited: 10 * time.Second, snapshot: time.Hour,
	updates: 10_000, dead: 100_000, scans: 100, ranges: 1024, index: 32,
}

// inspection is one under way.
type inspection struct {
	plugin *Plugin
	limits limits
	report *Report

	server  pgsql.Server
	stores  []pgsql.Store
	indexes []pgsql.Index
}

// step is a part of an inspection, in a transaction of its own: what keeps it from an answer keeps no other.
type step struct {
	checks []string
	look   func(context.Context, executor) error
}

func inspect(ctx context.Context, db *gorm.DB, limits limits) (*Report, error) {
	p, err := usable(db)
	if err != nil {
		return nil, err
	}
	if inTransaction(connection(db)) {
		return nil, unsupported("an inspection on a handle in a transaction: give it one that is in none")
	}
	i := &inspection{plugin: p, limits: limits, report: &Report{
		Table: p.table.String(), Findings: []Finding{}, Skipped: []Skipped{}, Holders: []Holder{}, Waiters: []Waiter{},
	}}
	i.sourcesWithoutHorizon()
	for _, s := range i.steps() {
		goOn, err := i.take(ctx, db, s)
		if err != nil {
			return nil, withContextError(ctx, fmt.Errorf("idempotency: inspect: %w", err))
		}
		if !goOn {
			break
		}
	}
	slices.SortStableFunc(i.report.Findings, func(a, b Finding) int { return cmp.Compare(b.Severity, a.Severity) })
	return i.report, nil
}

func (i *inspection) steps() []step {
	return []step{
		{[]string{checkSchema}, i.lookAtSchema},
		{[]string{checkPrivileges}, i.lookAtServer},
		{[]string{checkLongHolder, checkWaiting, checkOldSnapshot}, i.lookAtSessions},
		{[]string{
			checkMissingIndex, checkInvalidIndex, checkAutosummarize, checkStaleBrin,
			checkAutovacuum, checkDeadRows, checkFillFactor, checkHOT,
		}, i.lookAtCatalogue},
		{[]string{checkIncomplete}, i.lookForIncomplete},
		{[]string{checkOverdue, checkDeletedEarly}, i.lookAtSample},
	}
}

// errStop ends an inspection that has nothing more to look at.
var errStop = errors.New("nothing more to look at")

// take makes a step. It reports whether the inspection may go on to the next one.
func (i *inspection) take(ctx context.Context, db *gorm.DB, s step) (bool, error) {
	err := together(ctx, db, true, func(e executor) error {
		if _, err := e.exec(ctx, "bound the inspection", pgsql.Bound); err != nil {
			return err
		}
		return s.look(ctx, e)
	})
	switch reason := unanswered(ctx, err); {
	case err == nil:
		return true, nil
	case errors.Is(err, errStop):
		return false, nil
	case reason != "":
		for _, check := range s.checks {
			i.skip(check, reason)
		}
		return true, nil
	}
	return false, err
}

// unanswered says why an inspection gets no answer that it can do without; "" for any other error. lib/pq calls the context's
// end by the server's name for a timeout, too.
func unanswered(ctx context.Context, err error) string {
	if ctx.Err() != nil {
		return ""
	}
	switch pgsql.State(err) {
	case "42501": // insufficient_privilege
		return "this role may not look: grant it SELECT on the table"
	case "55P03": // lock_not_available
		return "the table is locked by another transaction, and waiting for it would add to the trouble"
	case "57014": // query_canceled
		return "the server took longer than 5 s for it"
	}
	return ""
}

func (i *inspection) find(f Finding) { i.report.Findings = append(i.report.Findings, f) }

func (i *inspection) skip(check, reason string) {
	i.report.Skipped = append(i.report.Skipped, Skipped{Check: check, Reason: reason})
}

// skipRest is for when nothing that comes after the first step can be looked at.
func (i *inspection) skipRest(reason string) error {
	for _, s := range i.steps()[1:] {
		for _, check := range s.checks {
			i.skip(check, reason)
		}
	}
	return errStop
}

func (i *inspection) lookAtSchema(ctx context.Context, e executor) error {
	err := pgsql.CheckSchema(ctx, e.conn, i.plugin.table)
	if errors.Is(err, ErrSchema) {
		i.unusable(err)
		return i.skipRest("the table cannot be used as it is")
	}
	if err != nil {
		return err
	}
	distributed, err := pgsql.Distributed(ctx, e.conn, i.plugin.table)
	if err == nil && distributed {
		return i.skipRest("Citus has spread the table over other servers, which have to be looked at one by one")
	}
	return err
}

func (i *inspection) lookAtServer(ctx context.Context, e executor) (err error) {
	if i.server, err = pgsql.ReadServer(ctx, e.conn, i.plugin.table); err != nil {
		return err
	}
	unsweepable, err := pgsql.Unsweepable(ctx, e.conn, i.plugin.table)
	if err == nil {
		i.privileges(unsweepable)
	}
	return err
}

func (i *inspection) lookAtSessions(ctx context.Context, e executor) error {
	if i.server.Standby {
		for _, check := range []string{checkLongHolder, checkWaiting, checkOldSnapshot} {
			i.skip(check, standby)
		}
		return nil
	}
	holders, holding, err := pgsql.Holders(ctx, e.conn, i.plugin.table)
	if err != nil {
		return err
	}
	waiters, waiting, err := pgsql.Waiters(ctx, e.conn, i.plugin.table)
	if err != nil {
		return err
	}
	snapshot, err := pgsql.OldestSnapshot(ctx, e.conn, i.plugin.table)
	if err != nil {
		return err
	}
	hidden, err := pgsql.Hidden(ctx, e.conn, i.plugin.table)
	if err != nil {
		return err
	}
	i.report.Holding, i.report.Waiting = holding, waiting
	for _, h := range holders {
		i.report.Holders = append(i.report.Holders, Holder{
			PID: h.PID, Prepared: h.Prepared, User: h.User, Application: h.Application, State: h.State,
			Held: h.Age, Keys: h.Keys, Locks: append([]string{}, h.Locks...),
		})
	}
	for _, w := range waiters {
		i.report.Waiters = append(i.report.Waiters, Waiter{
			PID: w.PID, User: w.User, Application: w.Application, Waited: w.Waiting, BlockedBy: append([]int{}, w.BlockedBy...),
		})
	}
	i.longHolder()
	i.longWaiter()
	i.oldSnapshot(snapshot)
	i.hiddenSessions(hidden)
	return nil
}

func (i *inspection) lookAtCatalogue(ctx context.Context, e executor) (err error) {
	if i.stores, err = pgsql.Stores(ctx, e.conn, i.plugin.table); err != nil {
		return err
	}
	if i.indexes, err = pgsql.Indexes(ctx, e.conn, i.plugin.table); err != nil {
		return err
	}
	for _, s := range i.stores {
		i.report.Pages += s.Pages
		i.report.TableBytes += s.TableBytes
		i.report.IndexBytes += s.IndexBytes
		i.report.Updates += s.Updates
		i.report.HOTUpdates += s.HOTUpdates
		i.report.DeadRows += s.Dead
	}
	i.missingIndexes()
	i.invalidIndexes()
	i.autosummarize()
	i.autovacuum()
	i.fillFactor()
	if i.server.Standby {
		for _, check := range []string{checkStaleBrin, checkDeadRows, checkHOT} {
			i.skip(check, standby)
		}
		return nil
	}
	i.staleBrin()
	i.deadRows()
	i.hotUpdates()
	return nil
}

const standby = "the server is a standby, which does not know the primary's sessions and counters"

// incompleteCounted is how many claims that were never completed are counted one by one.
const incompleteCounted = 100

func (i *inspection) lookForIncomplete(ctx context.Context, e executor) error {
	if reason := i.incompleteUnreadable(); reason != "" {
		i.skip(checkIncomplete, reason)
		return nil
	}
	count, oldest, err := pgsql.Incomplete(ctx, e.conn, i.plugin.table, incompleteCounted+1)
	if err == nil && count > 0 {
		i.incomplete(count, oldest)
	}
	return err
}

// incompleteUnreadable says why the index of incomplete claims cannot be gone by. It is empty where nothing but this library
// writes to the table; one that is full of dead entries is as large as other code has made it.
func (i *inspection) incompleteUnreadable() string {
	if len(i.stores) == 0 {
		return "the table's relations could not be read"
	}
	var pages int64
	for _, store := range i.stores {
		at := slices.IndexFunc(i.indexes, func(x pgsql.Index) bool { return x.Store == store.Name && x.Incomplete && x.Valid })
		if at < 0 {
			return "it goes by the index of incomplete claims, which is missing or invalid"
		}
		pages += max(i.indexes[at].Pages-2, 0) // two are those of a next to empty one
	}
	if pages > i.limits.index {
		return fmt.Sprintf("the index of incomplete claims has %s pages, and should be empty: code that completes its claims "+
			"later fills it; REINDEX it and look again", grouped(pages))
	}
	return ""
}

func (i *inspection) lookAtSample(ctx context.Context, e executor) error {
	if len(i.stores) == 0 {
		for _, check := range []string{checkOverdue, checkDeletedEarly} {
			i.skip(check, "the table's size could not be read")
		}
		return nil
	}
	first, err := i.sample(ctx, e)
	if err != nil {
		return err
	}
	i.report.SampledPages = min(i.report.Pages, i.limits.pages)
	i.report.Keys, i.report.Overdue = first.estimate(first.keys), first.estimate(first.overdue)
	i.report.OldestClaim = first.oldest
	i.overdue(first)
	return i.lookForDeletedEarly(ctx, e, first)
}

// sample is what a part of the table's pages, chosen at random, holds.
type sample struct {
	percent       float64 // of the pages
	keys, overdue int64
	oldest        time.Duration
	worst         pgsql.Sampled // the retention with most overdue keys
}

// estimate is a number for the whole table.
func (s sample) estimate(sampled int64) int64 { return int64(float64(sampled) * 100 / s.percent) }

// Keys are overdue when they are older than their retention by a tenth of it, or a day if that is more: a job that sweeps
// once a night is in time.
const (
	overdueShare = 0.1
	overdueLeast = 24 * time.Hour
)

func (i *inspection) sample(ctx context.Context, e executor) (sample, error) {
	s := sample{percent: 100}
	if i.report.Pages > i.limits.pages {
		s.percent = 100 * float64(i.limits.pages) / float64(i.report.Pages)
	}
	parts, err := pgsql.Sample(ctx, e.conn, i.plugin.table, s.percent, pgsql.SampleClasses{
		Sources: i.plugin.config.retentionBySource(), Retention: i.plugin.config.Retention.Seconds(),
		Slack: overdueLeast.Seconds(), Share: overdueShare,
	})
	for _, part := range parts {
		s.keys += part.Keys
		s.overdue += part.Overdue
		s.oldest = max(s.oldest, part.Oldest)
		if part.Overdue > s.worst.Overdue {
			s.worst = part
		}
	}
	return s, err
}

// retentionBySource is a JSON object of seconds.
func (c Config) retentionBySource() string {
	seconds := make(map[string]float64, len(c.Sources))
	for name, source := range c.Sources {
		seconds[name] = source.Retention.Seconds()
	}
	text, err := json.Marshal(seconds)
	if err != nil {
		panic(err) // strings and finite numbers always marshal
	}
	return string(text)
}

// vanishedShare of the keys has to be gone too early for a finding: a sample misses so many that are there about once in a
// million times, and two of them never.
const vanishedShare = 0.05

// vanishedSpan is the part of the retention by which the oldest key that is gone has to be older than the oldest that is
// left: the sample may lack the oldest of many keys that are about as old.
const vanishedSpan = 20

// lookForDeletedEarly compares what the planner's statistics saw with what is left. Counters of deletions prove nothing, since
// nobody knows how old the deleted keys were; keys that were seen and are gone before they could be due do.
func (i *inspection) lookForDeletedEarly(ctx context.Context, e executor, first sample) error {
	classes := i.plugin.config.retentionClasses()
	kept := classes[len(classes)-1].retention // the shortest
	gone, err := pgsql.FindVanished(ctx, e.conn, i.plugin.table, first.oldest, kept)
	if err != nil || gone.Share < vanishedShare {
		return err
	}
	second, err := i.sample(ctx, e)
	if err != nil {
		return err
	}
	oldest := max(first.oldest, second.oldest)
	gone, err = pgsql.FindVanished(ctx, e.conn, i.plugin.table, oldest, kept)
	if err == nil && gone.Share >= vanishedShare && gone.Oldest-oldest > kept/vanishedSpan {
		i.deletedEarly(gone, oldest, kept)
	}
	return err
}
