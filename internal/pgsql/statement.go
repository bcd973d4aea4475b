package pgsql

import "strconv"

// Statements are the library's statements on one table, rendered once.
type Statements struct {
	Claim         string
	ClaimUnlocked string
	Lookup        string
	Complete      string
	CompleteOne   string
	Key           string
	Forget        string
}

// Render writes the statements for one table. Their text does not depend on the key, so that a connection prepares
// each of them once.
func Render(table Table) Statements {
	name := table.Quoted()
	// The body is sent once, as bytes; the operator's copy is made of them here, if the caller says that JSONB accepts it.
	// Bytes bound to a JSONB parameter would arrive as \x… under pgx's simple protocol.
	complete := `UPDATE ` + name + ` SET response_status = $3::smallint, response_header = $4::text::jsonb, response_raw = $5::bytea,
response_body = CASE WHEN $6::boolean THEN convert_from($5::bytea, 'UTF8')::jsonb END
WHERE source = $1::text AND event_id = $2::text AND response_status IS NULL`
	return Statements{
		// completed_at is set by the claim: the row is visible to others only once this transaction has committed, and
		// then it is complete. Setting it later would change a column of the partial index's predicate, which rules out
		// HOT updates. clock_timestamp() and not now(): a caller's transaction may be old.
		//
		// The advisory lock is tried once, before the insert: a duplicate is told at once instead of blocking inside
		// the server with a pool connection in hand. The unique index still decides. The table's oid is mixed in by the
		// server, since one name means different tables under different search paths.
		Claim: `INSERT INTO ` + name + ` (source, event_id, payload_digest, claimed_at, completed_at)
SELECT $1::text, $2::text, $3::bytea, t, t FROM clock_timestamp() AS t
WHERE pg_try_advisory_xact_lock($4::bigint # '` + name + `'::regclass::oid::bigint)
ON CONFLICT (source, event_id) DO NOTHING
RETURNING claimed_at`,

		// Locks are a resource of the whole server: a transaction that claims thousands of keys goes on without.
		ClaimUnlocked: `INSERT INTO ` + name + ` (source, event_id, payload_digest, claimed_at, completed_at)
SELECT $1::text, $2::text, $3::bytea, t, t FROM clock_timestamp() AS t
ON CONFLICT (source, event_id) DO NOTHING
RETURNING claimed_at`,

		// A statement of its own, and not a CTE around the claim: it needs a newer snapshot than the claim's.
		Lookup: `SELECT payload_digest, response_status, response_header::text, response_raw, claimed_at, completed_at IS NOT NULL
FROM ` + name + ` WHERE source = $1::text AND event_id = $2::text`,

		Complete: complete,

		// For where COMMIT is on its way behind it: it divides by zero unless it changed exactly one row.
		CompleteOne: `WITH completed AS (` + complete + ` RETURNING 1)
SELECT 1 / (count(*) = 1)::int FROM completed`,

		Key: `SELECT payload_digest, response_status, response_header::text, response_body::text, response_raw, claimed_at, completed_at
FROM ` + name + ` WHERE source = $1::text AND event_id = $2::text`,

		// It takes the claim's lock if that is free, for a transaction that goes on: a delivery that comes meanwhile is
		// told at once, as beside a claim, instead of blocking on the deleted row.
		Forget: `DELETE FROM ` + name + ` WHERE source = $1::text AND event_id = $2::text
AND pg_try_advisory_xact_lock($3::bigint # '` + name + `'::regclass::oid::bigint) IS NOT NULL`,
	}
}

// Savepoint, ReleaseSavepoint and RollbackToSavepoint are the joined calls' statements. Calls inside one another have a name
// each: by a common one, calls that overlap by mistake would undo each other.

// Savepoint begins the savepoint of a joined call that is the depth-th on its transaction.
func Savepoint(depth int) string { return "SAVEPOINT " + savepoint(depth) }

// ReleaseSavepoint ends it, and keeps what was done since.
func ReleaseSavepoint(depth int) string { return "RELEASE SAVEPOINT " + savepoint(depth) }

// RollbackToSavepoint undoes what was done since.
func RollbackToSavepoint(depth int) string { return "ROLLBACK TO SAVEPOINT " + savepoint(depth) }

func savepoint(depth int) string { return "idempotency_" + strconv.Itoa(depth) }
