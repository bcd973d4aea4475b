package pgsql_test

import (
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

// A larger table does not take longer: of its pages only so many are read, and none of the answers.
func TestStatsReadABoundedPartOfTheTable(t *testing.T) {
	t.Parallel()
	pool, table := newKeys(t)
	exec(t, pool, `ALTER TABLE keys ALTER response_raw SET STORAGE EXTERNAL`)
	exec(t, pool, `INSERT INTO keys (source, event_id, payload_digest, response_status, response_raw)
		SELECT 's' || n % 3, n::text, '\x00', 200, CASE WHEN n % 100 = 0 THEN decode(repeat('00', 8000), 'hex') END FROM generate_series(1, 60000) AS n`)

	const pages = 50
	tx := begin(t, pool)
	keysBefore, answersBefore := fetched(t, tx)
	stats, err := pgsql.ReadStats(t.Context(), tx, table, pages)
	ok(t, err)
	keys, answers := fetched(t, tx)
	read := keys - keysBefore
	// Give or take 7: eight times that is no bad luck any more.
	if read == 0 || read > pages+56 || stats.Pages < 5*pages {
		t.Errorf("%d of %d pages were read, want about %d", read, stats.Pages, pages)
	}
	if answers != answersBefore {
		t.Errorf("%d pages of answers were read", answers-answersBefore)
	}
	if stats.Keys < 10_000 || stats.Keys > 200_000 || stats.AnswerBytes == 0 || len(stats.Sources) != 3 {
		t.Errorf("60,000 keys of 3 sources are estimated as %+v", stats)
	}
}

// fetched is how many pages of the keys, and of their answers, this session has asked for.
func fetched(t *testing.T, tx *sql.Tx) (keys, answers int64) {
	t.Helper()
	ok(t, tx.QueryRow(`SELECT pg_stat_get_xact_blocks_fetched(oid), pg_stat_get_xact_blocks_fetched(reltoastrelid)
		FROM pg_class WHERE oid = 'keys'::regclass`).Scan(&keys, &answers))
	return keys, answers
}

// A count that takes too long is given up; without a limit of ours the server's own holds.
func TestCountSettings(t *testing.T) {
	t.Parallel()
	if s := pgsql.CountSettings(0); strings.Contains(s, "statement_timeout") {
		t.Errorf("no limit of ours, and the server's is gone: %s", s)
	}
	pool, _ := newKeys(t)
	tx, err := pool.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.Exec(pgsql.CountSettings(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(`SELECT pg_sleep(60)`); pgsql.State(err) != "57014" {
		t.Errorf("error %v, want a statement that was cancelled", err)
	}
}
