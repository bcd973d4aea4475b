package idempotency_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

var numbered = regexp.MustCompile(`\$[0-9]+`)

// placeholders are the different ones in a statement, sorted.
func placeholders(text string) []string {
	found := numbered.FindAllString(text, -1)
	slices.Sort(found)
	return slices.Compact(found)
}

// requirePlaceholders fails unless a statement's placeholders are $1 to $n.
func requirePlaceholders(t *testing.T, text string, n int) {
	t.Helper()
	var want []string
	for i := range n {
		want = append(want, fmt.Sprintf("$%d", i+1))
	}
	if got := placeholders(text); !slices.Equal(got, want) || strings.ContainsAny(text, "?@") {
		t.Errorf("the placeholders are %v, want %v, in %s", got, want, text)
	}
}

// Case C13: each statement of ours has as many placeholders as arguments, of whatever kind they are, in every driver
// mode: none is exploded into one for each byte.
func TestPlaceholdersMatchArguments(t *testing.T) {
	t.Parallel()
	array := func(body []byte) [32]byte { return [32]byte{byte(len(body))} }
	config := idempotency.Config{Sources: map[string]idempotency.SourceConfig{
		"json": {Digest: idempotency.JSONDigest("/a")}, "own": {Digest: idempotency.Digest{Name: "($1", Sum: array}},
	}}
	for _, prepared := range []bool{false, true} {
		db, sent := openWired(t, setup{config: config, gorm: gorm.Config{PrepareStmt: prepared}})
		ours := map[string]bool{}
		check := func() {
			t.Helper()
			for _, s := range sent.take() {
				if strings.Contains(s.text, "idempotency_keys") {
					requirePlaceholders(t, s.text, len(s.args))
					ours[s.text] = true
				}
			}
		}
		for _, source := range []string{"raw", "json", "own"} {
			for i, answer := range []func(*gorm.DB) error{
				nothing, jsonAnswer(nil), jsonAnswer(json.RawMessage(`{"a":[1,2,3]}`)), jsonAnswer([32]byte{1}), jsonAnswer([]int{}), jsonAnswer("$7 ? @name"),
				rawAnswer(200, nil, nil), rawAnswer(200, nil, []byte{}), rawAnswer(200, map[string][]string{"A": {"$8"}}, []byte("(?, ?)")), rawAnswer(200, map[string][]string{}, make([]byte, 32)),
			} {
				for _, body := range [][]byte{nil, {}, []byte(`{"a":1}`)} {
					event := fmt.Sprint(i, len(body), body == nil)
					deliver := func(db *gorm.DB) error {
						_, err := idempotency.Do(db, source, event, body, answer)
						return err
					}
					if err := errors.Join(deliver(db), deliver(db), db.Transaction(deliver)); err != nil {
						t.Fatal(err)
					}
					if _, err := idempotency.Lookup(t.Context(), db, source, event); err != nil {
						t.Fatal(err)
					}
					if err := idempotency.Forget(t.Context(), db, source, event); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		check()
		if len(ours) != 5 { // claim, lookup, complete, key, forget
			t.Errorf("%d statements of ours ran, want 5", len(ours))
		}
	}
}

// Case C13, for every statement of package pgsql: its placeholders are numbered without a gap, and the server agrees on how many
// there are and what they take.
func TestEveryStatementIsUnderstood(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	table, err := pgsql.ParseTable("public.idempotency_keys")
	if err != nil {
		t.Fatal(err)
	}
	statements := reflect.ValueOf(pgsql.Render(table))
	for i := range statements.NumField() {
		name, text := statements.Type().Field(i).Name, statements.Field(i).String()
		requirePlaceholders(t, text, len(placeholders(text)))
		if strings.Contains(name, "Savepoint") {
			continue // cannot be prepared, and has no parameters
		}
		types := read[string](t, prepare(t, db, text), `SELECT array_to_string(parameter_types::text[], ' ') FROM pg_prepared_statements WHERE name = 'mine'`)
		if got, want := len(strings.Fields(types)), len(placeholders(text)); got != want {
			t.Errorf("%s takes %q, want %d", name, types, want)
		}
		if strings.Contains(types, "jsonb") {
			t.Errorf("%s takes %q: bytes bound to jsonb mean something else in pgx's simple protocol", name, types)
		}
	}
}

// prepare gives a transaction in which a statement is prepared as "mine".
func prepare(t *testing.T, db *gorm.DB, text string) *gorm.DB {
	t.Helper()
	tx := db.Begin()
	t.Cleanup(func() { tx.Rollback() })
	if _, err := tx.Statement.ConnPool.ExecContext(t.Context(), "DEALLOCATE ALL"); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Statement.ConnPool.ExecContext(t.Context(), "PREPARE mine AS "+text); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return tx
}

// Case C19: a database error at whatever step is the same to the caller with TranslateError on and off: the original is
// found with its SQLSTATE, it is none of our verdicts, nothing is written, and it may go better next time.
func TestDatabaseErrorsAreTheSameTranslatedOrNot(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	setUp := open(t, setup{dsn: dsn})
	mustExec(t, setUp, `CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF split_part(NEW.event_id, ' ', 1) = TG_OP THEN
				RAISE EXCEPTION 'raised' USING ERRCODE = split_part(NEW.event_id, ' ', 2);
			END IF;
			RETURN NEW;
		END $$`)
	mustExec(t, setUp, `CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON idempotency_keys FOR EACH ROW EXECUTE FUNCTION fail()`)
	verdicts := []error{
		idempotency.ErrInFlight, idempotency.ErrDigestMismatch, idempotency.ErrOutcomeUnknown, idempotency.ErrSchema, idempotency.ErrInvalidResponse, idempotency.ErrReentrant,
	}
	for _, translated := range []bool{false, true} {
		db := open(t, setup{dsn: dsn, gorm: gorm.Config{TranslateError: translated}})
		for _, operation := range []string{"INSERT", "UPDATE"} {
			for _, state := range []string{"23505", "23503", "40001", "40P01", "55P03", "57014", "25P02", "42501", "53100"} {
				id := operation + " " + state
				deliver := func(db *gorm.DB) error {
					result, err := idempotency.Do(db, "s", id, nil, placeOrder("e"))
					if result != nil {
						t.Errorf("%s: got %+v beside the error", id, result)
					}
					return err
				}
				errs := map[string]error{"standalone": deliver(db)}
				if err := db.Transaction(func(tx *gorm.DB) error {
					errs["joined"] = deliver(tx)
					return tx.Create(&order{Event: "afterwards"}).Error
				}); err != nil {
					t.Errorf("%s: the caller's transaction is not usable: %v", id, err)
				}
				for how, err := range errs {
					var original *pgconn.PgError
					var coded interface{ SQLState() string }
					if !errors.As(err, &original) || original.Code != state || !errors.As(err, &coded) || coded.SQLState() != state {
						t.Errorf("%s, %s, translated %t: got %v", id, how, translated, err)
					}
					for _, verdict := range verdicts {
						if errors.Is(err, verdict) {
							t.Errorf("%s, %s: %v is taken for %v", id, how, err, verdict)
						}
					}
					if !idempotency.Retryable(err) {
						t.Errorf("%s, %s: %v may go better next time", id, how, err)
					}
				}
				requireNoKey(t, db, "s", id)
			}
		}
		// What fails in the handler is the handler's, as GORM gave it.
		_, err := idempotency.Do(db, "s", "handler", nil, func(tx *gorm.DB) error {
			if err := tx.Create(&order{ID: 1 << 30, Event: "e"}).Error; err != nil {
				return err
			}
			return tx.Create(&order{ID: 1 << 30, Event: "e"}).Error
		})
		if errors.Is(err, gorm.ErrDuplicatedKey) != translated {
			t.Errorf("translated %t: got %v", translated, err)
		}
		requireNoKey(t, db, "s", "handler")
		requireEffects(t, db, "e", 0)
		requireIdle(t, db)
	}
	requireEffects(t, setUp, "afterwards", 2*2*9)
}
