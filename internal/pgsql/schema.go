package pgsql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrSchema is what every error satisfies that tells of an unusable table.
var ErrSchema = errors.New("idempotency: the table of keys is missing or unusable")

// schemaError names everything that is wrong with one table, so that an operator repairs it in one go.
type schemaError struct {
	table    Table
	problems []string
}

func (e *schemaError) Error() string {
	return fmt.Sprintf("the table %s cannot be used: %s", e.table, strings.Join(e.problems, "; "))
}

func (e *schemaError) Unwrap() error {
	return ErrSchema
}

// CheckSchema reads the catalogue and refuses a table on which the protocol would not hold. Its errors wrap [ErrSchema],
// but for those of reading. The table is found as the claim finds it: through the search path unless it is qualified.
//
// It needs no more than the right to use the table's schema, and gives the same verdict for every role: who owns the table
// or bypasses row-level security today says nothing about the next worker.
func CheckSchema(ctx context.Context, q Querier, t Table) error {
	if err := checkServer(ctx, q, t); err != nil {
		return err
	}
	r, found, err := readRelation(ctx, q, t)
	if err != nil {
		return fmt.Errorf("read the catalogue: %w", err)
	}
	if !found {
		return &schemaError{t, []string{"it does not exist, or not where the search path leads: run the goose migrations " +
			"(migrations.Up, with WithTable for this name) or AutoMigrate, or correct Config.Table"}}
	}
	// What is not a table has neither keys nor policies that would be worth telling about.
	if kind := r.wrongKind(); kind != "" {
		return &schemaError{t, []string{"it is " + kind + ": keys need a table"}}
	}
	columns, err := readColumns(ctx, q, r.oid)
	if err != nil {
		return fmt.Errorf("read the catalogue's columns: %w", err)
	}
	if isAnother(columns) {
		return &schemaError{t, []string{"it is not a table of keys, but another one of that name: correct Config.Table"}}
	}
	keys, err := readUniqueKeys(ctx, q, r.oid)
	if err != nil {
		return fmt.Errorf("read the catalogue's indexes: %w", err)
	}
	problems := slices.Concat(r.problems(), columnProblems(columns), keyProblems(t, keys))
	if len(problems) > 0 {
		return &schemaError{t, problems}
	}
	return nil
}

const oldestServer = 12

// checkServer comes first: an older server does not know what the next query asks.
func checkServer(ctx context.Context, q Querier, t Table) error {
	var number int
	var version string
	err := eachRow(ctx, q, `SELECT pg_catalog.current_setting('server_version_num')::int, pg_catalog.current_setting($1::text)`, "server_version",
		func(scan func(...any) error) error { return scan(&number, &version) })
	if err != nil {
		return fmt.Errorf("read the server's version: %w", err)
	}
	if number < oldestServer*10000 {
		return &schemaError{t, []string{fmt.Sprintf("the server is PostgreSQL %s: want %d or newer", version, oldestServer)}}
	}
	return nil
}

// relation is the table itself.
type relation struct {
	oid          string
	kind         string // pg_class.relkind
	persistence  string // pg_class.relpersistence
	rowSecurity  bool
	encoding     string
	partitioning string // pg_partitioned_table.partstrat, "" if it is not partitioned
	partitions   bool   // it has at least one
	gap          bool   // keys of some hashes have no partition
	unlogged     string // the unlogged partitions' names
}

// The parameters are text with a cast, so that every driver in every mode sends them alike.
const relationQuery = `
SELECT c.oid::text, c.relkind::text, c.relpersistence::text, c.relrowsecurity, pg_catalog.getdatabaseencoding()::text,
       coalesce((SELECT p.partstrat::text FROM pg_catalog.pg_partitioned_table p WHERE p.partrelid = c.oid), ''),
       EXISTS (SELECT 1 FROM pg_catalog.pg_inherits i WHERE i.inhparent = c.oid),
       -- a partition of modulus m has the m-th part of all hashes, and each modulus divides the largest
       coalesce((SELECT sum(largest / modulus) < max(largest) FROM (
         SELECT modulus, max(modulus) OVER () AS largest FROM (
           SELECT substring(pg_catalog.pg_get_expr(l.relpartbound, l.oid) FROM 'modulus ([0-9]+)')::bigint AS modulus
           FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class l ON l.oid = i.inhrelid WHERE i.inhparent = c.oid) AS bound
       ) AS share), false),
       coalesce((SELECT string_agg(l.relname, ', ' ORDER BY l.relname)
                 FROM pg_catalog.pg_partition_tree(c.oid) p JOIN pg_catalog.pg_class l ON l.oid = p.relid
                 WHERE c.relkind = 'p' AND p.isleaf AND l.relpersistence = 'u'), '')
FROM pg_catalog.pg_class c
WHERE c.oid = pg_catalog.to_regclass($1::text)`

func readRelation(ctx context.Context, q Querier, t Table) (r relation, found bool, err error) {
	err = eachRow(ctx, q, relationQuery, t.Quoted(), func(scan func(...any) error) error {
		found = true
		return scan(&r.oid, &r.kind, &r.persistence, &r.rowSecurity, &r.encoding, &r.partitioning, &r.partitions, &r.gap, &r.unlogged)
	})
	return r, found, err
}

// wrongKind says what the relation is if it is not a table.
func (r relation) wrongKind() string {
	switch r.kind {
	case "r", "p":
		return ""
	case "v":
		return "a view"
	case "m":
		return "a materialized view"
	case "f":
		return "a foreign table"
	case "S":
		return "a sequence"
	case "i", "I":
		return "an index"
	case "c":
		return "a composite type"
	}
	return fmt.Sprintf("a relation of kind %q", r.kind)
}

func (r relation) problems() []string {
	var problems []string
	add := func(problem string) { problems = append(problems, problem) }
	if r.encoding != "UTF8" {
		add("the database's encoding is " + r.encoding + ", which cannot hold every key and answer: want UTF8")
	}
	if r.persistence == "t" {
		add("it is temporary, so no other session sees its keys")
	}
	if r.persistence == "u" {
		add("it is unlogged, and a crash would empty it: ALTER TABLE … SET LOGGED")
	}
	if r.unlogged != "" {
		add("a crash would empty its unlogged partitions " + r.unlogged + ": ALTER TABLE … SET LOGGED")
	}
	if r.rowSecurity {
		// A claim conflicts with rows that its role may not see, and would wait for their holder for ever.
		add("row-level security is enabled, and a key that it hides would be in flight for ever: " +
			"ALTER TABLE … DISABLE ROW LEVEL SECURITY")
	}
	if r.kind == "p" && r.partitioning != "h" {
		add("it is partitioned by " + partitionings[r.partitioning] + ": only PARTITION BY HASH on the key keeps one row " +
			"an event and has a place for every row")
	}
	if r.kind == "p" && !r.partitions {
		add("it has no partition to put a row in")
	}
	if r.partitioning == "h" && r.gap {
		add("a partition is missing, and a key that belongs in it can never be claimed: CREATE TABLE … PARTITION OF … with its remainder")
	}
	return problems
}

var partitionings = map[string]string{"l": "list", "r": "range"}

// column is one of the table's.
type column struct {
	name          string
	typ           string // as SQL spells it
	builtin       string // the type's name if it is PostgreSQL's own
	notNull       bool
	hasDefault    bool // a default or an identity
	generated     bool
	deterministic bool // of the collation; true where there is none
}

const columnsQuery = `
SELECT a.attname::text, pg_catalog.format_type(a.atttypid, a.atttypmod),
       CASE WHEN t.typnamespace = 'pg_catalog'::regnamespace THEN t.typname::text ELSE '' END,
       a.attnotnull, a.atthasdef OR a.attidentity <> '', a.attgenerated <> '', coalesce(l.collisdeterministic, true)
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation
WHERE a.attrelid = $1::text::oid AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum`

func readColumns(ctx context.Context, q Querier, oid string) ([]column, error) {
	var columns []column
	err := eachRow(ctx, q, columnsQuery, oid, func(scan func(...any) error) error {
		var c column
		err := scan(&c.name, &c.typ, &c.builtin, &c.notNull, &c.hasDefault, &c.generated, &c.deterministic)
		columns = append(columns, c)
		return err
	})
	return columns, err
}

// wantedColumns are those that our statements name. Nullable are those that a claim leaves empty.
var wantedColumns = []struct {
	name, builtin, typ string
	nullable           bool
}{
	{name: "source", builtin: "text", typ: "text"},
	{name: "event_id", builtin: "text", typ: "text"},
	{name: "payload_digest", builtin: "bytea", typ: "bytea"},
	{name: "response_status", builtin: "int2", typ: "smallint", nullable: true},
	{name: "response_header", builtin: "jsonb", typ: "jsonb", nullable: true},
	{name: "response_body", builtin: "jsonb", typ: "jsonb", nullable: true},
	{name: "response_raw", builtin: "bytea", typ: "bytea", nullable: true},
	{name: "claimed_at", builtin: "timestamptz", typ: "timestamp with time zone"},
	{name: "completed_at", builtin: "timestamptz", typ: "timestamp with time zone"},
}

func columnProblems(columns []column) []string {
	var problems []string
	byName := make(map[string]column, len(columns))
	for _, c := range columns {
		byName[c.name] = c
	}
	for _, want := range wantedColumns {
		c, ok := byName[want.name]
		delete(byName, want.name)
		switch {
		case !ok:
			problems = append(problems, "the column "+want.name+" is missing")
		case c.builtin != want.builtin:
			problems = append(problems, fmt.Sprintf("the column %s is %s: want %s", c.name, c.typ, want.typ))
		case c.generated:
			problems = append(problems, "the column "+c.name+" is generated, so a claim cannot set it")
		case want.nullable && c.notNull:
			problems = append(problems, "the column "+c.name+" is NOT NULL, and a claim leaves it empty")
		case !c.deterministic:
			problems = append(problems, "the column "+c.name+" "+nondeterministic)
		}
	}
	for _, c := range columns {
		if _, foreign := byName[c.name]; foreign && c.notNull && !c.hasDefault && !c.generated {
			problems = append(problems, "the column "+c.name+" is NOT NULL without a default, and no claim sets it")
		}
	}
	return problems
}

// isAnother reports whether the table has next to none of our columns, so that nobody would repair it.
func isAnother(columns []column) bool {
	ours := 0
	for _, want := range wantedColumns {
		if slices.ContainsFunc(columns, func(c column) bool { return c.name == want.name }) {
			ours++
		}
	}
	return ours == 0
}

// Any deterministic collation compares by bytes in the end, so the database's default passes. It is COLLATE "C" alone that
// also survives an upgrade of the collation library, but a table without it works until then, and no check may take a
// working service down.
const nondeterministic = `has a nondeterministic collation, under which different keys are equal: want COLLATE "C"`

// uniqueKey is a unique index.
type uniqueKey struct {
	name          string
	columns       []string // the key's, sorted; "an expression" for one
	partial       bool
	deferrable    bool
	valid         bool
	deterministic bool // every collation is
}

const uniqueKeysQuery = `
SELECT c.relname::text,
       (SELECT string_agg(coalesce(a.attname::text, 'an expression'), ',' ORDER BY a.attname)
        FROM generate_series(0, i.indnkeyatts - 1) AS k
        LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k] AND a.attnum <> 0),
       i.indpred IS NOT NULL, NOT i.indimmediate, i.indisvalid AND i.indisready AND i.indislive,
       NOT EXISTS (SELECT 1 FROM generate_series(0, i.indnkeyatts - 1) AS k
                   JOIN pg_catalog.pg_collation l ON l.oid = i.indcollation[k] WHERE NOT l.collisdeterministic)
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid = $1::text::oid AND i.indisunique
ORDER BY c.relname`

func readUniqueKeys(ctx context.Context, q Querier, oid string) ([]uniqueKey, error) {
	var keys []uniqueKey
	err := eachRow(ctx, q, uniqueKeysQuery, oid, func(scan func(...any) error) error {
		var k uniqueKey
		var columns string
		err := scan(&k.name, &columns, &k.partial, &k.deferrable, &k.valid, &k.deterministic)
		k.columns = strings.Split(columns, ",")
		keys = append(keys, k)
		return err
	})
	return keys, err
}

// keyProblems looks for the index that decides whether a delivery is the first one, as ON CONFLICT (source, event_id)
// infers it: on exactly these columns, in any order. The server takes every index that matches, so one that it cannot use
// spoils the claim even beside a good one.
func keyProblems(t Table, keys []uniqueKey) []string {
	var problems []string
	usable := false
	for _, k := range keys {
		problem := k.problem()
		switch {
		case k.decides() && problem == "":
			usable = true
		case k.spoils():
			problems = append(problems, problem)
		}
	}
	if usable {
		return problems
	}
	for _, k := range keys {
		if !k.spoils() {
			problems = append(problems, k.problem())
		}
	}
	return append(problems, fmt.Sprintf("nothing keeps (source, event_id) unique: "+
		"ALTER TABLE %s ADD PRIMARY KEY (source, event_id)", t.Quoted()))
}

// decides reports whether the index is on the key's columns.
func (k uniqueKey) decides() bool {
	return slices.Equal(k.columns, []string{"event_id", "source"})
}

// narrower reports whether the index is on a part of the key, so that it holds two different keys for equal.
func (k uniqueKey) narrower() bool {
	return slices.Equal(k.columns, []string{"event_id"}) || slices.Equal(k.columns, []string{"source"})
}

// wider reports whether the index has the key's columns and others, so that it lets the same key in twice.
func (k uniqueKey) wider() bool {
	return !k.decides() && slices.Contains(k.columns, "source") && slices.Contains(k.columns, "event_id")
}

// spoils reports whether claims fail, or miss, because the index exists.
func (k uniqueKey) spoils() bool {
	return k.narrower() || k.decides() && !k.partial && k.valid && (k.deferrable || !k.deterministic)
}

// problem says why the index cannot decide; "" if it can.
func (k uniqueKey) problem() string {
	index := fmt.Sprintf("the unique index %q", k.name)
	on := fmt.Sprintf("%s is on (%s)", index, strings.Join(k.columns, ", "))
	switch {
	case k.narrower():
		return on + " alone, so different keys collide"
	case k.wider():
		return on + ", which lets the same key in twice"
	case !k.decides():
		return on + ", not on the key"
	case k.partial:
		return index + " is partial, so it does not cover every row"
	case k.deferrable:
		return index + " is deferrable, which ON CONFLICT cannot use"
	case !k.valid:
		return index + " is invalid: drop it and create it again, or attach its missing partitions"
	case !k.deterministic:
		return index + " " + nondeterministic
	}
	return ""
}

// eachRow calls visit for every row of a query with one parameter.
func eachRow(ctx context.Context, q Querier, query, arg string, visit func(scan func(...any) error) error) error {
	return eachRowOf(ctx, q, query, []any{arg}, visit)
}

// eachRowOf calls visit for every row of a query. It is not QueryRow: GORM's prepared-statement pools return a Row that
// panics when the preparation has failed.
func eachRowOf(ctx context.Context, q Querier, query string, args []any, visit func(scan func(...any) error) error) (err error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, rows.Close())
	}()
	for rows.Next() {
		if err := visit(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}
