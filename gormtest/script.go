package gormtest

import (
	"database/sql/driver"
	"time"

	"github.com/DATA-DOG/go-sqlmock"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/internal/jsontext"
	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

// script is what one call of idempotency.Do says to a mock. Each method queues one step of it.
type script struct {
	on              Expectations
	source, eventID string
	digest          idempotency.Digest
	payload         []byte // its digest, as a row holds it; nil: any
}

// claimedAt is when the rows that a mock returns were claimed.
var claimedAt = time.Date(2000, time.January, 1, 0, 0, 0, 0, time.UTC)

func (s script) begins() {
	if s.on.depth == 0 {
		s.on.mock.ExpectBegin()
		return
	}
	s.on.savepoint(pgsql.Savepoint)
}

// wins expects the claim, whose row says that the key is the call's.
func (s script) wins() {
	s.claims(nil).WillReturnRows(sqlmock.NewRows([]string{"claimed_at"}).AddRow(claimedAt))
}

// loses expects the claim and the look-up of the row of an earlier delivery, whose digest comes of the claim's.
func (s script) loses(digestOf func(claimed []byte) []byte, status int, header, body []byte) {
	// The row is given now and the digest comes with the claim. A mock copies bytes when it returns them, not before.
	digest := storedDigest(s.digest, [32]byte{})
	s.claimsInVain(func(claimed []byte) { copy(digest, digestOf(claimed)) })
	s.looksUp(lookedUp().AddRow(digest, status, textOrNull(header), bytesOrNull(body), claimedAt, true))
}

// findsNobody expects the claim and the look-up where the holder of the key has not committed.
func (s script) findsNobody() {
	s.claimsInVain(nil)
	s.looksUp(lookedUp())
}

func (s script) claimsInVain(keep func(digest []byte)) {
	s.claims(keep).WillReturnRows(sqlmock.NewRows([]string{"claimed_at"}))
}

// claims expects the claiming statement, and hands the digest that comes with it to keep, unless that is nil.
func (s script) claims(keep func(digest []byte)) *sqlmock.ExpectedQuery {
	digest := digestArgument{like: storedDigest(s.digest, [32]byte{}), payload: s.payload, keep: keep, differences: s.on.differences}
	return s.on.mock.ExpectQuery(s.on.text(s.on.sql.Claim)).WithArgs(s.source, s.eventID, digest, lockArgument{})
}

func (s script) looksUp(rows *sqlmock.Rows) {
	s.on.mock.ExpectQuery(s.on.text(s.on.sql.Lookup)).WithArgs(s.source, s.eventID).WillReturnRows(rows)
}

func lookedUp() *sqlmock.Rows {
	return sqlmock.NewRows([]string{"payload_digest", "response_status", "response_header", "response_raw", "claimed_at", "complete"})
}

// answers expects the completing statement, with its header and body, of which text is the value or an equal one.
func (s script) answers(status int, header, body driver.Value, text []byte) {
	operatorsCopy := text != nil && jsontext.FitsJSONB(text)
	s.on.mock.ExpectExec(s.on.text(s.on.sql.Complete)).
		WithArgs(s.source, s.eventID, status, header, body, operatorsCopy).
		WillReturnResult(sqlmock.NewResult(0, 1))
}

func (s script) commits() {
	if s.on.depth == 0 {
		s.on.mock.ExpectCommit()
		return
	}
	s.on.savepoint(pgsql.ReleaseSavepoint)
}

func (s script) failsToCommit(err error) {
	if s.on.depth == 0 {
		s.on.mock.ExpectCommit().WillReturnError(err)
		return
	}
	s.on.savepoint(pgsql.ReleaseSavepoint).WillReturnError(err)
	s.rollsBack()
}

func (s script) rollsBack() {
	if s.on.depth == 0 {
		s.on.mock.ExpectRollback()
		return
	}
	s.on.savepoint(pgsql.RollbackToSavepoint)
	s.on.savepoint(pgsql.ReleaseSavepoint)
}

// savepoint expects what is said about the call's savepoint.
func (e Expectations) savepoint(statement func(depth int) string) *sqlmock.ExpectedExec {
	return e.mock.ExpectExec(e.text(statement(e.depth))).WillReturnResult(sqlmock.NewResult(0, 0))
}

// textOrNull and bytesOrNull are columns of a row: an untyped nil is NULL.
func textOrNull(text []byte) driver.Value {
	if text == nil {
		return nil
	}
	return string(text)
}

func bytesOrNull(bytes []byte) driver.Value {
	if bytes == nil {
		return nil
	}
	return bytes
}
