package idempotency_test

import (
	"strings"
	"testing"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
	"github.com/gorm-idempotency/idempotency/migrations"
)

// catalogue is what pg_catalog says of a table, but for its storage parameters: columns in their order, defaults,
// constraints and indexes.
func catalogue(t *testing.T, db *gorm.DB, table string) string {
	t.Helper()
	var lines []string
	err := db.Raw(`
		SELECT format('column %s %s %s collation %s not null %s default %s', a.attnum, a.attname, format_type(a.atttypid, a.atttypmod),
		              coalesce(c.collname, '-'), a.attnotnull, coalesce(pg_get_expr(d.adbin, d.adrelid), '-'))
		FROM pg_attribute a LEFT JOIN pg_collation c ON c.oid = a.attcollation
		LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
		WHERE a.attrelid = ?::text::regclass AND a.attnum > 0 AND NOT a.attisdropped
		UNION ALL SELECT format('constraint %s %s', conname, pg_get_constraintdef(oid)) FROM pg_constraint WHERE conrelid = ?::text::regclass AND contype <> 'n'
		UNION ALL SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = ?::text::regclass AND indisvalid
		ORDER BY 1`, table, table, table).Scan(&lines).Error
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

// openEmpty is a handle on a database without our table.
func openEmpty(t *testing.T, s setup) *gorm.DB {
	t.Helper()
	db := open(t, s)
	mustExec(t, db, `DROP TABLE idempotency_keys`)
	return db
}

func migrateUp(t *testing.T, db *gorm.DB, opts ...migrations.Option) {
	t.Helper()
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	mustExec(t, db, `DROP TABLE IF EXISTS idempotency_goose_version`) // the test's database was migrated before
	if err := migrations.Up(t.Context(), pool, opts...); err != nil {
		t.Fatal(err)
	}
}

// Case C24: AutoMigrate and the goose migrations make the same table, each leaves the other's alone, and a second run
// changes nothing; under whatever name.
func TestAutoMigrateAndTheMigrationsMakeTheSameTable(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"idempotency_keys", "app.keys", "Keys_2"} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			config := idempotency.Config{Table: table}
			goose, sentByGoose := openWired(t, setup{config: config})
			auto, sentByAuto := openWired(t, setup{config: config})
			var catalogues []string
			for _, db := range []*gorm.DB{goose, auto} {
				mustExec(t, db, `DROP TABLE idempotency_keys`)
				mustExec(t, db, `CREATE SCHEMA app`)
			}
			quoted := `"` + strings.ReplaceAll(table, ".", `"."`) + `"`
			up := func(db *gorm.DB) { migrateUp(t, db, migrations.WithTable(table)) }
			autoMigrate := func(db *gorm.DB) {
				if err := db.AutoMigrate(&idempotency.IdempotencyKey{}); err != nil {
					t.Fatal(err)
				}
			}
			note := func(db *gorm.DB) { catalogues = append(catalogues, catalogue(t, db, quoted)) }
			up(goose)
			note(goose)
			sentByGoose.take()
			autoMigrate(goose)
			requireNoDDL(t, sentByGoose)
			note(goose)

			autoMigrate(auto)
			note(auto)
			sentByAuto.take()
			autoMigrate(auto)
			requireNoDDL(t, sentByAuto)
			up(auto)
			note(auto)
			autoMigrate(auto)
			note(auto)

			for i, c := range catalogues {
				if c != catalogues[0] {
					t.Errorf("catalogue %d is\n%s\nand the migrations' is\n%s", i, c, catalogues[0])
				}
			}
			for _, db := range []*gorm.DB{goose, auto} {
				if err := idempotency.CheckSchema(t.Context(), db); err != nil {
					t.Error(err)
				}
				deliverTwice(t, db, "s", "e", placeOrder("e"))
			}
		})
	}
}

func requireNoDDL(t *testing.T, w *wire) {
	t.Helper()
	for _, s := range w.take() {
		if text := strings.ToUpper(strings.TrimSpace(s.text)); strings.HasPrefix(text, "CREATE") || strings.HasPrefix(text, "ALTER") ||
			strings.HasPrefix(text, "DROP") || strings.HasPrefix(text, "COMMENT") {
			t.Errorf("AutoMigrate of a table that is right runs %s", s.text)
		}
	}
}

// AutoMigrate's table has the indexes that the sweeper needs, and what they are.
func TestAutoMigrateMakesTheIndexes(t *testing.T) {
	t.Parallel()
	db := openEmpty(t, setup{})
	if err := db.AutoMigrate(&idempotency.IdempotencyKey{}); err != nil {
		t.Fatal(err)
	}
	got := catalogue(t, db, "idempotency_keys")
	for _, want := range []string{
		"CREATE INDEX idx_idempotency_keys_claimed_at ON public.idempotency_keys USING brin (claimed_at) WITH (autosummarize='on')",
		"CREATE INDEX idx_idempotency_keys_incomplete ON public.idempotency_keys USING btree (claimed_at) WHERE (completed_at IS NULL)",
		"PRIMARY KEY (source, event_id)",
		`column 8 claimed_at timestamp with time zone collation - not null t default now()`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%s\nis not in\n%s", want, got)
		}
	}
}

// The model reads every row that Do writes.
func TestModelReadsTheRows(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	for mode, driver := range driverModes(dsn) {
		db := open(t, setup{driver: driver})
		result, err := idempotency.Do(db, mode, "e", nil, rawAnswer(201, map[string][]string{"A": {"b"}}, []byte(`{"a":1}`)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := idempotency.Do(db, mode, "f", nil, nothing); err != nil {
			t.Fatal(err)
		}
		var keys []idempotency.IdempotencyKey
		if err := db.Where(&idempotency.IdempotencyKey{Source: mode}).Order("event_id").Find(&keys).Error; err != nil || len(keys) != 2 {
			t.Fatalf("%s: %d keys, %v", mode, len(keys), err)
		}
		if key := keys[0]; *key.ResponseStatus != 201 || string(key.ResponseHeader) != `{"A": ["b"]}` || string(key.ResponseBody) != `{"a": 1}` ||
			string(key.ResponseRaw) != `{"a":1}` || len(key.PayloadDigest) != 32 || !key.ClaimedAt.Equal(result.ClaimedAt) || !key.CompletedAt.Equal(result.ClaimedAt) {
			t.Errorf("%s: got %+v", mode, key)
		}
		if key := keys[1]; key.ResponseStatus != nil || key.ResponseHeader != nil || key.ResponseBody != nil || key.ResponseRaw != nil {
			t.Errorf("%s: got %+v, want no answer", mode, key)
		}
	}
}

// Case C42: a claim's time is the database's, whatever GORM's clock, the process's time zone and the session's say.
func TestClaimsAreTimedByTheDatabase(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	for _, zone := range []string{"UTC", "Europe/Berlin", "America/St_Johns", "Pacific/Kiritimati"} {
		for _, shift := range []time.Duration{-day, 0, day} {
			for mode, driver := range map[string]gorm.Dialector{
				"default": postgres.Open(withParameter(dsn, "timezone", zone)),
				"simple":  postgres.New(postgres.Config{DSN: withParameter(dsn, "timezone", zone), PreferSimpleProtocol: true}),
			} {
				db := open(t, setup{driver: driver, gorm: gorm.Config{NowFunc: func() time.Time { return time.Now().Add(shift) }}})
				source := zone + shift.String() + mode
				if got := read[string](t, db, "SHOW timezone"); got != zone {
					t.Fatalf("the session's time zone is %s", got)
				}
				before := read[time.Time](t, db, "SELECT clock_timestamp()")
				result, err := idempotency.Do(db, source, "e", nil, nothing)
				if err != nil {
					t.Fatal(err)
				}
				after := read[time.Time](t, db, "SELECT clock_timestamp()")
				again, err := idempotency.Do(db, source, "e", nil, unreachable(t))
				if err != nil {
					t.Fatal(err)
				}
				key, err := idempotency.Lookup(t.Context(), db, source, "e")
				if err != nil {
					t.Fatal(err)
				}
				if result.ClaimedAt.Before(before) || result.ClaimedAt.After(after) || !again.ClaimedAt.Equal(result.ClaimedAt) || !key.ClaimedAt.Equal(result.ClaimedAt) {
					t.Errorf("%s: claimed at %v, then %v and %v, and the database says between %v and %v", source, result.ClaimedAt, again.ClaimedAt, key.ClaimedAt, before, after)
				}
			}
		}
	}
}
