package gormtest

import (
	"context"
	"slices"
	"strings"
	"testing"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-idempotency/idempotency"
)

func TestJournalNotesEveryChange(t *testing.T) {
	t.Parallel()
	db := openShop(t)
	execAll(t, db, `
		CREATE SCHEMA "Back office";
		CREATE TABLE "Back office"."it's" (id int, doc json);
		CREATE TABLE parts (id int, text text) PARTITION BY LIST (id);
		CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1);
		CREATE FUNCTION quietly() RETURNS int LANGUAGE sql AS $$ INSERT INTO audits (text) VALUES ('quiet') RETURNING id $$;
		INSERT INTO "Back office"."it's" VALUES (1, '{"a": 1}');`)
	j, err := openJournal(t.Context(), db, nil)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		statement string
		want      []string // table, operation and row
	}{
		{"INSERT INTO audits (id, text) VALUES (7, 'a'), (8, 'b')", []string{"audits INSERT (7,a)", "audits INSERT (8,b)"}},
		{"UPDATE audits SET text = 'c' WHERE id = 7", []string{"audits UPDATE (7,c)"}},
		{"UPDATE audits SET text = text", nil},
		{"DELETE FROM audits WHERE id = 7", []string{"audits DELETE (7,c)"}},
		{"TRUNCATE audits", []string{"audits TRUNCATE all rows"}},
		{"BEGIN; INSERT INTO audits (text) VALUES ('x'); ROLLBACK", nil},
		{"ALTER SEQUENCE audits_id_seq RESTART 20", nil},
		{"SELECT quietly()", []string{"audits INSERT (20,quiet)"}},
		{"INSERT INTO parts VALUES (1, 'p')", []string{"parts INSERT (1,p)"}},
		{"UPDATE parts_1 SET text = 'q'", []string{"parts UPDATE (1,q)"}},
		{`UPDATE "Back office"."it's" SET doc = '{"a": 2}'`, []string{`Back office.it's UPDATE (1,"{""a"": 2}")`}},
		{"INSERT INTO idempotency_keys (source, event_id, payload_digest) VALUES ('s', 'e', 'd')", []string{"key s e"}},
		{"UPDATE idempotency_keys SET response_status = 200", nil},
		{"CREATE TEMP TABLE scratch (id int); INSERT INTO scratch VALUES (1)", nil},
	}
	for _, test := range tests {
		execAll(t, db, test.statement)
		changes, err := j.take(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range changes {
			if c.claimed {
				got = append(got, "key "+c.row)
				continue
			}
			got = append(got, strings.Join([]string{c.table, c.operation, c.row}, " "))
			if c.statement != test.statement {
				t.Errorf("statement %q, want %q", c.statement, test.statement)
			}
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: noted %q, want %q", test.statement, got, test.want)
		}
	}
	if err := j.close(); err != nil {
		t.Error(err)
	}
	requireNothingLeft(t, db)
}

// What a transaction changed belongs to the key that it claimed, and to no other.
func TestEffectsBelongToKeys(t *testing.T) {
	t.Parallel()
	db := openShop(t)
	j, err := openJournal(t.Context(), db, []string{"stocks"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = j.close() }()
	execAll(t, db, "INSERT INTO audits (text) VALUES ('before')")
	if _, err := idempotency.Do(db, "shop", "evt_1", nil, pay(1)); err != nil {
		t.Fatal(err)
	}
	changes, err := j.take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	e := effectOf(changes)
	if len(e.keys) != 1 || e.keys[0].row != "shop evt_1" || e.total().String() != "1 row of payments" || e.outsideOf().String() != "1 row of audits" {
		t.Errorf("keys %v, with them %v, without %v", e.keys, e.total(), e.outsideOf())
	}
}

// A table that somebody has locked for good is told, in time.
func TestJournalOfALockedTable(t *testing.T) {
	t.Parallel()
	db := openShop(t)
	tx := db.Begin()
	defer tx.Rollback()
	execAll(t, tx, "INSERT INTO audits (text) VALUES ('open')")
	_, err := openJournal(t.Context(), db, nil)
	if err == nil || !strings.Contains(err.Error(), "a transaction that is open holds a table") {
		t.Errorf("got %v", err)
	}
}

// A handle keeps what it was opened with: the plugin's configuration, GORM's, the driver's.
func TestAnyHandle(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]gorm.Config{
		"prepared statements":    {PrepareStmt: true},
		"no default transaction": {SkipDefaultTransaction: true, TranslateError: true},
	} {
		for tool, use := range tools {
			t.Run(name+"/"+tool, func(t *testing.T) {
				t.Parallel()
				config.Logger = logger.Discard
				db, err := gorm.Open(postgres.New(postgres.Config{DSN: DSN(t), PreferSimpleProtocol: config.TranslateError}), &config)
				if err != nil {
					t.Fatal(err)
				}
				closeAfter(t, db)
				if err := db.Use(idempotency.New(idempotency.Config{Table: "my_keys"})); err != nil {
					t.Fatal(err)
				}
				if err := db.AutoMigrate(&payment{}, &stock{}, &audit{}, &idempotency.IdempotencyKey{}); err != nil {
					t.Fatal(err)
				}
				if err := db.Create(&stock{ID: 1, Left: 1000}).Error; err != nil {
					t.Fatal(err)
				}
				use(t, db, correct["Do"](t), WithEvents(5))
				test := newFakeTest()
				test.run(func() { use(test, db, another(1000, wrong["a counter before the call"].deliver(t))) })
				requireFound(t, test, []string{`UPDATE "stocks"`, "handlers_test.go"})
				test = newFakeTest()
				test.run(func() { use(test, db, another(2000, wrong["a write after the call, at a replay too"].deliver(t))) })
				requireFound(t, test, []string{`INSERT INTO "audits"`, "handlers_test.go"})
			})
		}
	}
}

// another numbers events so that they are not those of a trial before.
func another(from int, deliver Deliver) Deliver {
	return func(ctx context.Context, db *gorm.DB, event int) (any, error) { return deliver(ctx, db, from+event) }
}

func execAll(t *testing.T, db *gorm.DB, statements string) {
	t.Helper()
	if err := db.Exec(statements).Error; err != nil {
		t.Fatalf("%s: %v", statements, err)
	}
}
