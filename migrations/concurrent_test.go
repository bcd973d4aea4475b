package migrations_test

import (
	"context"
	"database/sql"
	"os"
	osexec "os/exec"
	"sync"
	"testing"
	"time"

	"github.com/gorm-idempotency/idempotency/migrations"
)

const oneVersionEach = "0|true\n1|true"

// together calls fn n times at once.
func together(t *testing.T, n int, fn func() error) {
	t.Helper()
	start := make(chan struct{})
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			<-start
			if err := fn(); err != nil {
				t.Error(err)
			}
		})
	}
	close(start)
	all.Wait()
}

// C63: a deploy starts many pods, and each migrates.
func TestManyMigrateAtOnce(t *testing.T) {
	t.Parallel()
	for name, setting := range map[string]string{"": "", "repeatable read": "repeatable read", "serializable": "serializable"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			dsn := emptyDatabase(t)
			if setting != "" {
				dsn = withSetting(dsn, "default_transaction_isolation", setting)
			}
			pool := open(t, dsn)
			pods := make(chan *sql.DB, 16)
			for range cap(pods) {
				pod := open(t, dsn)
				pod.SetMaxOpenConns(1)
				pods <- pod
			}
			start := time.Now()
			for range 3 {
				together(t, cap(pods), func() error {
					pod := <-pods
					defer func() { pods <- pod }()
					return migrations.Up(ctx, pod)
				})
				equal(t, "versions", query(t, pool, versionsOf+"idempotency_goose_version ORDER BY id"), oneVersionEach)
				ok(t, migrations.Validate(ctx, pool))
				together(t, 4, func() error { return migrations.Down(ctx, pool) })
				equal(t, "relations", query(t, pool, relations), "public.idempotency_goose_version")
				exec(t, pool, "DROP TABLE idempotency_goose_version")
			}
			if took := time.Since(start); took > 30*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

// processServer and processDatabase tell a pod what to migrate.
const (
	processServer   = "IDEMPOTENCY_TEST_DSN"
	processDatabase = "IDEMPOTENCY_TEST_MIGRATIONS_DATABASE"
)

// TestProcess is a pod of TestProcessesMigrateAtOnce.
func TestProcess(t *testing.T) {
	name := os.Getenv(processDatabase)
	if name == "" {
		return // it is not one
	}
	admin, err := server()
	ok(t, err)
	pool := open(t, database(admin, name))
	together(t, 4, func() error { return migrations.Up(context.Background(), pool) })
}

// C63
func TestProcessesMigrateAtOnce(t *testing.T) {
	t.Parallel()
	dsn := emptyDatabase(t) // its ConnString is still the server's
	program, err := os.Executable()
	ok(t, err)
	together(t, 4, func() error {
		pod := osexec.Command(program, "-test.run=^TestProcess$", "-test.count=1")
		pod.Env = append(os.Environ(), processServer+"="+dsn.ConnString(), processDatabase+"="+dsn.Database)
		output, err := pod.CombinedOutput()
		if err != nil {
			t.Logf("%s", output)
		}
		return err
	})
	pool := open(t, dsn)
	equal(t, "versions", query(t, pool, versionsOf+"idempotency_goose_version ORDER BY id"), oneVersionEach)
	ok(t, migrations.Validate(context.Background(), pool))
}

// C63, through a pooler that lends a server connection for one transaction, where a session's lock would stay behind.
func TestManyMigrateThroughATransactionPooler(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	dsn := emptyDatabase(t)
	pooler := newTransactionPooler(t, dsn, 3)
	pods := make(chan *sql.DB, 16)
	for range cap(pods) {
		pod := sql.OpenDB(pooler)
		t.Cleanup(func() { ok(t, pod.Close()) })
		pods <- pod
	}
	direct := open(t, dsn)
	for range 3 {
		together(t, cap(pods), func() error {
			pod := <-pods
			defer func() { pods <- pod }()
			return migrations.Up(ctx, pod)
		})
		equal(t, "versions", query(t, direct, versionsOf+"idempotency_goose_version ORDER BY id"), oneVersionEach)
		pod := <-pods
		ok(t, migrations.Validate(ctx, pod))
		ok(t, migrations.Down(ctx, pod))
		pods <- pod
		exec(t, direct, "DROP TABLE idempotency_goose_version")
	}
	equal(t, "locks left behind", query(t, direct, `SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`), "0")
}
