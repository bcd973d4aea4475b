package migrations

// takeTurns are the first statements of each transaction that changes anything. Whoever comes second waits in the server
// until the first has committed, and then finds its work done: every migration says IF NOT EXISTS or the like, and a
// version is inserted only if it is missing.
//
//   - A transaction-level lock, unlike goose's session locker (pg_try_advisory_lock), also works behind PgBouncer in
//     transaction mode, where the unlock may reach another server connection and the lock then stays for as long as that
//     connection lives. goose's table locker needs a second connection, so it hangs in a pool of one, and a lease that a
//     killed process leaves behind has to expire. Both poll, at best once a second; this one wakes at once, ends with the
//     context, and is gone with its connection.
//   - READ COMMITTED is asked for, since a role's default may differ: the lock's own SELECT would take the snapshot of a
//     REPEATABLE READ transaction before the wait, and the version that was recorded meanwhile would be recorded twice.
//   - One lock for all tables and version tables: a migration takes milliseconds. It is not goose's default lock, which
//     an application's own goose run may hold while it calls Up.
//
// A migration that cannot run in a transaction (CREATE INDEX CONCURRENTLY) must not begin with these: a waiter's snapshot
// would stall it. There is none so far.
var takeTurns = []string{
	"SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
	"SELECT pg_catalog.pg_advisory_xact_lock(" + lockID + ")",
}

// lockID is the first 8 bytes of the SHA-256 of this package's import path.
const lockID = "8295383109394550928"
