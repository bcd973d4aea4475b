package idempotency

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

// The checks, as Finding.Check has them.
const (
	checkSchema        = "schema"
	checkPrivileges    = "privileges"
	checkLongHolder    = "long-holder"
	checkWaiting       = "waiting"
	checkOldSnapshot   = "old-snapshot"
	checkMissingIndex  = "missing-index"
	checkInvalidIndex  = "invalid-index"
	checkAutosummarize = "autosummarize"
	checkStaleBrin     = "stale-brin"
	checkAutovacuum    = "autovacuum"
	checkDeadRows      = "dead-rows"
	checkFillFactor    = "fill-factor"
	checkHOT           = "hot-updates"
	checkIncomplete    = "incomplete-claims"
	checkOverdue       = "overdue-keys"
	checkDeletedEarly  = "deleted-early"
	checkNoHorizon     = "no-retry-horizon"
)

func (i *inspection) unusable(err error) {
	i.find(Finding{
		Check: checkSchema, Severity: Critical,
		Message: capitalised(err.Error()) + ".",
		Remedy:  "Run the migrations (migrations.Up, or the command idempotency migrate up); what they leave is to be mended as the message says.",
	})
}

// privileges is a note: a service that claims and a job that sweeps may well have roles of their own.
func (i *inspection) privileges(unsweepable []string) {
	s := i.server
	var lacking []string
	for _, right := range []struct {
		name string
		has  bool
	}{{"SELECT", s.Select}, {"INSERT", s.Insert}, {"UPDATE", s.Update}, {"DELETE", s.Delete}} {
		if !right.has {
			lacking = append(lacking, right.name)
		}
	}
	message, grant := "", ""
	if len(lacking) > 0 {
		message = fmt.Sprintf("The role %q has no right to %s on the table: deliveries need SELECT, INSERT and UPDATE, and sweeps SELECT, UPDATE and DELETE. ",
			s.Role, strings.Join(lacking, ", "))
		grant = fmt.Sprintf("If this role has to deliver or sweep: GRANT %s ON %s TO %q. ", strings.Join(lacking, ", "), i.plugin.table.Quoted(), s.Role)
	}
	if len(unsweepable) > 0 {
		message += fmt.Sprintf("The role %q may not sweep each partition, where its rights on the table count for nothing: %s. ", s.Role, enumerated(unsweepable))
		grant += fmt.Sprintf("If this role has to sweep: GRANT SELECT, UPDATE, DELETE ON %s TO %q. ", strings.Join(unsweepable, ", "), s.Role)
	}
	if !s.Owner {
		message += fmt.Sprintf("The role %q is no member of the role that owns the table, so its sweeps cannot summarise the BRIN index anew.", s.Role)
		grant += "If this role has to sweep: grant it membership in the owner's role."
	}
	if message == "" {
		return
	}
	i.find(Finding{Check: checkPrivileges, Severity: Note, Message: strings.TrimSpace(message), Remedy: strings.TrimSpace(grant)})
}

func (i *inspection) longHolder() {
	var long []Holder
	for _, h := range i.report.Holders {
		if h.State != "" || h.Prepared != "" {
			if h.Held >= i.limits.held {
				long = append(long, h)
			}
		}
	}
	if len(long) == 0 {
		return
	}
	oldest := long[0]
	message := fmt.Sprintf("%s of the table for longer than %s, the longest for %s: %s. "+
		"Deliveries of its keys are told that they are in flight, or wait.",
		counted(int64(len(long)), "transaction has held keys", "transactions have held keys"), span(i.limits.held), span(oldest.Held), oldest.who())
	remedy := fmt.Sprintf("See what it does, SELECT query FROM pg_stat_activity WHERE pid = %d, and end it if nobody else does: "+
		"SELECT pg_terminate_backend(%[1]d). Handlers that call other services take long: call them before or after.", oldest.PID)
	if oldest.Prepared != "" {
		remedy = fmt.Sprintf("Ask its transaction manager, or end it: ROLLBACK PREPARED '%s'.", strings.ReplaceAll(oldest.Prepared, "'", "''"))
	}
	i.find(Finding{Check: checkLongHolder, Severity: Warning, Message: message, Remedy: remedy})
}

func (h Holder) who() string {
	if h.Prepared != "" {
		return fmt.Sprintf("the prepared transaction %q of the role %q", h.Prepared, h.User)
	}
	who := fmt.Sprintf("backend %d of the role %q", h.PID, h.User)
	if h.Application != "" {
		who += fmt.Sprintf(" and the application %q", h.Application)
	}
	return fmt.Sprintf("%s, %s, with %s", who, h.State, counted(int64(h.Keys), "lock", "locks"))
}

func (i *inspection) longWaiter() {
	if len(i.report.Waiters) == 0 || i.report.Waiters[0].Waited < i.limits.waited {
		return
	}
	longest := i.report.Waiters[0]
	blockers := make([]string, len(longest.BlockedBy))
	for n, pid := range longest.BlockedBy {
		blockers[n] = strconv.Itoa(pid)
	}
	by := "one that has just gone"
	if len(blockers) > 0 {
		by = strings.Join(blockers, ", ")
	}
	i.find(Finding{
		Check: checkWaiting, Severity: Warning,
		Message: fmt.Sprintf("%s for a lock on the table, or with a key in hand. Backend %d of the role %q has waited longest, for %s, behind backend %s.",
			counted(int64(i.report.Waiting), "backend waits", "backends wait"), longest.PID, longest.User, span(longest.Waited), by),
		Remedy: "See what the blocking backend does in pg_stat_activity. A claim waits only behind code that writes to the table without this library, " +
			"behind a transaction of more than 1,000 claims, and behind LOCK TABLE or ALTER TABLE; a handler, behind the rows of other handlers.",
	})
}

func (i *inspection) oldSnapshot(s *pgsql.Session) {
	if s == nil || !s.Visible() || s.Age < i.limits.snapshot {
		return
	}
	who, remedy := fmt.Sprintf("Backend %d of the role %q", s.PID, s.User), fmt.Sprintf("SELECT pg_terminate_backend(%d), unless its work is worth the space.", s.PID)
	if s.Prepared != "" {
		who, remedy = fmt.Sprintf("The prepared transaction %q", s.Prepared), "Commit it or roll it back: COMMIT PREPARED, ROLLBACK PREPARED."
	}
	i.find(Finding{
		Check: checkOldSnapshot, Severity: Note,
		Message: fmt.Sprintf("%s has been in one transaction for %s: VACUUM keeps every row for it that was deleted since, swept keys too.", who, span(s.Age)),
		Remedy:  remedy,
	})
}

func (i *inspection) hiddenSessions(count int) {
	if count == 0 {
		return
	}
	reason := fmt.Sprintf("this role may not see the state of %s of other roles: grant it pg_read_all_stats, or pg_monitor",
		counted(int64(count), "session", "sessions"))
	for _, check := range []string{checkLongHolder, checkWaiting, checkOldSnapshot} {
		i.skip(check, reason)
	}
}

func (i *inspection) missingIndexes() {
	var missing, create []string
	for _, s := range i.stores {
		has := func(is func(pgsql.Index) bool) bool {
			return slices.ContainsFunc(i.indexes, func(x pgsql.Index) bool { return x.Store == s.Name && is(x) })
		}
		if !has(func(x pgsql.Index) bool { return x.Brin }) {
			missing = append(missing, "a BRIN index on claimed_at on "+s.Name+", without which every sweep reads the whole of it")
			create = append(create, "CREATE INDEX CONCURRENTLY ON "+s.Name+" USING brin (claimed_at) WITH (autosummarize = on)")
		}
		if !has(func(x pgsql.Index) bool { return x.Incomplete }) {
			missing = append(missing, "an index of incomplete claims on "+s.Name)
			create = append(create, "CREATE INDEX CONCURRENTLY ON "+s.Name+" (claimed_at) WHERE completed_at IS NULL")
		}
	}
	if len(missing) == 0 {
		return
	}
	named := "idx_" + strings.ReplaceAll(i.plugin.table.String(), ".", "_")
	i.find(Finding{
		Check: checkMissingIndex, Severity: Warning,
		Message: "The table lacks " + enumerated(missing) + ".",
		Remedy: enumerated(create) + ". An ordinary table's are called " + named + "_claimed_at and " + named +
			"_incomplete by the migrations, which create them again under any other name; on a partitioned table create them on the parent afterwards.",
	})
}

func (i *inspection) invalidIndexes() {
	var invalid, reindex []string
	for _, x := range i.indexes {
		if !x.Valid {
			invalid = append(invalid, x.Name)
			reindex = append(reindex, "REINDEX INDEX CONCURRENTLY "+x.Name)
		}
	}
	if len(invalid) == 0 {
		return
	}
	i.find(Finding{
		Check: checkInvalidIndex, Severity: Warning,
		Message: "An index is invalid, so that nobody reads it and every write pays for it: " + enumerated(invalid) + ".",
		Remedy:  "Unless CREATE INDEX CONCURRENTLY is still at work on it: " + enumerated(reindex) + ", or drop it.",
	})
}

func (i *inspection) autosummarize() {
	var off, alter []string
	for _, x := range i.indexes {
		if x.Brin && x.Valid && !x.Autosummarize {
			off = append(off, x.Name)
			alter = append(alter, "ALTER INDEX "+x.Name+" SET (autosummarize = on)")
		}
	}
	if len(off) == 0 {
		return
	}
	i.find(Finding{
		Check: checkAutosummarize, Severity: Note,
		Message: "Autosummarize is off, so that a sweep reads every page that was filled since the last VACUUM: " + enumerated(off) + ".",
		Remedy:  enumerated(alter) + ".",
	})
}

// staleBrin is a note, since the counters say how far the index has led its scans since they were reset, and not how far it
// would lead the next one: a backlog that was swept long ago counts for long.
func (i *inspection) staleBrin() {
	for _, x := range i.indexes {
		if !x.Brin || x.Scans < i.limits.scans {
			continue
		}
		pages, average := i.pagesOf(x.Store), x.PagesRead/x.Scans
		if average <= max(i.limits.ranges, pages/10) {
			continue
		}
		i.find(Finding{
			Check: checkStaleBrin, Severity: Note,
			Message: fmt.Sprintf("The index %s has led each of %s scans to %s of %s pages on average, since its counters were reset: "+
				"its summaries have grown too wide, or there was a large backlog.", x.Name, grouped(x.Scans), grouped(average), grouped(pages)),
			Remedy: fmt.Sprintf("Run a Sweeper in a role that is a member of the table's owner: it summarises the index anew. REINDEX INDEX CONCURRENTLY %s "+
				"does it at once. Then SELECT pg_stat_reset_single_table_counters('%s'::regclass).", x.Name, strings.ReplaceAll(x.Name, "'", "''")),
		})
		return
	}
}

func (i *inspection) pagesOf(store string) int64 {
	for _, s := range i.stores {
		if s.Name == store {
			return s.Pages
		}
	}
	return 0
}

func (i *inspection) autovacuum() {
	const why = "swept keys are then never removed, and the table grows for ever"
	if !i.server.Autovacuum {
		i.find(Finding{
			Check: checkAutovacuum, Severity: Warning,
			Message: "Autovacuum is off on the whole server: " + why + ".",
			Remedy:  "ALTER SYSTEM SET autovacuum = on, and SELECT pg_reload_conf().",
		})
		return
	}
	var off, alter []string
	for _, s := range i.stores {
		if !s.Autovacuum {
			off = append(off, s.Name)
			alter = append(alter, "ALTER TABLE "+s.Name+" RESET (autovacuum_enabled)")
		}
	}
	if len(off) == 0 {
		return
	}
	i.find(Finding{
		Check: checkAutovacuum, Severity: Warning,
		Message: "Autovacuum is off on " + enumerated(off) + ": " + why + ".",
		Remedy:  enumerated(alter) + ".",
	})
}

func (i *inspection) deadRows() {
	for _, s := range i.stores {
		if s.Dead <= i.limits.dead || s.Dead <= 2*s.Live {
			continue
		}
		vacuumed := "and it was never vacuumed since the counters were reset"
		if s.Vacuumed != nil {
			vacuumed = "and VACUUM last ended on it at " + s.Vacuumed.UTC().Format(time.RFC3339)
		}
		i.find(Finding{
			Check: checkDeadRows, Severity: Warning,
			Message: fmt.Sprintf("%s has %s dead rows beside %s live ones, %s.", s.Name, grouped(s.Dead), grouped(s.Live), vacuumed),
			Remedy: fmt.Sprintf("VACUUM %s. If it comes back, let autovacuum do more at once: ALTER TABLE %[1]s SET "+
				"(autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.05).", s.Name),
		})
		return
	}
}

// fillFactorLimit leaves room on a page for the answer of one row in ten.
const fillFactorLimit = 90

func (i *inspection) fillFactor() {
	var full, alter []string
	for _, s := range i.stores {
		if s.FillFactor > fillFactorLimit {
			full = append(full, fmt.Sprintf("%s has %d", s.Name, s.FillFactor))
			alter = append(alter, "ALTER TABLE "+s.Name+" SET (fillfactor = 65)")
		}
	}
	if len(full) == 0 {
		return
	}
	i.find(Finding{
		Check: checkFillFactor, Severity: Note,
		Message: "A fill factor leaves answers no room on the page of their key, so that storing them updates every index: " + enumerated(full) + ".",
		Remedy:  enumerated(alter) + ". It holds for pages that are written from then on.",
	})
}

// hotLimit is the share of HOT updates that is worth looking at. What the library's statements reach is above 0.98.
const hotLimit = 0.9

func (i *inspection) hotUpdates() {
	updates, hot := i.report.Updates, i.report.HOTUpdates
	if updates < i.limits.updates || float64(hot) >= hotLimit*float64(updates) {
		return
	}
	cause := "Set the fill factor to 65 and let VACUUM keep up."
	var culprits []string
	for _, x := range i.indexes {
		if x.OfAnswers {
			culprits = append(culprits, x.Name)
		}
	}
	if len(culprits) > 0 {
		cause = "No update of an indexed column is HOT: drop " + enumerated(culprits) + "."
	}
	i.find(Finding{
		Check: checkHOT, Severity: Warning,
		Message: fmt.Sprintf("Of %s updates, %.0f %% were HOT since the counters were reset: the others wrote to every index.",
			grouped(updates), 100*float64(hot)/float64(updates)),
		Remedy: cause,
	})
}

func (i *inspection) incomplete(count int, oldest time.Duration) {
	number := grouped(int64(count))
	if count > incompleteCounted {
		number = "more than " + grouped(incompleteCounted)
	}
	i.find(Finding{
		Check: checkIncomplete, Severity: Warning,
		Message: fmt.Sprintf("There are claims that were committed and never completed: %s, the oldest from %s ago. "+
			"Deliveries of these events are in flight for ever. Code other than this library has written them.", number, span(oldest)),
		Remedy: fmt.Sprintf("Find who writes them: SELECT source, event_id, claimed_at FROM %s WHERE completed_at IS NULL. If their effect happened, "+
			"set completed_at; if not, Forget them.", i.plugin.table.Quoted()),
	})
}

func (i *inspection) overdue(s sample) {
	if s.overdue == 0 {
		return
	}
	i.find(Finding{
		Check: checkOverdue, Severity: Warning,
		Message: fmt.Sprintf("%s overdue, mostly by a retention of %s: sweeps have stalled, or do not keep up. The oldest that was seen is %s old.%s",
			counted(i.report.Overdue, "key is", "keys are"), span(s.worst.Retention), span(s.worst.Oldest), i.estimate()),
		Remedy: "Let each process run a Sweeper (Sweeper.Run), or a job the command idempotency sweep. If they do: look for their errors in the log, and " +
			"in what Config.Observe is told of Swept; raise SweeperConfig.MaxBatches if they never catch up.",
	})
}

// estimate says where a number comes from, if it is not exact.
func (i *inspection) estimate() string {
	if i.report.SampledPages == i.report.Pages {
		return ""
	}
	return fmt.Sprintf(" The number is an estimate, from %s of %s pages.", grouped(i.report.SampledPages), grouped(i.report.Pages))
}

func (i *inspection) deletedEarly(gone pgsql.Vanished, oldestLeft, kept time.Duration) {
	severity, left := Critical, "the oldest that is left is "+span(oldestLeft)+" old"
	purpose := "If it was on purpose, ANALYZE the table."
	if oldestLeft == 0 {
		// The statistics of an empty table stay those of its last keys, and nobody could end the alarm.
		severity, left = Warning, "none of them is left"
		purpose = "If it was on purpose, it is forgotten when there are keys again and ANALYZE has seen them."
	}
	i.find(Finding{
		Check: checkDeletedEarly, Severity: severity,
		Message: fmt.Sprintf("Keys are deleted before their time: the table's statistics saw keys that would be up to %s old by now, %.0f %% of all, and %s, "+
			"though each is kept for %s at least. A redelivery of these events takes effect again.", span(gone.Oldest), 100*gone.Share, left, span(kept)),
		Remedy: "Look for whatever else deletes from the table: a job with a shorter interval, a process with another Config, TRUNCATE, a backup that was restored. " +
			purpose,
	})
}

// sourcesWithoutHorizon is a note: nobody can tell whether their retention is long enough.
func (i *inspection) sourcesWithoutHorizon() {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(i.plugin.config.Sources)) {
		if i.plugin.config.Sources[name].RetryHorizon == 0 {
			names = append(names, strconv.Quote(name))
		}
	}
	if len(names) == 0 {
		return
	}
	i.find(Finding{
		Check: checkNoHorizon, Severity: Note,
		Message: "For these sources nobody has said how long their sender redelivers, so that their retention may be too short: " + enumerated(names) + ".",
		Remedy:  "Set SourceConfig.RetryHorizon to what the sender documents, manual resends included.",
	})
}

// enumeratedMost is how many names a sentence lists.
const enumeratedMost = 5

func enumerated(items []string) string {
	if len(items) <= enumeratedMost {
		return strings.Join(items, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(items[:enumeratedMost], "; "), len(items)-enumeratedMost)
}

func counted(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return grouped(n) + " " + many
}

// grouped writes a number with commas.
func grouped(n int64) string {
	text := strconv.FormatInt(n, 10)
	for at := len(text) - 3; at > 0 && text[at-1] != '-'; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

// span writes a duration in its largest unit that there are two of.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d >= 2*day:
		return fmt.Sprintf("%d days", d/day)
	case d >= 2*time.Hour:
		return fmt.Sprintf("%d hours", d/time.Hour)
	case d >= 2*time.Minute:
		return fmt.Sprintf("%d minutes", d/time.Minute)
	}
	return fmt.Sprintf("%d s", d/time.Second)
}

func capitalised(text string) string { return strings.ToUpper(text[:1]) + text[1:] }
