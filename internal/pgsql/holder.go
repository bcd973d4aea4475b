package pgsql

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// LockNumber is the number of a key's advisory lock, before the server mixes in the table's oid. Each part is preceded by
// its length, so that ("ab", "c") and ("a", "bc") differ.
func LockNumber(source, eventID string) int64 {
	text := make([]byte, 0, 16+len(source)+len(eventID))
	for _, part := range []string{source, eventID} {
		text = binary.BigEndian.AppendUint64(text, uint64(len(part)))
		text = append(text, part...)
	}
	sum := sha256.Sum256(text)
	return int64(binary.BigEndian.Uint64(sum[:8])) //nolint:gosec // all 64 bits are meant, the sign included
}

// Session is a backend of the server, as this role sees it, or a prepared transaction, which has none.
type Session struct {
	PID         int    // 0 for a prepared transaction
	Prepared    string // that transaction's identifier
	User        string
	Application string
	State       string        // as pg_stat_activity has it; "" where this role may not see it
	Since       time.Time     // when its transaction began, by the database's clock; zero where this role may not see it
	Age         time.Duration // the time since
}

// Visible reports whether this role may see how long the session has been at it.
func (s *Session) Visible() bool { return !s.Since.IsZero() }

// Holder is a transaction that has written to the table and not ended: whoever claims one of its keys has to wait.
type Holder struct {
	Session

	// Keys is how many advisory locks it has: one a claim, and the application's own. Locks are the first of them, as
	// classid/objid in pg_locks. None: what it wrote, it wrote without the library.
	Keys  int
	Locks []string
}

// Waiter is a backend that waits for a lock, on the table or with a key in hand.
type Waiter struct {
	Session

	BlockedBy []int         // the backends it waits for; 0 is a prepared transaction
	Waiting   time.Duration // since its statement began
}

// listed is how many sessions a list holds at most, the oldest first; its callers are told how many there are.
const listed = 20

// relations are the table and its partitions at every level, each with its kind. It takes no lock on any of them, unlike
// pg_partition_tree: it has to answer while somebody holds the table for an ALTER.
const relations = `relations AS (
  SELECT c.oid, c.relkind FROM pg_catalog.pg_class c WHERE c.oid = pg_catalog.to_regclass($1::text)
  UNION ALL
  SELECT c.oid, c.relkind FROM relations r
  JOIN pg_catalog.pg_inherits i ON i.inhparent = r.oid AND r.relkind = 'p' JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
)`

// locks is one look at the server's locks: those of this database, and of transaction numbers, which are in none.
const locks = `locks AS MATERIALIZED (
  SELECT * FROM pg_catalog.pg_locks
  WHERE coalesce(database, 0) IN (0, (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database()))
)`

// session are the columns of a Session, of a pg_stat_activity a and a pg_prepared_xacts p.
const session = `coalesce(a.pid, 0), coalesce(p.gid, ''), coalesce(a.usename, p.owner, '')::text, coalesce(a.application_name, ''),
  coalesce(a.state, ''), coalesce(a.xact_start, p.prepared),
  coalesce(extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared)), 0)::double precision`

// destinations are where session is scanned to.
func (s *Session) destinations(since **time.Time, seconds *float64) []any {
	return []any{&s.PID, &s.Prepared, &s.User, &s.Application, &s.State, since, seconds}
}

// at fills in what destinations could not.
func (s *Session) at(since *time.Time, seconds float64) {
	if since != nil {
		s.Since, s.Age = *since, Seconds(seconds)
	}
}

// Seconds is a duration that the server gave as a number of seconds.
func Seconds(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

// holdersQuery counts a transaction's advisory locks but for the sweepers' own.
const holdersQuery = `
WITH RECURSIVE ` + relations + `, ` + locks + `,
writer AS (
  SELECT virtualtransaction, max(pid) AS pid FROM locks
  WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted AND relation IN (SELECT oid FROM relations)
  GROUP BY virtualtransaction
)
SELECT ` + session + `, count(k.objid), coalesce(array_to_string((array_agg(k.classid || '/' || k.objid))[1:5], ','), ''),
       count(*) OVER ()
FROM writer w
LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = w.pid
LEFT JOIN pg_catalog.pg_prepared_xacts p ON w.pid IS NULL AND p.transaction IN (
  SELECT l.transactionid FROM locks l WHERE l.locktype = 'transactionid' AND l.virtualtransaction = w.virtualtransaction)
LEFT JOIN locks k ON k.locktype = 'advisory' AND k.objsubid = 1 AND k.granted AND k.virtualtransaction = w.virtualtransaction
  AND (k.classid::bigint << 32 | k.objid::bigint) <> hashtextextended('idempotency sweep', 0) # pg_catalog.to_regclass($1::text)::oid::bigint
WHERE w.pid IS DISTINCT FROM pg_backend_pid()
GROUP BY w.virtualtransaction, a.pid, a.usename, a.application_name, a.state, a.xact_start, p.gid, p.owner, p.prepared
ORDER BY coalesce(a.xact_start, p.prepared) NULLS LAST
LIMIT `

// Holders lists the transactions that have written to the table and not ended, the oldest first, and says how many there
// are in all.
func Holders(ctx context.Context, q Querier, t Table) (holders []Holder, count int, err error) {
	err = eachRow(ctx, q, holdersQuery+strconv.Itoa(listed), t.Quoted(), func(scan func(...any) error) error {
		var h Holder
		var since *time.Time
		var seconds float64
		var numbers string
		if err := scan(append(h.destinations(&since, &seconds), &h.Keys, &numbers, &count)...); err != nil {
			return err
		}
		h.at(since, seconds)
		if numbers != "" {
			h.Locks = strings.Split(numbers, ",")
		}
		holders = append(holders, h)
		return nil
	})
	if err != nil {
		return nil, 0, fmt.Errorf("list the holders of keys: %w", err)
	}
	return holders, count, nil
}

const holderQuery = `
WITH RECURSIVE ` + locks + `
SELECT ` + session + `
FROM locks k
LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = k.pid
LEFT JOIN pg_catalog.pg_prepared_xacts p ON k.pid IS NULL AND p.transaction IN (
  SELECT l.transactionid FROM locks l WHERE l.locktype = 'transactionid' AND l.virtualtransaction = k.virtualtransaction)
WHERE k.locktype = 'advisory' AND k.objsubid = 1 AND k.granted
  AND (k.classid::bigint << 32 | k.objid::bigint) = $2::text::bigint # pg_catalog.to_regclass($1::text)::oid::bigint`

// HolderOf finds the transaction that holds a key, or nil. It goes by the key's lock, so that it does not see a holder that
// is not this library, nor one that has claimed more keys than it takes locks for.
func HolderOf(ctx context.Context, q Querier, t Table, source, eventID string) (*Session, error) {
	holder, err := findSession(ctx, q, holderQuery, t.Quoted(), strconv.FormatInt(LockNumber(source, eventID), 10))
	if err != nil {
		return nil, fmt.Errorf("look for the key's holder: %w", err)
	}
	return holder, nil
}

// waitersQuery asks for the blockers of the listed ones alone: pg_blocking_pids stops the server's lock manager for a moment.
const waitersQuery = `
WITH RECURSIVE ` + relations + `, ` + locks + `,
ours AS (SELECT * FROM locks WHERE relation IN (SELECT oid FROM relations)),
waiter AS (
  SELECT pid FROM ours WHERE NOT granted
  UNION
  SELECT l.pid FROM locks l JOIN ours o ON o.pid = l.pid AND o.granted AND o.mode = 'RowExclusiveLock' WHERE NOT l.granted
),
oldest AS (
  SELECT a.*, count(*) OVER () AS waiters FROM waiter w JOIN pg_catalog.pg_stat_activity a ON a.pid = w.pid
  ORDER BY a.query_start NULLS LAST LIMIT `

const waitersColumns = `
)
SELECT ` + session + `, array_to_string(pg_catalog.pg_blocking_pids(a.pid), ','),
       coalesce(extract(epoch FROM clock_timestamp() - a.query_start), 0)::double precision, a.waiters
FROM oldest a LEFT JOIN pg_catalog.pg_prepared_xacts p ON false ORDER BY a.query_start NULLS LAST`

// Waiters lists the backends that wait for a lock on the table, or for any lock while they hold keys, the longest wait
// first, and says how many there are in all.
func Waiters(ctx context.Context, q Querier, t Table) (waiters []Waiter, count int, err error) {
	err = eachRow(ctx, q, waitersQuery+strconv.Itoa(listed)+waitersColumns, t.Quoted(), func(scan func(...any) error) error {
		var w Waiter
		var since *time.Time
		var seconds, waiting float64
		var blockers string
		if err := scan(append(w.destinations(&since, &seconds), &blockers, &waiting, &count)...); err != nil {
			return err
		}
		w.at(since, seconds)
		w.Waiting = Seconds(waiting)
		for text := range strings.SplitSeq(blockers, ",") {
			if pid, err := strconv.Atoi(text); err == nil {
				w.BlockedBy = append(w.BlockedBy, pid)
			}
		}
		waiters = append(waiters, w)
		return nil
	})
	if err != nil {
		return nil, 0, fmt.Errorf("list who waits for keys: %w", err)
	}
	return waiters, count, nil
}

// oldestSnapshotQuery leaves out VACUUM, whose snapshot keeps no row from another VACUUM.
const oldestSnapshotQuery = `
SELECT ` + session + `
FROM pg_catalog.pg_stat_activity a
FULL JOIN pg_catalog.pg_prepared_xacts p ON false
WHERE coalesce(a.datname, p.database)::text = current_database() AND a.pid IS DISTINCT FROM pg_backend_pid() AND $1::text <> ''
  AND (a.pid IS NULL OR a.backend_type = 'client backend' AND coalesce(a.backend_xmin, a.backend_xid) IS NOT NULL
                        AND a.query NOT ILIKE 'vacuum%')
ORDER BY coalesce(a.xact_start, p.prepared) LIMIT 1`

// OldestSnapshot finds the transaction that has kept deleted rows of this database from VACUUM for the longest, or nil.
func OldestSnapshot(ctx context.Context, q Querier, t Table) (*Session, error) {
	oldest, err := findSession(ctx, q, oldestSnapshotQuery, t.Quoted())
	if err != nil {
		return nil, fmt.Errorf("look for old snapshots: %w", err)
	}
	return oldest, nil
}

// findSession reads the one session that a query finds, or nil.
func findSession(ctx context.Context, q Querier, query string, args ...any) (found *Session, err error) {
	err = eachRowOf(ctx, q, query, args, func(scan func(...any) error) error {
		var s Session
		var since *time.Time
		var seconds float64
		if err := scan(s.destinations(&since, &seconds)...); err != nil {
			return err
		}
		s.at(since, seconds)
		found = &s
		return nil
	})
	return found, err
}

// hiddenQuery goes by what the server itself writes into a row that this role may not see.
const hiddenQuery = `SELECT count(*) FROM pg_catalog.pg_stat_activity
WHERE datname = current_database() AND query = '<insufficient privilege>' AND $1::text <> ''`

// Hidden counts the sessions on this database that this role may not see the state of.
func Hidden(ctx context.Context, q Querier, t Table) (count int, err error) {
	err = eachRow(ctx, q, hiddenQuery, t.Quoted(), func(scan func(...any) error) error { return scan(&count) })
	if err != nil {
		return 0, fmt.Errorf("count the sessions that are hidden: %w", err)
	}
	return count, nil
}
