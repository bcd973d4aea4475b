package pgsql

import (
	"context"
	"fmt"
	"time"
)

// Stats are the figures of a table of keys. Those that count keys are of a sample, scaled to the whole, unless the sample
// is all there is.
type Stats struct {
	Now     time.Time // by the database's clock
	Pages   int64     // of the table, all partitions together
	Sampled float64   // the part of them that was read; 1: all, so that the counts are exact

	TableBytes, IndexBytes, ToastBytes int64

	Updates, HOTUpdates int64 // since the server's statistics were last reset

	Keys        int64
	Answered    int64               // of the keys
	AnswerBytes int64               // of their answers, as they are stored
	Oldest      time.Time           // of those with a time: other code may have written infinity; zero if there is none
	Sources     map[string]int64    // keys
	Hours       map[time.Time]int64 // keys, of the last 24 hours by the clock, this one included
}

// ReadStats reads the sizes from the catalogue, and the keys from at most so many pages of the table, more or less: which
// ones is drawn by lot, so that no answer takes longer on a larger table.
func ReadStats(ctx context.Context, q Querier, table Table, pages int64) (Stats, error) {
	s := Stats{Sources: make(map[string]int64), Hours: make(map[time.Time]int64)}
	err := eachRow(ctx, q, sizesQuery, table.Quoted(), func(scan func(...any) error) error {
		return scan(&s.Now, &s.Pages, &s.TableBytes, &s.IndexBytes, &s.ToastBytes, &s.Updates, &s.HOTUpdates)
	})
	if err != nil {
		return s, fmt.Errorf("read the table's sizes: %w", err)
	}
	s.Sampled = min(1, float64(pages)/float64(max(s.Pages, 1)))
	if err := s.readSample(ctx, q, table); err != nil {
		return s, fmt.Errorf("read a sample of the table: %w", err)
	}
	return s, nil
}

// readSample fills in what is known of the keys.
func (s *Stats) readSample(ctx context.Context, q Querier, table Table) error {
	percent := fmt.Sprintf("%g", 100*s.Sampled)
	return eachRow(ctx, q, sampleQuery(table), percent, func(scan func(...any) error) error {
		var source *string
		var hour *int64 // since 1970
		var keys, answered, bytes int64
		var oldest *time.Time
		if err := scan(&source, &hour, &keys, &answered, &bytes, &oldest); err != nil {
			return err
		}
		switch {
		case hour != nil:
			s.Hours[time.Unix(*hour*3600, 0).UTC()] = s.whole(keys)
		case source != nil:
			s.Sources[*source] = s.whole(keys)
			s.Keys += s.whole(keys)
			s.Answered += s.whole(answered)
			s.AnswerBytes += s.whole(bytes)
			if oldest != nil && (s.Oldest.IsZero() || oldest.Before(s.Oldest)) {
				s.Oldest = *oldest
			}
		}
		return nil
	})
}

// whole scales a count of the sample.
func (s *Stats) whole(count int64) int64 { return int64(float64(count)/s.Sampled + 0.5) }

// sizesQuery asks of the relations that rows are stored in, one or a partitioned table's leaves.
const sizesQuery = `
WITH leaf AS (
  SELECT c.oid, c.reltoastrelid FROM pg_catalog.pg_class c WHERE c.oid = pg_catalog.to_regclass($1::text) AND c.relkind = 'r'
  UNION ALL
  SELECT c.oid, c.reltoastrelid FROM pg_catalog.pg_partition_tree(pg_catalog.to_regclass($1::text)) p
  JOIN pg_catalog.pg_class c ON c.oid = p.relid WHERE p.isleaf AND p.level > 0
), size AS (
  SELECT oid, pg_catalog.pg_table_size(oid) AS whole, CASE WHEN reltoastrelid = 0 THEN 0
         ELSE pg_catalog.pg_total_relation_size(reltoastrelid) END AS toast FROM leaf
)
SELECT now(), coalesce(sum(pg_catalog.pg_relation_size(oid)), 0)::bigint / current_setting('block_size')::bigint,
       coalesce(sum(whole - toast), 0)::bigint, coalesce(sum(pg_catalog.pg_indexes_size(oid)), 0)::bigint, coalesce(sum(toast), 0)::bigint,
       coalesce(sum(pg_catalog.pg_stat_get_tuples_updated(oid)), 0)::bigint, coalesce(sum(pg_catalog.pg_stat_get_tuples_hot_updated(oid)), 0)::bigint
FROM size`

// sampleQuery counts by source, and by hour of the last 24, in one pass over a sample of $1 percent of the pages. SYSTEM reads
// no other pages. Neither does it read the answers: their sizes stand in the row.
func sampleQuery(table Table) string {
	return `
SELECT source, hour, count(*), count(*) FILTER (WHERE answered), sum(bytes)::bigint,
       min(claimed_at) FILTER (WHERE isfinite(claimed_at))
FROM (
  SELECT source, claimed_at, response_status IS NOT NULL AS answered,
         coalesce(pg_column_size(response_header), 0) + coalesce(pg_column_size(response_body), 0)
           + coalesce(pg_column_size(response_raw), 0) AS bytes,
         CASE WHEN claimed_at <= now() AND claimed_at >= date_trunc('hour', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' - interval '23 hours'
              THEN floor(extract(epoch FROM claimed_at) / 3600)::bigint END AS hour
  FROM ` + table.Quoted() + ` TABLESAMPLE SYSTEM ($1::text::real)
) AS sample
GROUP BY GROUPING SETS ((source), (hour))`
}

// CountSettings keeps the planner on the BRIN index for the rest of the transaction, as SweepLock does, and limits how long
// a statement may take; 0: as long as the server's settings let it.
func CountSettings(limit time.Duration) string {
	settings := `SELECT set_config('enable_seqscan', 'off', true)`
	if limit > 0 {
		settings += fmt.Sprintf(`, set_config('statement_timeout', '%d', true)`, limit.Milliseconds())
	}
	return settings
}
