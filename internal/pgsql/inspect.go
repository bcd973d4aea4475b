package pgsql

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// Bound limits what the statements of an inspection wait for and cost, in its own transaction: it is asked for when the
// database is in trouble, and must not add to that. Sequential scans are ruled out for the one query that goes by an index;
// without JIT, since ruling them out makes plans look expensive enough for it.
const Bound = `SELECT set_config('lock_timeout', '500ms', true), set_config('statement_timeout', '5s', true),
  set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true), set_config('max_parallel_workers_per_gather', '0', true)`

// Server is what an inspection has to know of the server and of this role's rights on the table.
type Server struct {
	Standby    bool
	Autovacuum bool   // the server's setting
	Role       string // this session's

	// The rights to Select, Insert, Update and Delete, and to summarise the table's index anew.
	Select, Insert, Update, Delete, Owner bool
}

const serverQuery = `
SELECT pg_catalog.pg_is_in_recovery(), current_setting('autovacuum')::boolean, current_user::text,
       has_table_privilege(c.oid, 'SELECT') OR has_any_column_privilege(c.oid, 'SELECT'),
       has_table_privilege(c.oid, 'INSERT') OR has_any_column_privilege(c.oid, 'INSERT'),
       has_table_privilege(c.oid, 'UPDATE') OR has_any_column_privilege(c.oid, 'UPDATE'),
       has_table_privilege(c.oid, 'DELETE'), pg_has_role(c.relowner, 'USAGE')
FROM pg_catalog.pg_class c WHERE c.oid = pg_catalog.to_regclass($1::text)`

// ReadServer reads them.
func ReadServer(ctx context.Context, q Querier, t Table) (s Server, err error) {
	err = eachRow(ctx, q, serverQuery, t.Quoted(), func(scan func(...any) error) error {
		return scan(&s.Standby, &s.Autovacuum, &s.Role, &s.Select, &s.Insert, &s.Update, &s.Delete, &s.Owner)
	})
	if err != nil {
		return s, fmt.Errorf("read the server's settings: %w", err)
	}
	return s, nil
}

const unsweepableQuery = `
WITH RECURSIVE ` + relations + `
SELECT format('%I.%I', n.nspname, c.relname)
FROM relations r JOIN pg_catalog.pg_class c ON c.oid = r.oid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE r.relkind = 'r' AND r.oid <> pg_catalog.to_regclass($1::text)
  AND NOT (has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE'))
ORDER BY n.nspname, c.relname`

// Unsweepable lists the table's partitions that this role may not sweep, quoted and qualified: a sweep works on each of them
// by its own name, where the rights on the table count for nothing.
func Unsweepable(ctx context.Context, q Querier, t Table) ([]string, error) {
	var partitions []string
	err := eachRow(ctx, q, unsweepableQuery, t.Quoted(), func(scan func(...any) error) error {
		var name string
		err := scan(&name)
		partitions = append(partitions, name)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the rights on the partitions: %w", err)
	}
	return partitions, nil
}

// Store is a relation that rows are stored in, as the catalogue and the server's counters have it. Counters count since they
// were last reset, which a crash does too.
type Store struct {
	Name       string // quoted and qualified
	Pages      int64  // of rows, without TOAST
	TableBytes int64  // with TOAST
	IndexBytes int64

	FillFactor int
	Autovacuum bool // not switched off for this relation

	Dead       int64 // rows that VACUUM has not removed
	Live       int64
	Updates    int64
	HOTUpdates int64
	Vacuumed   *time.Time // when VACUUM, by hand or not, last ended
}

const storesQuery = `
WITH RECURSIVE ` + relations + `
SELECT format('%I.%I', n.nspname, c.relname), pg_catalog.pg_relation_size(c.oid) / current_setting('block_size')::bigint,
       pg_catalog.pg_table_size(c.oid), pg_catalog.pg_indexes_size(c.oid),
       coalesce((SELECT o.option_value::int FROM pg_catalog.pg_options_to_table(c.reloptions) o WHERE o.option_name = 'fillfactor'), 100),
       coalesce((SELECT o.option_value::boolean FROM pg_catalog.pg_options_to_table(c.reloptions) o
                 WHERE o.option_name = 'autovacuum_enabled'), true),
       pg_catalog.pg_stat_get_dead_tuples(c.oid), pg_catalog.pg_stat_get_live_tuples(c.oid),
       pg_catalog.pg_stat_get_tuples_updated(c.oid), pg_catalog.pg_stat_get_tuples_hot_updated(c.oid),
       greatest(pg_catalog.pg_stat_get_last_vacuum_time(c.oid), pg_catalog.pg_stat_get_last_autovacuum_time(c.oid))
FROM relations r JOIN pg_catalog.pg_class c ON c.oid = r.oid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE r.relkind = 'r' ORDER BY n.nspname, c.relname`

// Stores lists the relations that a table's rows are stored in.
func Stores(ctx context.Context, q Querier, t Table) ([]Store, error) {
	var stores []Store
	err := eachRow(ctx, q, storesQuery, t.Quoted(), func(scan func(...any) error) error {
		var s Store
		err := scan(&s.Name, &s.Pages, &s.TableBytes, &s.IndexBytes, &s.FillFactor, &s.Autovacuum,
			&s.Dead, &s.Live, &s.Updates, &s.HOTUpdates, &s.Vacuumed)
		stores = append(stores, s)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the table's counters: %w", err)
	}
	return stores, nil
}

// Index is an index of a [Store].
type Index struct {
	Name  string // quoted and qualified
	Store string
	Valid bool
	Pages int64

	Brin          bool // on claimed_at: the sweeper's
	Autosummarize bool
	Incomplete    bool // on the claims that were never completed
	OfAnswers     bool // on a column that storing an answer sets, so that no such update is HOT

	Scans     int64
	PagesRead int64 // how many pages a BRIN index has led its scans to
}

// indexesQuery: a BRIN index counts ten rows for each page that it leads a scan to, since it knows of no rows. It keeps no
// update from being HOT, from PostgreSQL 16 on.
const indexesQuery = `
WITH RECURSIVE ` + relations + `
SELECT format('%I.%I', n.nspname, x.relname), format('%I.%I', tn.nspname, t.relname),
       i.indisvalid AND i.indisready AND i.indislive, pg_catalog.pg_relation_size(x.oid) / current_setting('block_size')::bigint,
       m.amname = 'brin' AND a.attname IS NOT DISTINCT FROM 'claimed_at' AND i.indpred IS NULL,
       coalesce((SELECT o.option_value::boolean FROM pg_catalog.pg_options_to_table(x.reloptions) o
                 WHERE o.option_name = 'autosummarize'), false),
       m.amname = 'btree' AND a.attname IS NOT DISTINCT FROM 'claimed_at'
         AND pg_catalog.pg_get_expr(i.indpred, i.indrelid) IS NOT DISTINCT FROM '(completed_at IS NULL)',
       (m.amname <> 'brin' OR current_setting('server_version_num')::int < 160000) AND (
         concat(pg_catalog.pg_get_expr(i.indpred, i.indrelid), pg_catalog.pg_get_expr(i.indexprs, i.indrelid)) LIKE '%response\_%'
         OR EXISTS (SELECT 1 FROM pg_catalog.pg_attribute ra
                    WHERE ra.attrelid = i.indrelid AND ra.attnum = ANY(i.indkey) AND ra.attname LIKE 'response\_%')),
       pg_catalog.pg_stat_get_numscans(x.oid), pg_catalog.pg_stat_get_tuples_returned(x.oid) / 10
FROM relations r
JOIN pg_catalog.pg_class t ON t.oid = r.oid JOIN pg_catalog.pg_namespace tn ON tn.oid = t.relnamespace
JOIN pg_catalog.pg_index i ON i.indrelid = r.oid
JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid JOIN pg_catalog.pg_namespace n ON n.oid = x.relnamespace
JOIN pg_catalog.pg_am m ON m.oid = x.relam
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE r.relkind = 'r' ORDER BY 2, 1`

// Indexes lists the indexes of all the table's stores.
func Indexes(ctx context.Context, q Querier, t Table) ([]Index, error) {
	var indexes []Index
	err := eachRow(ctx, q, indexesQuery, t.Quoted(), func(scan func(...any) error) error {
		var i Index
		err := scan(&i.Name, &i.Store, &i.Valid, &i.Pages, &i.Brin, &i.Autosummarize, &i.Incomplete, &i.OfAnswers, &i.Scans, &i.PagesRead)
		indexes = append(indexes, i)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the table's indexes: %w", err)
	}
	return indexes, nil
}

// oldestAge is how many seconds ago the oldest of some rows was claimed, 0 if there is none. Other code may have written any
// time: infinity has no age, and one of more than 285 years does not fit into a time.Duration.
const oldestAge = `coalesce(least(extract(epoch FROM now() - min(claimed_at) FILTER (WHERE isfinite(claimed_at))), 9e9), 0)::double precision`

// Incomplete counts the claims that were never completed, up to a limit, and says how old the oldest is. It goes by the
// partial index on them, which every store must have, and reads no more than that holds.
func Incomplete(ctx context.Context, q Querier, t Table, limit int) (count int, oldest time.Duration, err error) {
	query := `SELECT count(*), ` + oldestAge + ` FROM (
  SELECT claimed_at FROM ` + t.Quoted() + ` WHERE completed_at IS NULL ORDER BY claimed_at LIMIT $1::text::bigint) AS incomplete`
	var seconds float64
	err = eachRow(ctx, q, query, strconv.Itoa(limit), func(scan func(...any) error) error { return scan(&count, &seconds) })
	if err != nil {
		return 0, 0, fmt.Errorf("count the claims that were never completed: %w", err)
	}
	return count, Seconds(seconds), nil
}

// Sampled is what a sample has of the keys that share a retention.
type Sampled struct {
	Retention  time.Duration
	Keys       int64
	Overdue    int64 // older than their retention and the slack
	Incomplete int64
	Oldest     time.Duration
}

// SampleClasses says how long keys are kept and how long after that they are overdue, all in seconds.
type SampleClasses struct {
	Sources   string // a JSON object: retention by source
	Retention float64
	Slack     float64 // the least
	Share     float64 // of the retention, if that is more
}

// Sample looks at all rows of about this share of the table's pages, in percent, chosen at random. It is the one way to see
// rows of a table of any size in bounded time that also PostgreSQL 12 has: the claims' index on claimed_at has no order, and
// a search for old ones reads the table where the index is out of date.
func Sample(ctx context.Context, q Querier, t Table, percent float64, classes SampleClasses) ([]Sampled, error) {
	query := `SELECT kept.retention, count(*), count(*) FILTER (WHERE claimed_at < now() - interval '1 second' *
         (kept.retention + greatest($4::text::double precision, kept.retention * $5::text::double precision))),
       count(*) FILTER (WHERE completed_at IS NULL), ` + oldestAge + `
FROM ` + t.Quoted() + ` TABLESAMPLE SYSTEM ($1::text::real)
CROSS JOIN LATERAL (SELECT coalesce(($2::text::jsonb ->> source)::double precision, $3::text::double precision) AS retention) AS kept
GROUP BY kept.retention ORDER BY kept.retention`
	var sample []Sampled
	number := func(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }
	args := []any{number(percent), classes.Sources, number(classes.Retention), number(classes.Slack), number(classes.Share)}
	err := eachRowOf(ctx, q, query, args, func(scan func(...any) error) error {
		var s Sampled
		var retention, oldest float64
		err := scan(&retention, &s.Keys, &s.Overdue, &s.Incomplete, &oldest)
		s.Retention, s.Oldest = Seconds(retention), Seconds(oldest)
		sample = append(sample, s)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look at a sample of the keys: %w", err)
	}
	return sample, nil
}

// Vanished is what the planner's statistics say of keys that were not to be deleted yet, and of which none is left.
type Vanished struct {
	Share  float64       // of the keys that there were when the statistics were made
	Oldest time.Duration // the age that the oldest of them would have by now
}

// vanishedQuery goes by the histograms of claimed_at, whose bounds divide the keys that ANALYZE saw into equal parts.
const vanishedQuery = `
WITH RECURSIVE ` + relations + `,
bound AS (
  SELECT CASE WHEN isfinite(claimed_at) THEN extract(epoch FROM now() - claimed_at)::double precision END AS age
  FROM relations r JOIN pg_catalog.pg_class c ON c.oid = r.oid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_catalog.pg_stats s ON s.schemaname = n.nspname AND s.tablename = c.relname
  CROSS JOIN LATERAL unnest(s.histogram_bounds::text::timestamptz[]) AS claimed_at
  WHERE r.relkind = 'r' AND s.attname = 'claimed_at' AND NOT s.inherited
)
SELECT coalesce(avg((age > $2::text::double precision AND age < $3::text::double precision)::int), 0)::double precision,
       coalesce(max(age) FILTER (WHERE age < $3::text::double precision), 0)::double precision
FROM bound`

// FindVanished compares the statistics with the oldest key that is left and with the shortest time that keys are kept. Where
// the table was never analysed, nothing has vanished as far as anybody knows.
func FindVanished(ctx context.Context, q Querier, t Table, oldestLeft, kept time.Duration) (v Vanished, err error) {
	seconds := func(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'g', -1, 64) }
	args := []any{t.Quoted(), seconds(oldestLeft), seconds(kept)}
	err = eachRowOf(ctx, q, vanishedQuery, args, func(scan func(...any) error) error {
		var oldest float64
		err := scan(&v.Share, &oldest)
		v.Oldest = Seconds(oldest)
		return err
	})
	if err != nil {
		return v, fmt.Errorf("read the statistics of claimed_at: %w", err)
	}
	return v, nil
}
