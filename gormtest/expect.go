package gormtest

import (
	"encoding/json"
	"fmt"

	"github.com/DATA-DOG/go-sqlmock"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

// Expect queues expectations on any mock of go-sqlmock's: what the library says to the database, by what it means. They
// stand in the order in which they are written, among the test's own:
//
//	claim := gormtest.Expect(mock).Claim("stripe", "evt_1").Won()
//	mock.ExpectExec(`INSERT INTO "orders"`).WillReturnResult(sqlmock.NewResult(0, 1)) // the handler's
//	claim.Answers(200, order).Commits()
//
// Each statement is compared whole, and with all of its arguments. The mock's matcher may be sqlmock.QueryMatcherRegexp, its
// default, or sqlmock.QueryMatcherEqual; one of your own gets the statement's text, not a regular expression. The library
// prepares nothing, so there is no ExpectPrepare for it under gorm.Config.PrepareStmt, and no ping.
//
// What an expectation misses is an error of the call under test, as with all of go-sqlmock: check that error, and
// ExpectationsWereMet. [NewMock] does the latter.
//
// A mock cannot show a race: it answers what the test says, whoever else there is. It knows no conflict, no isolation and no
// rollback either. That a handler's effect happens once shows on a PostgreSQL: see [Open].
func Expect(mock sqlmock.Sqlmock) Expectations {
	e := Expectations{mock: mock}
	if m, ok := mock.(*Mock); ok {
		e.differences = m.differences
	}
	return e.WithConfig(idempotency.Config{})
}

// Expectations are of one kind of handle: of a plugin with this configuration, in a transaction or not. The methods return
// a new value and leave this one as it is, so that it can be kept for all of a test's claims.
type Expectations struct {
	mock        sqlmock.Sqlmock
	config      idempotency.Config
	sql         pgsql.Statements
	depth       int          // of the call's savepoint; 0: it begins a transaction of its own
	differences *differences // of a Mock, else nil
}

// WithConfig expects the statements of a plugin with this configuration: its Table, its Digest and those of its Sources. Expect
// begins with the zero Config, which means the plugin's defaults. WithConfig panics if the table's name is not one.
func (e Expectations) WithConfig(config idempotency.Config) Expectations {
	name := config.Table
	if name == "" {
		name = pgsql.DefaultTable
	}
	table, err := pgsql.ParseTable(name)
	if err != nil {
		panic("gormtest: WithConfig: " + err.Error())
	}
	e.config, e.sql = config, pgsql.Render(table)
	return e
}

// InTransaction expects calls on a handle that is in a transaction of the test's: a savepoint for each, where otherwise there
// is a transaction for each. The transaction around them is the test's to expect:
//
//	mock.ExpectBegin()
//	gormtest.Expect(mock).InTransaction().Claim("stripe", "evt_1").Won().Commits()
//	mock.ExpectCommit()
//
// For a call inside another call's handler see [ExpectedHandler.Claim].
func (e Expectations) InTransaction() Expectations {
	e.depth = 1
	return e
}

// Claim expects a delivery of the event (source, eventID). It queues nothing: saying what becomes of the delivery does.
//
// No argument is a time. What the mock returns was claimed when the year 2000 began, UTC.
func (e Expectations) Claim(source, eventID string) ExpectedClaim {
	return ExpectedClaim{script{on: e, source: source, eventID: eventID, digest: digestOf(e.config, source)}}
}

// ExpectedClaim is a delivery of which is still to be said what becomes of it. One of its methods without a result, or Won,
// queues the expectations.
type ExpectedClaim struct{ script }

// WithBody expects this payload, or one of the same digest. Without it any payload will do.
func (c ExpectedClaim) WithBody(body []byte) ExpectedClaim {
	c.payload = storedDigest(c.digest, c.digest.Sum(body))
	return c
}

// Won expects the key to be claimed, in a transaction that is begun for it, and the handler to run. Next, the test expects what
// the handler says to the database, and then its end, with what Won returns.
func (c ExpectedClaim) Won() ExpectedHandler {
	c.begins()
	c.wins()
	return ExpectedHandler{ExpectedAnswer(c)}
}

// Replayed expects a duplicate: it gets the answer that is stored under its key, and the handler does not run. status and body
// are what the first delivery gave to idempotency.Respond: body is marshalled to JSON, but a json.RawMessage or []byte is
// taken verbatim, and nil is no body. An event whose handler did not respond is replayed with 200 and nil.
//
// The stored digest is that of whatever payload is delivered. Replayed panics if body does not marshal.
func (c ExpectedClaim) Replayed(status int, body any) { c.replayed(status, nil, textOf(body)) }

// ReplayedRaw is [ExpectedClaim.Replayed] for an answer that the first delivery gave to idempotency.RespondRaw.
func (c ExpectedClaim) ReplayedRaw(status int, header map[string][]string, body []byte) {
	c.replayed(status, headerText(header), body)
}

func (c ExpectedClaim) replayed(status int, header, body []byte) {
	c.begins()
	c.loses(same, status, header, body)
	c.rollsBack()
}

// Mismatch expects a duplicate whose payload differs from the one that its key was claimed with: the call fails with
// idempotency.ErrDigestMismatch, and the handler does not run.
func (c ExpectedClaim) Mismatch() {
	c.begins()
	c.loses(different, 200, nil, nil)
	c.rollsBack()
}

// InFlight expects another delivery to hold the key: the call fails with idempotency.ErrInFlight, and the handler does
// not run.
//
// It expects a call that does not wait, since one that does tries again, after pauses that no script can foresee: let
// Config.Wait be negative, as it is on the handles of [NewMock], or give the call idempotency.WithWait(0). In a transaction
// no call waits. For a call that waits and then gets an answer, expect InFlight and Replayed, one after the other.
func (c ExpectedClaim) InFlight() {
	c.begins()
	c.findsNobody()
	c.findsNobody() // a sweep may have deleted the row in between: the library claims once more, at once
	c.rollsBack()
}

// Fails expects the claim to fail with err, and so the call. The handler does not run. After an err with SQLSTATE 40001 or
// 40P01 a call that is not in a transaction starts over, three times at most: expect a claim for each.
func (c ExpectedClaim) Fails(err error) {
	c.begins()
	c.claims(nil).WillReturnError(err)
	c.rollsBack()
}

// ExpectedHandler is a handler at work, which holds its key. Its end is to be queued when all that the handler says to
// the database has been. One that does not respond just Commits.
type ExpectedHandler struct{ ExpectedAnswer }

// Claim expects a delivery of another event inside this handler, on its handle: within a savepoint.
func (h ExpectedHandler) Claim(source, eventID string) ExpectedClaim {
	inside := h.on
	inside.depth = max(inside.depth, 1) + 1 // the outermost call counts, with its savepoint or its transaction
	return inside.Claim(source, eventID)
}

// Answers expects the answer to be stored that the handler gave to idempotency.Respond, or with status 200 the value of a
// handler of idempotency.DoValue. body is compared as JSON, by value: white space and the order of names do not matter, the
// spelling of numbers does. A json.RawMessage or []byte is compared by its bytes, and nil is no body.
//
// Answers panics if body does not marshal to JSON.
func (h ExpectedHandler) Answers(status int, body any) ExpectedAnswer {
	text := textOf(body)
	switch body.(type) {
	case nil, json.RawMessage, []byte:
		h.answers(status, nil, h.on.bytes(text), text)
	default:
		h.answers(status, nil, h.on.json("body", text), text)
	}
	return h.ExpectedAnswer
}

// AnswersRaw expects the answer to be stored that the handler gave to idempotency.RespondRaw. Its body is compared by its
// bytes, and nil is no body.
func (h ExpectedHandler) AnswersRaw(status int, header map[string][]string, body []byte) ExpectedAnswer {
	h.answers(status, h.on.json("header", headerText(header)), h.on.bytes(body), body)
	return h.ExpectedAnswer
}

// RollsBack expects the handler to fail, and what it did to be undone: its transaction is rolled back, or, in a
// transaction that is not its own, the savepoint. An answer that it gave before is not stored.
func (h ExpectedHandler) RollsBack() { h.rollsBack() }

// ExpectedAnswer is a handler that has succeeded, and whose answer is stored, if it gave one.
type ExpectedAnswer struct{ script }

// Commits expects the transaction to be committed or, in one that is not the call's own, the savepoint to be released.
func (a ExpectedAnswer) Commits() { a.commits() }

// FailsToCommit expects COMMIT, and lets it fail with err. The call fails with err if its SQLSTATE says that the server has rolled
// back, as 40001 of a *pgconn.PgError does. After any other, such as driver.ErrBadConn, nobody knows what the server did, and
// the call fails with idempotency.ErrOutcomeUnknown.
//
// In a transaction that is not the call's own, the savepoint's release fails with err, and what the handler did is undone.
func (a ExpectedAnswer) FailsToCommit(err error) { a.failsToCommit(err) }

// textOf is the text of a body, as idempotency.Respond makes it; nil if there is none.
func textOf(body any) []byte {
	switch body := body.(type) {
	case nil:
		return nil
	case []byte:
		return body
	case json.RawMessage:
		return body
	}
	text, err := json.Marshal(body)
	if err != nil {
		panic(fmt.Sprintf("gormtest: the body of an expected answer: %v", err))
	}
	return text
}

// headerText is the text of a header, as idempotency.RespondRaw makes it. It is never nil, since a header that is given to
// RespondRaw is stored even if it is empty.
func headerText(header map[string][]string) []byte {
	kept := make(map[string][]string, len(header))
	for name, values := range header {
		if len(values) > 0 {
			kept[name] = values
		}
	}
	text, err := json.Marshal(kept)
	if err != nil {
		panic(err) // a map of strings always marshals
	}
	return text
}
