package pgsql

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// Leaf is a relation that rows are stored in: the table itself, or one of its partitions.
type Leaf struct {
	Relation string // quoted and qualified
	Brin     string // its BRIN index on claimed_at, quoted and qualified; "" if there is none
	Range    int64  // how many pages a range of that index has
	Pages    int64  // the relation's size
}

// Leaves lists the relations of a table, as the sweeper needs them. ctid is a place in one of them and not in the table: a
// sweep of a partitioned table by ctid would delete live keys that share a place with expired ones.
func Leaves(ctx context.Context, q Querier, table Table) ([]Leaf, error) {
	var leaves []Leaf
	err := eachRow(ctx, q, leavesQuery, table.Quoted(), func(scan func(...any) error) error {
		var leaf Leaf
		err := scan(&leaf.Relation, &leaf.Brin, &leaf.Range, &leaf.Pages)
		leaves = append(leaves, leaf)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the table's relations: %w", err)
	}
	return leaves, nil
}

const leavesQuery = `
WITH leaf AS (
  SELECT c.oid, n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  WHERE c.oid = pg_catalog.to_regclass($1::text) AND c.relkind = 'r'
  UNION ALL
  SELECT c.oid, n.nspname, c.relname FROM pg_catalog.pg_partition_tree(pg_catalog.to_regclass($1::text)) p
  JOIN pg_catalog.pg_class c ON c.oid = p.relid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  WHERE p.isleaf AND p.level > 0
)
SELECT format('%I.%I', leaf.nspname, leaf.relname), coalesce(brin.name, ''), coalesce(brin.pages_per_range, 128),
       pg_catalog.pg_relation_size(leaf.oid) / current_setting('block_size')::bigint
FROM leaf LEFT JOIN LATERAL (
  SELECT format('%I.%I', n.nspname, c.relname) AS name,
         (SELECT o.option_value::bigint FROM pg_catalog.pg_options_to_table(c.reloptions) o
          WHERE o.option_name = 'pages_per_range') AS pages_per_range
  FROM pg_catalog.pg_index i
  JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_catalog.pg_am m ON m.oid = c.relam
  JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
  WHERE i.indrelid = leaf.oid AND m.amname = 'brin' AND a.attname = 'claimed_at' AND i.indpred IS NULL AND i.indisvalid
  ORDER BY c.relname LIMIT 1
) brin ON true
ORDER BY leaf.nspname, leaf.relname`

// Distributed reports whether Citus has spread the table over several machines.
func Distributed(ctx context.Context, q Querier, table Table) (bool, error) {
	var citus, distributed bool
	read := func(into *bool) func(func(...any) error) error {
		return func(scan func(...any) error) error { return scan(into) }
	}
	err := eachRow(ctx, q, `SELECT pg_catalog.to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL AND $1::text <> ''`,
		table.Quoted(), read(&citus))
	if err == nil && citus {
		err = eachRow(ctx, q, `SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_dist_partition WHERE logicalrelid = pg_catalog.to_regclass($1::text))`,
			table.Quoted(), read(&distributed))
	}
	if err != nil {
		return false, fmt.Errorf("ask whether the table is distributed: %w", err)
	}
	return distributed, nil
}

// Class says which rows a sweep is about: those of some sources, or all but some.
type Class int

// The classes. The sources of the last two are a JSON array in $3.
const (
	AllSources Class = iota
	OtherSources
	TheseSources
)

var classPredicates = map[Class]string{
	AllSources:   "",
	OtherSources: " AND source <> ALL(ARRAY(SELECT jsonb_array_elements_text($3::text::jsonb)))",
	TheseSources: " AND source = ANY(ARRAY(SELECT jsonb_array_elements_text($3::text::jsonb)))",
}

// expired is the one test of a key's age: by the database's clock, in seconds, so that neither a process's clock nor a
// change to daylight-saving time can move it.
const expired = "claimed_at < now() - $1::double precision * interval '1 second'"

// SweepBatch deletes at most $2 expired rows of one relation. It returns how many, the transaction's number, and in which
// ranges of so many pages they were, as a list with commas.
//
// The array is evaluated once, so that a batch never exceeds its limit. The age is checked again outside, on the row's
// newest version. There is no ORDER BY: with row locks it would read and sort every expired row. The ranges are made distinct
// as numbers: as texts, inside the aggregate, they cost a third of the whole.
func SweepBatch(relation string, class Class, rangePages int64) string {
	where := expired + classPredicates[class]
	return `WITH gone AS (
  DELETE FROM ` + relation + ` WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM ` + relation + ` WHERE ` + where + ` LIMIT $2::bigint FOR UPDATE SKIP LOCKED))
  AND ` + where + `
  RETURNING (ctid::text::point)[0]::bigint / ` + strconv.FormatInt(rangePages, 10) + ` AS range
)
SELECT (SELECT count(*) FROM gone), txid_current(),
       coalesce((SELECT string_agg(range::text, ',') FROM (SELECT DISTINCT range FROM gone) AS swept), '')`
}

// SweepBatchByKey is SweepBatch where rows have no place: Citus refuses ctid.
func SweepBatchByKey(relation string, class Class) string {
	where := expired + classPredicates[class]
	return `DELETE FROM ` + relation + ` WHERE (source, event_id) IN (
  SELECT source, event_id FROM ` + relation + ` WHERE ` + where + ` LIMIT $2::bigint)
AND ` + where
}

// CountExpired counts what SweepBatch would delete, in all. It has no limit, so that the sources are in $2.
func CountExpired(relation string, class Class) string {
	return `SELECT count(*) FROM ` + relation + ` WHERE ` + expired + strings.ReplaceAll(classPredicates[class], "$3", "$2")
}

// SweepLock takes the table's sweep lock for one transaction, if it is free, and keeps the planner on the BRIN index there:
// with statistics from before the last sweep it would expect expired rows everywhere, and read the table to find none.
const SweepLock = `SELECT pg_try_advisory_xact_lock(hashtextextended('idempotency sweep', 0) # pg_catalog.to_regclass($1::text)::oid::bigint),
  set_config('enable_seqscan', 'off', true)`

// Horizon is the number of the oldest transaction whose deletions may still be alive to somebody, as vacuum sees it: the
// sessions and prepared transactions of this database count, and whatever belongs to none, such as a standby's feedback. Every
// role may see these numbers. A transaction in another database of the server may be as long as it likes.
const Horizon = `SELECT txid_snapshot_xmax(txid_current_snapshot()) - coalesce(max(old), 0) FROM (
  SELECT greatest(age(backend_xmin), age(backend_xid))::bigint AS old FROM pg_catalog.pg_stat_activity
  WHERE pid <> pg_backend_pid() AND (datname = current_database() OR datname IS NULL)
  UNION ALL
  SELECT age(transaction)::bigint FROM pg_catalog.pg_prepared_xacts WHERE database = current_database()
  UNION ALL
  SELECT greatest(age(xmin), age(catalog_xmin))::bigint FROM pg_catalog.pg_replication_slots
) AS holding`

// Resummarize computes the summary of one range anew. Summaries only ever widen by themselves: once the pages of swept
// rows hold new ones, the range would claim to hold expired rows for ever.
const Resummarize = `SELECT brin_desummarize_range($1::text::regclass, $2::bigint), brin_summarize_range($1::text::regclass, $2::bigint)`

// ResummarizeTimeout keeps the lock of Resummarize, which conflicts with autovacuum, from cancelling that: autovacuum gives
// way to whoever has waited for deadlock_timeout, a second.
const ResummarizeTimeout = `SET LOCAL lock_timeout = '200ms'`
