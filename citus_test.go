package idempotency_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"gorm.io/driver/postgres"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/migrations"
)

// On a Citus cluster, whose coordinator IDEMPOTENCY_TEST_CITUS_DSN names and which has the extension, a table that is
// distributed by event_id keeps the promise, and is swept by key, since it has no ctid.
func TestCitus(t *testing.T) {
	t.Parallel()
	dsn := os.Getenv("IDEMPOTENCY_TEST_CITUS_DSN")
	if dsn == "" {
		t.Skip("IDEMPOTENCY_TEST_CITUS_DSN names no cluster")
	}
	table := fmt.Sprintf("keys_%d", time.Now().UnixNano())
	db := open(t, setup{driver: postgres.Open(dsn), config: idempotency.Config{Table: table}})
	pool, err := db.DB()
	requireError(t, err, nil)
	t.Cleanup(func() {
		pool := open(t, setup{driver: postgres.Open(dsn)})
		mustExec(t, pool, "DROP TABLE IF EXISTS "+table+", "+table+"_goose_versions")
	})
	requireError(t, migrations.Up(t.Context(), pool, migrations.WithTable(table)), nil)
	mustExec(t, db, "SELECT create_distributed_table('"+table+"', 'event_id')")
	requireError(t, idempotency.CheckSchema(t.Context(), db), nil)

	event := table // orders is shared by all runs
	for _, replayed := range []bool{false, true} {
		result, err := idempotency.Do(db, "s", event, []byte("body"), placeOrder(event))
		if err != nil || result.Replayed != replayed || result.Status != 201 {
			t.Errorf("got %+v, %v", result, err)
		}
	}
	requireEffects(t, db, event, 1)
	_, err = idempotency.Do(db, "s", event, []byte("changed"), unwanted(t))
	requireError(t, err, idempotency.ErrDigestMismatch)
	held := hold(t, db, "s", event+" held", nil)
	_, err = idempotency.Do(db, "s", event+" held", nil, unwanted(t), idempotency.WithWait(0))
	requireError(t, err, idempotency.ErrInFlight)
	held.end(nil)
	requireError(t, held.err, nil)

	mustExec(t, db, fmt.Sprintf(`INSERT INTO %s (source, event_id, payload_digest, claimed_at, completed_at)
		SELECT CASE WHEN n <= 1000 THEN 'old' ELSE 'live' END, n::text, '\x00', at, at FROM generate_series(1, 10000) AS n,
		LATERAL (SELECT now() - CASE WHEN n <= 1000 THEN interval '31 days' ELSE interval '1 day' END AS at) AS age`, table))
	report, err := newSweeper(t, db, idempotency.SweeperConfig{BatchSize: 300}).Sweep(t.Context())
	if err != nil || report.Deleted != 1000 || !report.CaughtUp {
		t.Errorf("swept %+v, %v", report, err)
	}
	if live := read[int](t, db, "SELECT count(*) FROM "+table+" WHERE source = 'live'"); live != 9000 {
		t.Errorf("%d of 9000 live keys are left", live)
	}
}
