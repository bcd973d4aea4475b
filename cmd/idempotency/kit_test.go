package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/gorm-idempotency/idempotency/gormtest"
)

// keys is a database of the test's own, with the table of keys.
type keys struct {
	dsn  string
	pool *sql.DB
}

func newKeys(t *testing.T) *keys {
	t.Helper()
	k := &keys{dsn: gormtest.DSN(t)}
	pool, err := sql.Open("pgx", k.dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close() })
	k.pool = pool
	return k
}

func (k *keys) exec(t *testing.T, statement string, args ...any) {
	t.Helper()
	if _, err := k.pool.ExecContext(context.Background(), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// insert writes keys that were claimed so long ago.
func (k *keys) insert(t *testing.T, source string, number int, age time.Duration) {
	t.Helper()
	k.exec(t, fmt.Sprintf(`INSERT INTO idempotency_keys (source, event_id, payload_digest, claimed_at, completed_at, response_status, response_raw)
		SELECT $1::text, md5(n || random()::text), '\x00', at, at, 200, '\x6f6b' FROM generate_series(1, %d) AS n,
		LATERAL (SELECT now() - interval '1 second' * %f AS at) AS age`, number, age.Seconds()), source)
}

// require fails the test unless so many keys of the source are left.
func (k *keys) require(t *testing.T, source string, want int) {
	t.Helper()
	var got int
	if err := k.pool.QueryRow(`SELECT count(*) FROM idempotency_keys WHERE source = $1`, source).Scan(&got); err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Errorf("%d keys of %q are left, want %d", got, source, want)
	}
}

// call runs a command on the database.
func (k *keys) call(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	return try(t, append(args, "--dsn", k.dsn)...)
}

// parse reads what a command printed for a machine.
func parse[T any](t *testing.T, text string) T {
	t.Helper()
	var value T
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return value
}

// eventually waits for a condition, with a limit.
func (k *keys) eventually(t *testing.T, condition string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		var ok bool
		if err := k.pool.QueryRow(condition).Scan(&ok); err != nil {
			t.Fatal(err)
		}
		if ok {
			return
		}
	}
	t.Fatalf("did not happen: %s", condition)
}
