package conformance

import (
	"database/sql/driver"
	"errors"
	"slices"
	"strings"
	"testing"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
)

// Protocol proves by the log of a driver which statements each path through the protocol costs, in which order and on which
// connection; that none of ours is outside of a transaction, where database/sql may repeat it after a broken connection
// (case C48); and that none goes through GORM's cache of prepared statements.
func Protocol(t *testing.T, cell Cell, connect func(dsn string) (driver.Connector, error)) {
	t.Helper()
	s := newSuite(t, cell)
	connector, err := connect(s.dsn)
	if err != nil {
		t.Fatal(err)
	}
	pool, log := OpenRecorded(connector)
	db := s.open(t, s.Config, postgres.New(postgres.Config{Conn: pool}))
	other := s.open(t, s.Config, s.Dialector(s.dsn))
	p := &protocol{scene: &scene{T: t, suite: s, pool: db, db: db, source: "protocol"}, log: log}

	answering := func(tx *gorm.DB) error {
		return errors.Join(p.write(tx, "e"), idempotency.Respond(tx, 200, "answer"))
	}
	failing := func(tx *gorm.DB) error { return errors.Join(p.write(tx, "e"), errFailed) }
	log.Take()

	p.require("fresh with an answer", db, "answered", nil, answering, nil, readCommitted, "claim", "handler", "complete", "COMMIT")
	p.require("fresh without an answer", db, "silent", nil, p.writing, nil, readCommitted, "claim", "handler", "COMMIT")
	p.require("duplicate", db, "answered", nil, unwanted(p.scene), nil, readCommitted, "claim", "look up", "ROLLBACK")
	p.require("mismatch", db, "answered", []byte("other"), unwanted(p.scene), idempotency.ErrDigestMismatch,
		readCommitted, "claim", "look up", "ROLLBACK")
	p.require("failed", db, "failed", nil, failing, errFailed, readCommitted, "claim", "handler", "ROLLBACK")
	held := func(db *gorm.DB, want ...string) {
		t.Helper()
		if _, err := idempotency.Do(other, p.source, "held", nil, func(*gorm.DB) error {
			p.require("in flight", db, "held", nil, unwanted(p.scene), idempotency.ErrInFlight, want...)
			return errFailed
		}); !errors.Is(err, errFailed) {
			t.Error(err)
		}
	}
	held(db, readCommitted, "claim", "look up", "claim", "look up", "ROLLBACK")

	tx := db.Begin()
	requireNil(t, tx.Error)
	log.Take()
	const savepoint, release, back = "SAVEPOINT idempotency_1", "RELEASE SAVEPOINT idempotency_1", "ROLLBACK TO SAVEPOINT"
	p.require("joined", tx, "joined", nil, answering, nil, savepoint, "claim", "handler", "complete", release)
	p.require("joined without an answer", tx, "joined silent", nil, p.writing, nil, savepoint, "claim", "handler", release)
	p.require("joined duplicate", tx, "answered", nil, unwanted(p.scene), nil, savepoint, "claim", "look up", back, release)
	p.require("joined failed", tx, "joined failed", nil, failing, errFailed, savepoint, "claim", "handler", back, release)
	held(tx, savepoint, "claim", "look up", "claim", "look up", back, release)
	requireNil(t, tx.Commit().Error)

	log.Take()
	p.require("no key", db, "", nil, unwanted(p.scene), idempotency.ErrInvalidKey)
	t.Cleanup(func() {
		if !t.Failed() {
			note(Record{Group: cell.Group, Name: cell.Name, Outcome: "works: every path has the design's statements, on one connection"})
		}
	})
}

// readCommitted is asked for by name, whatever the role's default.
const readCommitted = "BEGIN READ COMMITTED"

var errFailed = errors.New("the handler's own")

type protocol struct {
	*scene

	log *Log
}

// require makes a delivery and compares what reached the driver. The handler's own statements are one step, however many
// GORM makes of them.
func (p *protocol) require(path string, db *gorm.DB, event string, body []byte, fc func(*gorm.DB) error, wantErr error, want ...string) {
	p.Helper()
	_, err := p.on(db, event, body, fc, idempotency.WithWait(0))
	if !errors.Is(err, wantErr) {
		p.Errorf("%s: error %v, want %v", path, err, wantErr)
	}
	statements := p.log.Take()
	var got []string
	for i, s := range statements {
		name := p.step(s.Text)
		if name != "handler" || len(got) == 0 || got[len(got)-1] != name {
			got = append(got, name)
		}
		if s.Conn != statements[0].Conn || s.Pid != statements[0].Pid {
			p.Errorf("%s: %q ran on another connection", path, s.Text)
		}
		// Everything but the BEGIN of a standalone call is inside of a transaction.
		if !s.InTransaction && (i > 0 || name != readCommitted) {
			p.Errorf("%s: outside of a transaction: %s", path, s.Text)
		}
		if s.Prepared && name != "handler" {
			p.Errorf("%s: through a prepared statement: %s", path, s.Text)
		}
	}
	if !slices.Equal(got, want) {
		p.Errorf("%s: statements %q, want %q", path, got, want)
	}
}

// step names a statement by what it does in the protocol.
func (p *protocol) step(text string) string {
	table := `"idempotency_keys"`
	if p.Config.Table != "" {
		table = `"` + strings.ReplaceAll(p.Config.Table, ".", `"."`) + `"`
	}
	for _, known := range []struct{ prefix, name string }{
		{"INSERT INTO " + table, "claim"},
		{"SELECT payload_digest", "look up"},
		{"UPDATE " + table, "complete"},
		{readCommitted, readCommitted},
		{"COMMIT", "COMMIT"},
		{"ROLLBACK TO SAVEPOINT", "ROLLBACK TO SAVEPOINT"},
		{"ROLLBACK", "ROLLBACK"},
		{"SAVEPOINT idempotency_1", "SAVEPOINT idempotency_1"},
		{"RELEASE SAVEPOINT idempotency_1", "RELEASE SAVEPOINT idempotency_1"},
	} {
		if strings.HasPrefix(text, known.prefix) {
			return known.name
		}
	}
	if strings.Contains(text, "idempotency") {
		return text
	}
	return "handler"
}
