package pgsql_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gorm-idempotency/idempotency/internal/pglocal"
	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

// begin opens a transaction, and rolls it back when the test ends.
func begin(t *testing.T, pool *sql.DB, statements ...string) *sql.Tx {
	t.Helper()
	tx, err := pool.BeginTx(context.Background(), nil)
	ok(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	for _, statement := range statements {
		if _, err := tx.ExecContext(context.Background(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	return tx
}

// claimed are the statements of a transaction that has claimed a key of the table keys.
func claimed(source, id string) []string {
	return []string{
		fmt.Sprintf("SELECT pg_advisory_xact_lock(%d::bigint # 'keys'::regclass::oid::bigint)", pgsql.LockNumber(source, id)),
		fmt.Sprintf("INSERT INTO keys (source, event_id, payload_digest) VALUES ('%s', '%s', '')", source, id),
	}
}

func newKeys(t *testing.T) (*sql.DB, pgsql.Table) {
	t.Helper()
	pool, _ := newDatabase(t, "ENCODING 'UTF8'")
	exec(t, pool, strings.ReplaceAll(right, "S.keys", "keys"))
	return pool, pgsql.Table{Name: "keys"}
}

// Parts of a key that run together are different keys, whatever the sign of the number.
func TestLockNumberTellsKeysApart(t *testing.T) {
	t.Parallel()
	numbers := []int64{
		pgsql.LockNumber("ab", "c"), pgsql.LockNumber("a", "bc"), pgsql.LockNumber("", "abc"), pgsql.LockNumber("abc", ""), pgsql.LockNumber("c", "ab"),
	}
	slices.Sort(numbers)
	if len(slices.Compact(numbers)) != 5 {
		t.Error("two keys share a number")
	}
	// Pinned: processes of two versions work side by side during a deployment.
	if got := pgsql.LockNumber("stripe", "evt_1"); got != -6384020767169765892 {
		t.Errorf("stripe, evt_1 has the number %d", got)
	}
}

// The holder of a key is found by the key's lock, whatever the sign of its number, and no other transaction is.
func TestHolderOf(t *testing.T) {
	t.Parallel()
	pool, table := newKeys(t)
	signs := make(map[bool]bool)
	for n := range 12 {
		id := fmt.Sprint("evt_", n)
		signs[pgsql.LockNumber("s", id) < 0] = true
		if holder, err := pgsql.HolderOf(t.Context(), pool, table, "s", id); err != nil || holder != nil {
			t.Fatalf("%s: got %+v, %v", id, holder, err)
		}
		tx := begin(t, pool, claimed("s", id)...)
		var pid int
		ok(t, tx.QueryRow("SELECT pg_backend_pid()").Scan(&pid))
		holder, err := pgsql.HolderOf(t.Context(), pool, table, "s", id)
		if err != nil || holder == nil || holder.PID != pid || !holder.Visible() || holder.Age <= 0 || holder.State != "idle in transaction" || holder.User == "" {
			t.Errorf("%s: got %+v, %v; want %d", id, holder, err, pid)
		}
	}
	if len(signs) != 2 {
		t.Error("all numbers have one sign")
	}
}

// The lock of the same key of another table is another one, and a lock in another database is none of ours.
func TestHolderOfGoesByTheTable(t *testing.T) {
	t.Parallel()
	pool, table := newKeys(t)
	exec(t, pool, "CREATE SCHEMA other", strings.ReplaceAll(right, "S.keys", "other.keys"))
	begin(t, pool, claimed("s", "evt")...)
	if holder, err := pgsql.HolderOf(t.Context(), pool, pgsql.Table{Schema: "other", Name: "keys"}, "s", "evt"); err != nil || holder != nil {
		t.Errorf("got %+v, %v", holder, err)
	}
	if holders, count, err := pgsql.Holders(t.Context(), pool, pgsql.Table{Schema: "other", Name: "keys"}); err != nil || count != 0 || len(holders) != 0 {
		t.Errorf("got %+v, %d, %v", holders, count, err)
	}
	if holder, err := pgsql.HolderOf(t.Context(), pool, table, "s", "evt"); err != nil || holder == nil {
		t.Errorf("got %+v, %v", holder, err)
	}
}

// Holders are counted beyond those that are listed, the oldest first, with the first of their locks; a reader is none, and a
// sweeper's lock is no key.
func TestHoldersAreListedAndCounted(t *testing.T) {
	t.Parallel()
	pool, table := newKeys(t)
	begin(t, pool, "SELECT * FROM keys")
	oldest := begin(t, pool, append(claimed("s", "first"), "SELECT pg_advisory_xact_lock(generate_series(1, 9))",
		"SELECT pg_advisory_xact_lock(hashtextextended('idempotency sweep', 0) # 'keys'::regclass::oid::bigint)")...)
	var pid int
	ok(t, oldest.QueryRow("SELECT pg_backend_pid()").Scan(&pid))
	for n := range 22 {
		begin(t, pool, claimed("s", fmt.Sprint("evt_", n))...)
	}
	holders, count, err := pgsql.Holders(t.Context(), pool, table)
	if err != nil || count != 23 || len(holders) != 20 || holders[0].PID != pid || holders[0].Keys != 10 || len(holders[0].Locks) != 5 || holders[1].Keys != 1 {
		t.Errorf("got %d of %d, %v: %+v; want the backend %d first, with 10 locks", len(holders), count, err, holders, pid)
	}
}

// Sessions of other roles are seen with pg_read_all_stats alone.
func TestHiddenCountsWhatThisRoleMayNotSee(t *testing.T) {
	t.Parallel()
	pool, table := newKeys(t)
	begin(t, pool, claimed("s", "evt")...)
	hidden, err := pgsql.Hidden(t.Context(), pool, table)
	if err != nil || hidden != 0 {
		t.Errorf("a superuser: %d, %v", hidden, err)
	}
	role := fmt.Sprintf("hidden_%s", strings.ToLower(t.Name()))
	exec(t, pool, "CREATE ROLE "+role)
	t.Cleanup(func() { exec(t, pool, "DROP ROLE "+role) })
	tx := begin(t, pool, "SET LOCAL ROLE "+role)
	if hidden, err = pgsql.Hidden(t.Context(), tx, table); err != nil || hidden == 0 {
		t.Errorf("another role: %d, %v", hidden, err)
	}
	holder, err := pgsql.HolderOf(t.Context(), tx, table, "s", "evt")
	if err != nil || holder == nil || holder.Visible() || holder.PID == 0 {
		t.Errorf("got %+v, %v; want a holder since nobody knows when", holder, err)
	}
	holders, _, err := pgsql.Holders(t.Context(), tx, table)
	if err != nil || len(holders) != 1 || holders[0].Visible() || holders[0].Keys != 1 {
		t.Errorf("got %+v, %v", holders, err)
	}
}

// A prepared transaction has no backend, and holds its keys until somebody remembers it, over every restart.
func TestPreparedTransactionsAreHolders(t *testing.T) {
	t.Parallel()
	s, err := pglocal.Start(t.Context(), pglocal.Options{Settings: map[string]string{"max_prepared_transactions": "5"}})
	ok(t, err)
	t.Cleanup(func() { ok(t, s.Stop()) })
	pool, err := sql.Open("pgx", s.DSN("postgres"))
	ok(t, err)
	t.Cleanup(func() { ok(t, pool.Close()) })
	exec(t, pool, strings.ReplaceAll(right, "S.keys", "keys"))
	table := pgsql.Table{Name: "keys"}
	tx := begin(t, pool, append(claimed("s", "evt"), "SAVEPOINT a", "INSERT INTO keys (source, event_id, payload_digest) VALUES ('s', 'more', '')",
		"PREPARE TRANSACTION 'forgotten'")...)
	ok(t, tx.Rollback()) // it has left the session
	other := begin(t, pool, claimed("s", "evt_2")...)

	holder, err := pgsql.HolderOf(t.Context(), pool, table, "s", "evt")
	if err != nil || holder == nil || holder.PID != 0 || holder.Prepared != "forgotten" || !holder.Visible() || holder.User == "" {
		t.Errorf("got %+v, %v", holder, err)
	}
	holders, count, err := pgsql.Holders(t.Context(), pool, table)
	if err != nil || count != 2 || holders[0].Prepared != "forgotten" || holders[0].Keys != 1 || holders[1].Prepared != "" || holders[1].PID == 0 {
		t.Errorf("got %+v, %v", holders, err)
	}
	snapshot, err := pgsql.OldestSnapshot(t.Context(), pool, table)
	if err != nil || snapshot == nil || snapshot.Prepared != "forgotten" {
		t.Errorf("got %+v, %v", snapshot, err)
	}
	ok(t, other.Rollback())

	waiting := make(chan error, 1)
	go func() {
		_, err := pool.ExecContext(context.Background(), "INSERT INTO keys (source, event_id, payload_digest) VALUES ('s', 'evt', '')")
		waiting <- err
	}()
	var waiters []pgsql.Waiter
	for len(waiters) == 0 && t.Context().Err() == nil {
		waiters, count, err = pgsql.Waiters(t.Context(), pool, table)
		ok(t, err)
	}
	if count != 1 || !slices.Equal(waiters[0].BlockedBy, []int{0}) {
		t.Errorf("got %+v", waiters)
	}
	exec(t, pool, "ROLLBACK PREPARED 'forgotten'")
	ok(t, <-waiting)
}
