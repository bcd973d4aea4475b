package gormtest

import (
	"bytes"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/jackc/pgx/v5/pgconn"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-idempotency/idempotency"
)

var matchers = map[string]sqlmock.QueryMatcher{"regexp": sqlmock.QueryMatcherRegexp, "equal": sqlmock.QueryMatcherEqual}

// order is what the handlers of these tests make.
type order struct {
	ID string `gorm:"primaryKey"`
}

const insertOrder = `INSERT INTO "orders" ("id") VALUES ($1)`

// scripted opens a handle on a mock of the test's own.
func scripted(t *testing.T, matcher sqlmock.QueryMatcher, settings gorm.Config, config idempotency.Config) (*gorm.DB, sqlmock.Sqlmock) {
	t.Helper()
	pool, mock, err := sqlmock.New(sqlmock.QueryMatcherOption(matcher))
	if err != nil {
		t.Fatal(err)
	}
	settings.Logger = newLogger(t)
	db, err := gorm.Open(postgres.New(postgres.Config{Conn: pool}), &settings)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close() })
	if err := db.Use(idempotency.New(config)); err != nil {
		t.Fatal(err)
	}
	return db, mock
}

func requireMet(t *testing.T, mock sqlmock.Sqlmock) {
	t.Helper()
	if err := mock.ExpectationsWereMet(); err != nil {
		t.Error(err)
	}
}

var (
	notWaiting    = idempotency.Config{Wait: -time.Second}
	payload       = []byte(`{"amount":1200}`)
	errHandler    = errors.New("out of stock")
	errConnection = errors.New("connection reset by peer")
	errSerialize  = &pgconn.PgError{Code: "40001", Message: "could not serialize access"}
)

// outcome is what can become of a delivery: how a test expects it, and what the call has to return.
type outcome struct {
	name    string
	expect  func(claim ExpectedClaim, work func())
	handler func(tx *gorm.DB) error
	ran     bool
	want    idempotency.Result // but for what all have in common
	fails   error              // standalone
	joined  error              // where it differs
}

var asJSON = map[string][]string{"Content-Type": {"application/json"}}

var outcomes = []outcome{
	{
		name:    "won, without an answer",
		expect:  func(c ExpectedClaim, work func()) { h := c.Won(); work(); h.Commits() },
		handler: insertsOrder(nil), ran: true, want: idempotency.Result{Status: 200},
	},
	{
		name: "won, with an answer",
		expect: func(c ExpectedClaim, work func()) {
			h := c.Won()
			work()
			h.Answers(201, map[string]any{"total": 9007199254740993, "id": "o1"}).Commits()
		},
		handler: insertsOrder(func(tx *gorm.DB) error {
			return idempotency.Respond(tx, 201, json.RawMessage(`{"id": "o1", "total": 9007199254740993}`))
		}),
		ran:  true,
		want: idempotency.Result{Status: 201, Header: asJSON, Body: []byte(`{"id": "o1", "total": 9007199254740993}`)},
	},
	{
		name: "won, with an answer to the byte",
		expect: func(c ExpectedClaim, work func()) {
			h := c.Won()
			work()
			h.Answers(200, json.RawMessage(`{"a": 1}`)).Commits()
		},
		handler: insertsOrder(func(tx *gorm.DB) error { return idempotency.Respond(tx, 200, json.RawMessage(`{"a": 1}`)) }),
		ran:     true, want: idempotency.Result{Status: 200, Header: asJSON, Body: []byte(`{"a": 1}`)},
	},
	{
		name:    "won, with an answer without a body",
		expect:  func(c ExpectedClaim, work func()) { h := c.Won(); work(); h.Answers(204, nil).Commits() },
		handler: insertsOrder(func(tx *gorm.DB) error { return idempotency.Respond(tx, 204, nil) }),
		ran:     true, want: idempotency.Result{Status: 204},
	},
	{
		name:    "won, with an answer that JSONB refuses",
		expect:  func(c ExpectedClaim, work func()) { h := c.Won(); work(); h.Answers(200, "\x00").Commits() },
		handler: insertsOrder(func(tx *gorm.DB) error { return idempotency.Respond(tx, 200, "\x00") }),
		ran:     true, want: idempotency.Result{Status: 200, Header: asJSON, Body: []byte(`"\u0000"`)},
	},
	{
		name: "won, with a raw answer",
		expect: func(c ExpectedClaim, work func()) {
			h := c.Won()
			work()
			h.AnswersRaw(202, map[string][]string{"Location": {"/o1"}, "B": {"1", "2"}, "None": nil}, []byte("\xff")).Commits()
		},
		handler: insertsOrder(func(tx *gorm.DB) error {
			return idempotency.RespondRaw(tx, 202, map[string][]string{"B": {"1", "2"}, "Location": {"/o1"}}, []byte("\xff"))
		}),
		ran: true, want: idempotency.Result{Status: 202, Header: map[string][]string{"B": {"1", "2"}, "Location": {"/o1"}}, Body: []byte("\xff")},
	},
	{
		name:    "won, with an empty raw answer",
		expect:  func(c ExpectedClaim, work func()) { h := c.Won(); work(); h.AnswersRaw(200, nil, []byte{}).Commits() },
		handler: insertsOrder(func(tx *gorm.DB) error { return idempotency.RespondRaw(tx, 200, nil, []byte{}) }),
		ran:     true, want: idempotency.Result{Status: 200, Body: []byte{}},
	},
	{
		name: "won, around another event",
		expect: func(c ExpectedClaim, work func()) {
			h := c.Won()
			first := h.Claim("stripe", "evt_1/a").Won()
			first.Claim("stripe", "evt_1/a/b").Won().Answers(200, 1).Commits()
			first.Commits()
			h.Claim("stripe", "evt_1/c").Replayed(200, nil)
			work()
			h.Commits()
		},
		handler: func(tx *gorm.DB) error {
			_, err := idempotency.Do(tx, "stripe", "evt_1/a", payload, func(tx *gorm.DB) error {
				_, _, err := idempotency.DoValue(tx, "stripe", "evt_1/a/b", payload, func(*gorm.DB) (int, error) { return 1, nil })
				return err
			})
			if err != nil {
				return err
			}
			if _, err := idempotency.Do(tx, "stripe", "evt_1/c", payload, nothing); err != nil {
				return err
			}
			return insertsOrder(nil)(tx)
		},
		ran: true, want: idempotency.Result{Status: 200},
	},
	{
		name:   "the handler fails",
		expect: func(c ExpectedClaim, work func()) { h := c.Won(); work(); h.RollsBack() },
		handler: insertsOrder(func(tx *gorm.DB) error {
			return errors.Join(idempotency.Respond(tx, 200, "lost"), errHandler)
		}),
		ran: true, fails: errHandler,
	},
	{
		name:    "the commit fails",
		expect:  func(c ExpectedClaim, work func()) { h := c.Won(); work(); h.FailsToCommit(errSerialize) },
		handler: insertsOrder(nil), ran: true, fails: errSerialize,
	},
	{
		name: "nobody knows whether the commit took place",
		expect: func(c ExpectedClaim, work func()) {
			h := c.Won()
			work()
			h.Answers(200, 1).FailsToCommit(errConnection)
		},
		handler: insertsOrder(func(tx *gorm.DB) error { return idempotency.Respond(tx, 200, 1) }),
		ran:     true, fails: idempotency.ErrOutcomeUnknown, joined: errConnection,
	},
	{
		name:   "replayed",
		expect: func(c ExpectedClaim, _ func()) { c.Replayed(201, map[string]string{"id": "o1"}) },
		want:   idempotency.Result{Replayed: true, Status: 201, Header: asJSON, Body: []byte(`{"id":"o1"}`)},
	},
	{
		name:   "replayed, to the byte",
		expect: func(c ExpectedClaim, _ func()) { c.WithBody(payload).Replayed(200, json.RawMessage(`{"id": "o1"}`)) },
		want:   idempotency.Result{Replayed: true, Status: 200, Header: asJSON, Body: []byte(`{"id": "o1"}`)},
	},
	{
		name:   "replayed, without an answer",
		expect: func(c ExpectedClaim, _ func()) { c.Replayed(200, nil) },
		want:   idempotency.Result{Replayed: true, Status: 200},
	},
	{
		name: "replayed, a raw answer",
		expect: func(c ExpectedClaim, _ func()) {
			c.ReplayedRaw(404, map[string][]string{"B": {"1", "2"}, "None": nil}, []byte{})
		},
		want: idempotency.Result{Replayed: true, Status: 404, Header: map[string][]string{"B": {"1", "2"}}, Body: []byte{}},
	},
	{
		name:   "another payload",
		expect: func(c ExpectedClaim, _ func()) { c.Mismatch() }, fails: idempotency.ErrDigestMismatch,
	},
	{
		name:   "in flight",
		expect: func(c ExpectedClaim, _ func()) { c.InFlight() }, fails: idempotency.ErrInFlight,
	},
	{
		name:   "the claim fails",
		expect: func(c ExpectedClaim, _ func()) { c.Fails(errConnection) }, fails: errConnection,
	},
}

func insertsOrder(answer func(tx *gorm.DB) error) func(tx *gorm.DB) error {
	return func(tx *gorm.DB) error {
		if err := tx.Create(&order{ID: "o1"}).Error; err != nil || answer == nil {
			return err
		}
		return answer(tx)
	}
}

// Cases C89 and C90: every outcome can be expected, with both of sqlmock's matchers, on a handle and in a transaction,
// whatever GORM's settings.
func TestEveryOutcomeIsExpectedOnEveryHandle(t *testing.T) {
	t.Parallel()
	for matcher := range matchers {
		for _, settings := range []gorm.Config{{}, {SkipDefaultTransaction: true}, {PrepareStmt: true}} {
			for _, joined := range []bool{false, true} {
				for _, o := range outcomes {
					name := fmt.Sprintf("%s,skip=%t,prepare=%t,joined=%t/%s", matcher, settings.SkipDefaultTransaction, settings.PrepareStmt, joined, o.name)
					t.Run(name, func(t *testing.T) {
						t.Parallel()
						db, mock := scripted(t, matchers[matcher], settings, notWaiting)
						o.play(t, db, mock, joined)
					})
				}
			}
		}
	}
}

// play runs one delivery with the outcome, and looks at what comes of it.
func (o outcome) play(t *testing.T, db *gorm.DB, mock sqlmock.Sqlmock, joined bool) {
	t.Helper()
	expect := Expect(mock)
	if joined {
		mock.ExpectBegin()
		expect = expect.InTransaction()
	}
	o.expect(expect.Claim("stripe", "evt_1"), func() {
		if db.PrepareStmt {
			mock.ExpectPrepare(expect.text(insertOrder)) // GORM's, for its cache
			mock.ExpectPrepare(expect.text(insertOrder)).ExpectExec().WithArgs("o1").WillReturnResult(sqlmock.NewResult(0, 1))
			return
		}
		mock.ExpectExec(expect.text(insertOrder)).WithArgs("o1").WillReturnResult(sqlmock.NewResult(0, 1))
	})
	handle := db
	if joined {
		mock.ExpectCommit()
		if handle = db.Begin(); handle.Error != nil {
			t.Fatal(handle.Error)
		}
	}
	ran := false
	result, err := idempotency.Do(handle, "stripe", "evt_1", payload, func(tx *gorm.DB) error {
		ran = true
		return o.handler(tx)
	})
	if joined {
		if err := handle.Commit().Error; err != nil {
			t.Error(err)
		}
	}
	requireMet(t, mock)
	if ran != o.ran {
		t.Errorf("the handler ran: %t, want %t", ran, o.ran)
	}
	want := o.fails
	if joined && o.joined != nil {
		want = o.joined
	}
	if !errors.Is(err, want) {
		t.Fatalf("the call fails with %v, want %v", err, want)
	}
	if want == nil {
		o.requireResult(t, result, joined)
	}
}

func (o outcome) requireResult(t *testing.T, got *idempotency.Result, joined bool) {
	t.Helper()
	want := o.want
	sameHeader := maps.EqualFunc(got.Header, want.Header, slices.Equal)
	sameBody := bytes.Equal(got.Body, want.Body) && (got.Body == nil) == (want.Body == nil)
	if got.Replayed != want.Replayed || got.Provisional != joined || got.Status != want.Status || !sameHeader || !sameBody {
		t.Errorf("the result is %+v, want %+v, provisional: %t", *got, want, joined)
	}
	if !got.ClaimedAt.Equal(claimedAt) {
		t.Errorf("claimed at %v, want %v", got.ClaimedAt, claimedAt)
	}
}

// What the library says, spelled out: the expectations take their statements from the library, and would go along with any
// change of them.
const (
	claimText = `INSERT INTO "idempotency_keys" (source, event_id, payload_digest, claimed_at, completed_at)
		SELECT $1::text, $2::text, $3::bytea, t, t FROM clock_timestamp() AS t
		WHERE pg_try_advisory_xact_lock($4::bigint # '"idempotency_keys"'::regclass::oid::bigint)
		ON CONFLICT (source, event_id) DO NOTHING
		RETURNING claimed_at`
	lookupText = `SELECT payload_digest, response_status, response_header::text, response_raw, claimed_at, completed_at IS NOT NULL
		FROM "idempotency_keys" WHERE source = $1::text AND event_id = $2::text`
	completeText = `UPDATE "idempotency_keys" SET response_status = $3::smallint, response_header = $4::text::jsonb, response_raw = $5::bytea,
		response_body = CASE WHEN $6::boolean THEN convert_from($5::bytea, 'UTF8')::jsonb END
		WHERE source = $1::text AND event_id = $2::text AND response_status IS NULL`
)

var (
	payloadDigest       = sum(payload)
	lockOfEvent   int64 = -6384020767169765892 // SHA-256 of the key, each part behind its length
)

func sum(body []byte) []byte {
	digest := idempotency.SHA256().Sum(body)
	return digest[:]
}

// Cases C89 and C92: the verbs, the statements and their arguments are those written here by hand. A dropped ON CONFLICT, a
// dropped guard, or parameters that are swapped in a text fail this test, where the expectations would follow.
func TestStatementsAreThoseWrittenByHand(t *testing.T) {
	t.Parallel()
	won := func(mock sqlmock.Sqlmock) {
		mock.ExpectQuery(claimText).WithArgs("stripe", "evt_1", payloadDigest, lockOfEvent).
			WillReturnRows(sqlmock.NewRows([]string{"claimed_at"}).AddRow(claimedAt))
	}
	lost := func(mock sqlmock.Sqlmock, row ...driver.Value) {
		mock.ExpectQuery(claimText).WithArgs("stripe", "evt_1", payloadDigest, lockOfEvent).
			WillReturnRows(sqlmock.NewRows([]string{"claimed_at"}))
		rows := sqlmock.NewRows([]string{"digest", "status", "header", "raw", "claimed_at", "complete"})
		if row != nil {
			rows.AddRow(row...)
		}
		mock.ExpectQuery(lookupText).WithArgs("stripe", "evt_1").WillReturnRows(rows)
	}
	savepoint := func(mock sqlmock.Sqlmock, statement string) {
		mock.ExpectExec(statement).WithArgs().WillReturnResult(sqlmock.NewResult(0, 0))
	}
	answering := func(tx *gorm.DB) error { return idempotency.Respond(tx, 201, json.RawMessage(`{"id":"o1"}`)) }
	answered := func(mock sqlmock.Sqlmock) {
		mock.ExpectExec(completeText).WithArgs("stripe", "evt_1", 201, nil, []byte(`{"id":"o1"}`), true).
			WillReturnResult(sqlmock.NewResult(0, 1))
	}
	for _, test := range []struct {
		name    string
		script  func(mock sqlmock.Sqlmock)
		joined  bool
		handler func(tx *gorm.DB) error
		want    error
	}{
		{"won", func(mock sqlmock.Sqlmock) { mock.ExpectBegin(); won(mock); answered(mock); mock.ExpectCommit() }, false, answering, nil},
		{"won, with a raw answer", func(mock sqlmock.Sqlmock) {
			mock.ExpectBegin()
			won(mock)
			mock.ExpectExec(completeText).WithArgs("stripe", "evt_1", 200, `{"A":["1"]}`, []byte("\xff"), false).WillReturnResult(sqlmock.NewResult(0, 1))
			mock.ExpectCommit()
		}, false, func(tx *gorm.DB) error {
			return idempotency.RespondRaw(tx, 200, map[string][]string{"A": {"1"}}, []byte("\xff"))
		}, nil},
		{"the handler fails", func(mock sqlmock.Sqlmock) { mock.ExpectBegin(); won(mock); mock.ExpectRollback() }, false,
			func(*gorm.DB) error { return errHandler }, errHandler},
		{"replayed", func(mock sqlmock.Sqlmock) {
			mock.ExpectBegin()
			lost(mock, payloadDigest, 200, `{"A":["1"]}`, []byte("{}"), claimedAt, true)
			mock.ExpectRollback()
		}, false, nothing, nil},
		{"another payload", func(mock sqlmock.Sqlmock) {
			mock.ExpectBegin()
			lost(mock, make([]byte, 32), nil, nil, nil, claimedAt, true)
			mock.ExpectRollback()
		}, false, nothing, idempotency.ErrDigestMismatch},
		{"in flight", func(mock sqlmock.Sqlmock) {
			mock.ExpectBegin()
			lost(mock)
			lost(mock)
			mock.ExpectRollback()
		}, false, nothing, idempotency.ErrInFlight},
		{"won, joined", func(mock sqlmock.Sqlmock) {
			savepoint(mock, "SAVEPOINT idempotency_1")
			won(mock)
			answered(mock)
			savepoint(mock, "RELEASE SAVEPOINT idempotency_1")
		}, true, answering, nil},
		{"the handler fails, joined", func(mock sqlmock.Sqlmock) {
			savepoint(mock, "SAVEPOINT idempotency_1")
			won(mock)
			savepoint(mock, "ROLLBACK TO SAVEPOINT idempotency_1")
			savepoint(mock, "RELEASE SAVEPOINT idempotency_1")
		}, true, func(*gorm.DB) error { return errHandler }, errHandler},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			db, mock := scripted(t, sqlmock.QueryMatcherEqual, gorm.Config{}, notWaiting)
			if test.joined {
				mock.ExpectBegin()
				if db = db.Begin(); db.Error != nil {
					t.Fatal(db.Error)
				}
			}
			test.script(mock)
			if _, err := idempotency.Do(db, "stripe", "evt_1", payload, test.handler); !errors.Is(err, test.want) {
				t.Errorf("the call fails with %v, want %v", err, test.want)
			}
			requireMet(t, mock)
		})
	}
}

// Case C92: an expected statement is no other one, with either matcher: none that has more, less or something else.
func TestExpectedTextMatchesNothingElse(t *testing.T) {
	t.Parallel()
	others := []func(string) string{
		func(text string) string { return text + "0" },
		func(text string) string { return "RELEASE " + text },
		func(text string) string { return text[:len(text)-1] },
		func(text string) string {
			return strings.Replace(text, "ON CONFLICT (source, event_id) DO NOTHING", "", 1)
		},
		func(text string) string { return strings.Replace(text, " AND response_status IS NULL", "", 1) },
		func(text string) string { return strings.NewReplacer("$1", "$2", "$2", "$1").Replace(text) },
		func(text string) string { return strings.ReplaceAll(text, `"idempotency_keys"`, `"idempotencyXkeys"`) },
	}
	for name, matcher := range matchers {
		_, mock := scripted(t, matcher, gorm.Config{}, notWaiting)
		e := Expect(mock)
		for _, text := range []string{e.sql.Claim, e.sql.Lookup, e.sql.Complete, "SAVEPOINT idempotency_1"} {
			if err := matcher.Match(e.text(text), text); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			for _, other := range others {
				if changed := other(text); changed != text && matcher.Match(e.text(text), changed) == nil {
					t.Errorf("%s: what expects %s takes %s", name, text, changed)
				}
			}
		}
	}
}

// Case C92: what differs from the expectations, in whatever part, is found: by the call's error, or by what is left in the end.
func TestDifferencesAreFound(t *testing.T) {
	t.Parallel()
	respond := func(status int, body any) func(tx *gorm.DB) error {
		return func(tx *gorm.DB) error { return idempotency.Respond(tx, status, body) }
	}
	raw := func(header map[string][]string, body []byte) func(tx *gorm.DB) error {
		return func(tx *gorm.DB) error { return idempotency.RespondRaw(tx, 200, header, body) }
	}
	header := map[string][]string{"A": {"1", "2"}}
	for _, test := range []struct {
		name    string
		expect  func(e Expectations)
		handler func(tx *gorm.DB) error
	}{
		{"another source", func(e Expectations) { e.Claim("github", "evt_1").Won().Commits() }, nothing},
		{"another event", func(e Expectations) { e.Claim("stripe", "evt_2").Won().Commits() }, nothing},
		{"source and event swapped", func(e Expectations) { e.Claim("evt_1", "stripe").Won().Commits() }, nothing},
		{"another payload", func(e Expectations) { e.Claim("stripe", "evt_1").WithBody([]byte("{}")).Won().Commits() }, nothing},
		{"another digest", func(e Expectations) {
			e.WithConfig(idempotency.Config{Digest: idempotency.JSONDigest("/a")}).Claim("stripe", "evt_1").Won().Commits()
		}, nothing},
		{"another table", func(e Expectations) {
			e.WithConfig(idempotency.Config{Table: "app.keys"}).Claim("stripe", "evt_1").Won().Commits()
		}, nothing},
		{"in a transaction", func(e Expectations) { e.InTransaction().Claim("stripe", "evt_1").Won().Commits() }, nothing},
		{"another answer", func(e Expectations) { e.Claim("stripe", "evt_1").Won().Answers(200, 1).Commits() }, respond(200, 2)},
		{"another status", func(e Expectations) { e.Claim("stripe", "evt_1").Won().Answers(200, 1).Commits() }, respond(201, 1)},
		{"a number spelled differently", func(e Expectations) {
			e.Claim("stripe", "evt_1").Won().Answers(200, 1).Commits()
		}, respond(200, json.RawMessage("1.0"))},
		{"JSON that repeats a name", func(e Expectations) {
			e.Claim("stripe", "evt_1").Won().Answers(200, map[string]int{"a": 2}).Commits()
		}, respond(200, json.RawMessage(`{"a":1,"a":2}`))},
		{"equal JSON of other bytes", func(e Expectations) {
			e.Claim("stripe", "evt_1").Won().Answers(200, json.RawMessage(`{"a":1}`)).Commits()
		}, respond(200, json.RawMessage(`{"a": 1}`))},
		{"null and no body", func(e Expectations) { e.Claim("stripe", "evt_1").Won().Answers(200, nil).Commits() }, respond(200, json.RawMessage("null"))},
		{"no body and null", func(e Expectations) { e.Claim("stripe", "evt_1").Won().Answers(200, (*int)(nil)).Commits() }, respond(200, nil)},
		{"no answer", func(e Expectations) { e.Claim("stripe", "evt_1").Won().Answers(200, 1).Commits() }, nothing},
		{"an answer", func(e Expectations) { e.Claim("stripe", "evt_1").Won().Commits() }, respond(200, 1)},
		{"an answer that is raw", func(e Expectations) { e.Claim("stripe", "evt_1").Won().Answers(200, 1).Commits() }, raw(nil, []byte("1"))},
		{"an answer that is not raw", func(e Expectations) {
			e.Claim("stripe", "evt_1").Won().AnswersRaw(200, nil, []byte("1")).Commits()
		}, respond(200, 1)},
		{"another header", func(e Expectations) {
			e.Claim("stripe", "evt_1").Won().AnswersRaw(200, header, []byte("1")).Commits()
		}, raw(map[string][]string{"A": {"2", "1"}}, []byte("1"))},
		{"another raw body", func(e Expectations) {
			e.Claim("stripe", "evt_1").Won().AnswersRaw(200, header, []byte("1")).Commits()
		}, raw(header, []byte("2"))},
		{"an empty body and none", func(e Expectations) {
			e.Claim("stripe", "evt_1").Won().AnswersRaw(200, header, []byte{}).Commits()
		}, raw(header, nil)},
		{"a handler that succeeds", func(e Expectations) { e.Claim("stripe", "evt_1").Won().RollsBack() }, nothing},
		{"a handler that fails", func(e Expectations) { e.Claim("stripe", "evt_1").Won().Commits() }, func(*gorm.DB) error { return errHandler }},
		{"a statement more", func(e Expectations) { e.Claim("stripe", "evt_1").Won().Commits() }, insertsOrder(nil)},
		{"a handler that runs", func(e Expectations) { e.Claim("stripe", "evt_1").InFlight() }, nothing},
	} {
		for name, matcher := range matchers {
			t.Run(test.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				db, mock := scripted(t, matcher, gorm.Config{}, notWaiting)
				db.Logger = logger.Discard
				test.expect(Expect(mock))
				_, err := idempotency.Do(db, "stripe", "evt_1", payload, test.handler)
				if left := mock.ExpectationsWereMet(); left == nil && (err == nil || errors.Is(err, errHandler)) {
					t.Errorf("nobody noticed: the call returns %v, and nothing is left", err)
				}
			})
		}
	}
}

// The table's name and the digests are those of the plugin's configuration, and a claim's payload is told by its digest.
func TestConfigurationIsExpected(t *testing.T) {
	t.Parallel()
	length := idempotency.Digest{Name: "length", Sum: func(body []byte) [32]byte { return [32]byte{byte(len(body))} }}
	config := idempotency.Config{
		Table: "app.Keys", Wait: -time.Second, Digest: idempotency.JSONDigest("/attempt"),
		Sources: map[string]idempotency.SourceConfig{"github": {Digest: length, Wait: -time.Second}, "adyen": {Wait: -time.Second}},
	}
	first, again, other := []byte(`{"id": 1, "attempt": 1}`), []byte(`{"id": 1, "attempt": 2}`), []byte(`{"id": 2}`)
	for name, matcher := range matchers {
		for _, source := range []string{"stripe", "github", "adyen"} {
			t.Run(source+"/"+name, func(t *testing.T) {
				t.Parallel()
				db, mock := scripted(t, matcher, gorm.Config{}, config)
				claim := Expect(mock).WithConfig(config).Claim(source, "evt_1")
				claim.WithBody(first).Won().Commits()
				claim.WithBody(again).Replayed(200, nil)
				claim.Mismatch()
				claim.WithBody(other).Won().Commits()
				for i, want := range []error{nil, nil, idempotency.ErrDigestMismatch} {
					if _, err := idempotency.Do(db, source, "evt_1", again, nothing); !errors.Is(err, want) {
						t.Errorf("delivery %d fails with %v, want %v", i, err, want)
					}
				}
				db.Logger = logger.Discard
				if _, err := idempotency.Do(db, source, "evt_1", again, nothing); err == nil {
					t.Error("another payload than WithBody's is taken")
				}
			})
		}
	}
}

// What cannot be expected says so where it is written, and not by a failure later.
func TestImpossibleExpectationsPanic(t *testing.T) {
	t.Parallel()
	_, mock := scripted(t, sqlmock.QueryMatcherRegexp, gorm.Config{}, notWaiting)
	for want, expect := range map[string]func(e Expectations){
		`gormtest: WithConfig: "a.b.c" is not a table name`: func(e Expectations) { e.WithConfig(idempotency.Config{Table: "a.b.c"}) },
		"gormtest: the body of an expected answer: json: ":  func(e Expectations) { e.Claim("stripe", "evt_1").Replayed(200, func() {}) },
		"gormtest: the body of an expected answer: json:":   func(e Expectations) { ExpectedHandler{}.Answers(200, make(chan int)) },
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.HasPrefix(got, want) {
					t.Errorf("panics with %q, want %q…", got, want)
				}
			}()
			expect(Expect(mock))
		}()
	}
	requireMet(t, mock)
}

// Expectations can be kept: what is made of them leaves them as they are.
func TestExpectationsCanBeKept(t *testing.T) {
	t.Parallel()
	db, mock := scripted(t, sqlmock.QueryMatcherRegexp, gorm.Config{}, notWaiting)
	expect := Expect(mock)
	expect.InTransaction().WithConfig(idempotency.Config{Table: "keys"})
	handler := expect.Claim("stripe", "evt_1").Won()
	handler.Claim("stripe", "evt_2")
	handler.Claim("stripe", "evt_3").Won().Commits()
	handler.Commits()
	_, err := idempotency.Do(db, "stripe", "evt_1", nil, func(tx *gorm.DB) error {
		_, err := idempotency.Do(tx, "stripe", "evt_3", nil, nothing)
		return err
	})
	if err != nil {
		t.Error(err)
	}
	requireMet(t, mock)
}

// A call that waits can be expected, where it gets its answer: an attempt in flight, and the one that follows.
func TestWaitingCallIsExpected(t *testing.T) {
	t.Parallel()
	db, mock := scripted(t, sqlmock.QueryMatcherRegexp, gorm.Config{}, idempotency.Config{Wait: time.Hour})
	claim := Expect(mock).Claim("stripe", "evt_1")
	claim.InFlight()
	claim.InFlight()
	claim.Replayed(201, nil)
	result, err := idempotency.Do(db, "stripe", "evt_1", payload, nothing)
	if err != nil {
		t.Fatal(err)
	}
	if !result.Replayed || result.Status != 201 {
		t.Errorf("the result is %+v", *result)
	}
	requireMet(t, mock)
}

// A claim that meets a serialization failure is made again, each time in a new transaction.
func TestClaimThatStartsOverIsExpected(t *testing.T) {
	t.Parallel()
	db, mock := scripted(t, sqlmock.QueryMatcherRegexp, gorm.Config{}, notWaiting)
	claim := Expect(mock).Claim("stripe", "evt_1")
	for range 3 {
		claim.Fails(errSerialize)
	}
	claim.Won().Commits()
	if _, err := idempotency.Do(db, "stripe", "evt_1", payload, nothing); err != nil {
		t.Error(err)
	}
	requireMet(t, mock)
}

// Case C92: gorm.Open works whether or not the mock monitors pings, and the library sends none.
func TestPingsMayBeMonitored(t *testing.T) {
	t.Parallel()
	for _, monitored := range []bool{false, true} {
		for _, quiet := range []bool{false, true} {
			pool, mock, err := sqlmock.New(sqlmock.MonitorPingsOption(monitored))
			if err != nil {
				t.Fatal(err)
			}
			if monitored && !quiet {
				mock.ExpectPing() // GORM's
			}
			Expect(mock).Claim("stripe", "evt_1").Won().Commits()
			db, err := gorm.Open(postgres.New(postgres.Config{Conn: pool}), &gorm.Config{DisableAutomaticPing: quiet, Plugins: map[string]gorm.Plugin{
				"idempotency": idempotency.New(notWaiting),
			}})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := idempotency.Do(db, "stripe", "evt_1", nil, nothing); err != nil {
				t.Errorf("monitored: %t, quiet: %t: %v", monitored, quiet, err)
			}
			requireMet(t, mock)
			mock.ExpectClose()
			if err := pool.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// Case C90: GORM's own savepoint in a handler has a random name, which an expression of the test's matches.
func TestNestedTransactionIsExpected(t *testing.T) {
	t.Parallel()
	db, mock := scripted(t, sqlmock.QueryMatcherRegexp, gorm.Config{}, notWaiting)
	won := Expect(mock).Claim("stripe", "evt_1").Won()
	mock.ExpectExec("^SAVEPOINT sp").WillReturnResult(sqlmock.NewResult(0, 0))
	mock.ExpectExec(`INSERT INTO "orders"`).WithArgs("o1").WillReturnResult(sqlmock.NewResult(0, 1))
	won.Commits()
	_, err := idempotency.Do(db, "stripe", "evt_1", payload, func(tx *gorm.DB) error { return tx.Transaction(insertsOrder(nil)) })
	if err != nil {
		t.Error(err)
	}
	requireMet(t, mock)
}

// Case C90: a single connection is a handle as any other.
func TestSingleConnectionIsExpected(t *testing.T) {
	t.Parallel()
	db, mock := scripted(t, sqlmock.QueryMatcherEqual, gorm.Config{}, notWaiting)
	Expect(mock).Claim("stripe", "evt_1").Won().Answers(200, nil).Commits()
	err := db.Connection(func(conn *gorm.DB) error {
		_, err := idempotency.Do(conn, "stripe", "evt_1", payload, func(tx *gorm.DB) error { return idempotency.Respond(tx, 200, nil) })
		return err
	})
	if err != nil {
		t.Error(err)
	}
	requireMet(t, mock)
}

// Expectations in any order, as of a mock that serves several goroutines, are told apart by their keys.
func TestExpectationsInAnyOrder(t *testing.T) {
	t.Parallel()
	db, mock := scripted(t, sqlmock.QueryMatcherRegexp, gorm.Config{}, notWaiting)
	mock.MatchExpectationsInOrder(false)
	expect := Expect(mock)
	for _, event := range []string{"evt_1", "evt_2", "evt_3"} {
		expect.Claim("stripe", event).WithBody([]byte(event)).Replayed(200, event)
	}
	for _, event := range []string{"evt_3", "evt_1", "evt_2"} {
		result, err := idempotency.Do(db, "stripe", event, []byte(event), nothing)
		if err != nil {
			t.Fatal(err)
		}
		if want := `"` + event + `"`; string(result.Body) != want {
			t.Errorf("%s is answered %s, want %s", event, result.Body, want)
		}
	}
	requireMet(t, mock)
}
