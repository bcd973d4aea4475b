package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
)

// parcel has an association and a hook, which both write.
type parcel struct {
	ID     uint `gorm:"primaryKey"`
	Name   string
	Labels []label
}

type label struct {
	ID       uint `gorm:"primaryKey"`
	ParcelID uint
	Text     string
}

func (p *parcel) AfterCreate(tx *gorm.DB) error {
	return tx.Create(&order{Event: "hook of " + p.Name}).Error
}

// openParcels is open with the tables of parcels, and a second handle on the same database that has the plugin too.
func openParcels(t *testing.T, s setup) (db, second *gorm.DB) {
	t.Helper()
	s.dsn = gormtest.DSN(t)
	db, second = open(t, s), open(t, s)
	mustExec(t, db, `CREATE TABLE parcels (id bigserial PRIMARY KEY, name text)`)
	mustExec(t, db, `CREATE TABLE labels (id bigserial PRIMARY KEY, parcel_id bigint, text text)`)
	mustExec(t, db, `INSERT INTO orders (id, event) VALUES (1000, 'before')`)
	return db, second
}

// foreignWrites are ways out of a handler's transaction, given its context.
var foreignWrites = []struct {
	name, operation, table string
	write                  func(ctx context.Context, tx, db, second *gorm.DB) error
}{
	{"Create", "create", "orders", func(ctx context.Context, _, db, _ *gorm.DB) error {
		return db.WithContext(ctx).Create(&order{Event: "foreign"}).Error
	}},
	{"Create of many", "create", "orders", func(ctx context.Context, _, db, _ *gorm.DB) error {
		return db.WithContext(ctx).CreateInBatches([]order{{Event: "foreign"}, {Event: "foreign"}}, 1).Error
	}},
	{"Create by Table", "create", "orders", func(ctx context.Context, _, db, _ *gorm.DB) error {
		return db.WithContext(ctx).Table("orders").Create(map[string]any{"event": "foreign"}).Error
	}},
	{"Update", "update", "orders", func(ctx context.Context, _, db, _ *gorm.DB) error {
		return db.WithContext(ctx).Model(&order{}).Where("id = ?", 1000).Update("event", "foreign").Error
	}},
	{"UpdateColumn", "update", "orders", func(ctx context.Context, _, db, _ *gorm.DB) error {
		return db.WithContext(ctx).Model(&order{ID: 1000}).UpdateColumn("event", "foreign").Error
	}},
	{"Save", "update", "orders", func(ctx context.Context, _, db, _ *gorm.DB) error {
		return db.WithContext(ctx).Save(&order{ID: 1000, Event: "foreign"}).Error
	}},
	{"Save of a new one", "create", "orders", func(ctx context.Context, _, db, _ *gorm.DB) error {
		return db.WithContext(ctx).Save(&order{Event: "foreign"}).Error
	}},
	{"upsert", "create", "orders", func(ctx context.Context, _, db, _ *gorm.DB) error {
		return db.WithContext(ctx).Clauses(clause.OnConflict{UpdateAll: true}).Create(&order{ID: 1000, Event: "foreign"}).Error
	}},
	{"FirstOrCreate", "create", "orders", func(ctx context.Context, _, db, _ *gorm.DB) error {
		return db.WithContext(ctx).Where(&order{Event: "foreign"}).FirstOrCreate(&order{}).Error
	}},
	{"Delete", "delete", "orders", func(ctx context.Context, _, db, _ *gorm.DB) error {
		return db.WithContext(ctx).Delete(&order{ID: 1000}).Error
	}},
	{"Exec", "raw", "orders", func(ctx context.Context, _, db, _ *gorm.DB) error {
		return db.WithContext(ctx).Exec("INSERT INTO orders (event) VALUES (?)", "foreign").Error
	}},
	{"Exec of DDL", "raw", "", func(ctx context.Context, _, db, _ *gorm.DB) error {
		return db.WithContext(ctx).Exec("ALTER TABLE orders ADD COLUMN foreign_one text").Error
	}},
	{"Exec behind a comment", "raw", "orders", func(ctx context.Context, _, db, _ *gorm.DB) error {
		return db.WithContext(ctx).Exec("/* SELECT, */ -- SELECT\n UPDATE ONLY \"orders\" SET event = 'foreign'").Error
	}},
	{"Raw INSERT and Scan", "row", "public.orders", func(ctx context.Context, _, db, _ *gorm.DB) error {
		var id int
		return db.WithContext(ctx).Raw("INSERT INTO public.orders (event) VALUES ('foreign') RETURNING id").Scan(&id).Error
	}},
	{"Raw INSERT and Rows", "row", "orders", func(ctx context.Context, _, db, _ *gorm.DB) error {
		rows, err := db.WithContext(ctx).Raw("INSERT INTO orders (event) VALUES ('foreign') RETURNING id").Rows()
		if err == nil {
			err = rows.Close()
		}
		return err
	}},
	{"Raw INSERT and Find", "query", "orders", func(ctx context.Context, _, db, _ *gorm.DB) error {
		return db.WithContext(ctx).Raw("INSERT INTO orders (event) VALUES ('foreign') RETURNING id").Find(&[]order{}).Error
	}},
	{"common table expression", "row", "orders", func(ctx context.Context, _, db, _ *gorm.DB) error {
		var count int
		return db.WithContext(ctx).Raw("WITH gone AS (DELETE FROM orders RETURNING id) SELECT count(*) FROM gone").Scan(&count).Error
	}},
	{"EXPLAIN ANALYZE", "row", "orders", func(ctx context.Context, _, db, _ *gorm.DB) error {
		var plan []string
		return db.WithContext(ctx).Raw("EXPLAIN (ANALYZE) DELETE FROM orders").Scan(&plan).Error
	}},
	{"locking read", "query", "orders", func(ctx context.Context, _, db, _ *gorm.DB) error {
		return db.WithContext(ctx).Clauses(clause.Locking{Strength: "UPDATE"}).Find(&[]order{}).Error
	}},
	{"locking read in SQL", "row", "", func(ctx context.Context, _, db, _ *gorm.DB) error {
		return db.WithContext(ctx).Raw("SELECT id FROM orders FOR UPDATE").Scan(&[]int{}).Error
	}},
	{"SELECT INTO", "row", "", func(ctx context.Context, _, db, _ *gorm.DB) error {
		return db.WithContext(ctx).Raw("SELECT 1 AS foreign_one INTO copied").Scan(&[]int{}).Error
	}},
	{"two statements", "raw", "orders", func(ctx context.Context, _, db, _ *gorm.DB) error {
		return db.WithContext(ctx).Exec("SELECT 1; DELETE FROM orders").Error
	}},
	{"second handle", "create", "orders", func(ctx context.Context, _, _, second *gorm.DB) error {
		return second.WithContext(ctx).Create(&order{Event: "foreign"}).Error
	}},
	{"generics", "create", "orders", func(ctx context.Context, _, db, _ *gorm.DB) error {
		return gorm.G[order](db).Create(ctx, &order{Event: "foreign"})
	}},
	{"generics, deleting", "delete", "orders", func(ctx context.Context, _, db, _ *gorm.DB) error {
		_, err := gorm.G[order](db).Where("id = ?", 1000).Delete(ctx)
		return err
	}},
	{"transaction", "create", "orders", func(ctx context.Context, _, db, _ *gorm.DB) error {
		return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error { return tx.Create(&order{Event: "foreign"}).Error })
	}},
	{"Begin", "create", "orders", func(ctx context.Context, _, db, _ *gorm.DB) error {
		tx := db.WithContext(ctx).Begin()
		return errors.Join(tx.Create(&order{Event: "foreign"}).Error, tx.Commit().Error)
	}},
	{"connection of one's own", "create", "orders", func(_ context.Context, tx, _, _ *gorm.DB) error {
		return tx.Connection(func(conn *gorm.DB) error { return conn.Create(&order{Event: "foreign"}).Error })
	}},
	{"prepared session", "create", "orders", func(ctx context.Context, _, db, _ *gorm.DB) error {
		return db.Session(&gorm.Session{PrepareStmt: true, Context: ctx}).Create(&order{Event: "foreign"}).Error
	}},
	{"session without hooks", "create", "orders", func(ctx context.Context, _, db, _ *gorm.DB) error {
		return db.Session(&gorm.Session{SkipHooks: true, SkipDefaultTransaction: true, Context: ctx}).Create(&order{Event: "foreign"}).Error
	}},
	{"association", "update", "parcels", func(ctx context.Context, tx, db, _ *gorm.DB) error {
		p := parcel{Name: "p"}
		if err := tx.Create(&p).Error; err != nil {
			return err
		}
		return db.WithContext(ctx).Model(&p).Association("Labels").Append(&label{Text: "foreign"})
	}},
	{"derived context", "create", "orders", func(ctx context.Context, _, db, _ *gorm.DB) error {
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		return db.WithContext(ctx).Create(&order{Event: "foreign"}).Error
	}},
	{"migration", "raw", "", func(ctx context.Context, _, db, _ *gorm.DB) error {
		return db.WithContext(ctx).Migrator().CreateTable(&struct{ gorm.Model }{})
	}},
	{"context of an inner handler", "create", "orders", func(_ context.Context, tx, db, _ *gorm.DB) error {
		var inner context.Context
		_, err := idempotency.Do(tx, "s", "inner", nil, func(tx *gorm.DB) error {
			inner = tx.Statement.Context //nolint:fatcontext // kept beyond its end on purpose
			return nil
		})
		if err != nil {
			return err
		}
		return db.WithContext(inner).Create(&order{Event: "foreign"}).Error
	}},
	{"another key", "idempotent", "idempotency_keys", func(ctx context.Context, _, db, _ *gorm.DB) error {
		_, err := idempotency.Do(db.WithContext(ctx), "s", "another", nil, nothing)
		return err
	}},
	{"another key in another handle's transaction", "idempotent", "idempotency_keys", func(ctx context.Context, _, _, second *gorm.DB) error {
		return second.Transaction(func(tx *gorm.DB) error {
			_, err := idempotency.Do(tx.WithContext(ctx), "s", "another", nil, nothing)
			return err
		})
	}},
	{"forgetting another key", "idempotent", "idempotency_keys", func(ctx context.Context, _, db, _ *gorm.DB) error {
		return idempotency.Forget(ctx, db, "s", "another")
	}},
}

// A write that leaves the handler's transaction is refused, in all the ways that GORM has, with an error that names
// operation, table and line. Nothing of the event is written then.
func TestForeignWritesAreRefused(t *testing.T) {
	t.Parallel()
	for _, prepared := range []bool{false, true} {
		t.Run(fmt.Sprintf("PrepareStmt=%t", prepared), func(t *testing.T) {
			t.Parallel()
			db, second := openParcels(t, setup{gorm: gorm.Config{PrepareStmt: prepared}})
			for _, test := range foreignWrites {
				_, err := idempotency.Do(db, "s", "e", nil, func(tx *gorm.DB) error {
					if err := tx.Create(&order{Event: "foreign"}).Error; err != nil {
						return err
					}
					return test.write(tx.Statement.Context, tx, db, second)
				})
				var foreign *idempotency.ForeignWriteError
				if !errors.As(err, &foreign) || !errors.Is(err, idempotency.ErrForeignWrite) {
					t.Errorf("%s: got %v, want ErrForeignWrite", test.name, err)
					continue
				}
				if foreign.Operation != test.operation || foreign.Table != test.table || foreign.Source != "s" || foreign.EventID != "e" {
					t.Errorf("%s: got %+v", test.name, foreign)
				}
				if !strings.Contains(foreign.Caller, "guard_test.go:") {
					t.Errorf("%s: the caller is %q, want a line of this file", test.name, foreign.Caller)
				}
				requireNoKey(t, db, "s", "e")
			}
			requireEffects(t, db, "foreign", 0)
			if got := read[string](t, db, "SELECT event FROM orders"); got != "before" {
				t.Errorf("the order that was there is %q", got)
			}
			requireIdle(t, db)
			requireIdle(t, second)
		})
	}
}

// The error says at which line the write stands, and what to do about it.
func TestForeignWriteErrorNamesTheLine(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	var line int
	_, err := idempotency.Do(db, "s", "e", nil, func(tx *gorm.DB) error {
		_, _, line, _ = runtime.Caller(0)
		return db.WithContext(tx.Statement.Context).Create(&order{Event: "foreign"}).Error // the line after the above
	})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("guard_test.go:%d", line+1)) {
		t.Fatalf("%v does not name line %d", err, line+1)
	}
	for _, word := range []string{"create on orders", `"e"`, `"s"`, "FromContext", "WithoutScope"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not say %s", err, word)
		}
	}
}

// What stays in the handler's transaction passes, and so do reads anywhere.
func TestGuardPassesWhatIsNoForeignWrite(t *testing.T) {
	t.Parallel()
	for _, prepared := range []bool{false, true} {
		t.Run(fmt.Sprintf("PrepareStmt=%t", prepared), func(t *testing.T) {
			t.Parallel()
			log, seen := &journal{}, &observations{}
			db, second := openParcels(t, setup{gorm: gorm.Config{PrepareStmt: prepared, Logger: log}, config: idempotency.Config{Observe: seen.add}})
			for name, fc := range allowed(db, second) {
				if _, err := idempotency.Do(db, "s", name, nil, fc); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			if lines := log.of("warn", "error"); len(lines) > 0 {
				t.Errorf("the log says %q", lines)
			}
			// GORM swallows the errors of its savepoints: only here can they be seen to pass.
			if found := seen.of(idempotency.ForeignWrite); len(found) > 0 {
				t.Errorf("taken for foreign writes: %+v", found)
			}
		})
	}
}

func allowed(db, second *gorm.DB) map[string]func(tx *gorm.DB) error {
	create := func(tx *gorm.DB) error { return tx.Create(&order{Event: "inside"}).Error }
	outside := func(read func(db *gorm.DB) error) func(*gorm.DB) error {
		return func(tx *gorm.DB) error {
			return errors.Join(read(db.WithContext(tx.Statement.Context)), read(second.WithContext(tx.Statement.Context)))
		}
	}
	raw := func(query string) func(*gorm.DB) error {
		return outside(func(db *gorm.DB) error { return db.Raw(query).Scan(&[]map[string]any{}).Error })
	}
	return map[string]func(tx *gorm.DB) error{
		"handle":             create,
		"nested transaction": func(tx *gorm.DB) error { return tx.Transaction(create) },
		"nested twice": func(tx *gorm.DB) error {
			return tx.Transaction(func(tx *gorm.DB) error { return tx.Transaction(create) })
		},
		"nested that fails": func(tx *gorm.DB) error {
			_ = tx.Transaction(func(*gorm.DB) error { return errors.New("undone") })
			return create(tx)
		},
		"savepoint":        func(tx *gorm.DB) error { return errors.Join(tx.SavePoint("mine").Error, tx.RollbackTo("mine").Error) },
		"prepared session": func(tx *gorm.DB) error { return create(tx.Session(&gorm.Session{PrepareStmt: true})) },
		"prepared twice": func(tx *gorm.DB) error {
			return create(tx.Session(&gorm.Session{PrepareStmt: true}).Session(&gorm.Session{PrepareStmt: true}))
		},
		"prepared nested": func(tx *gorm.DB) error { return tx.Session(&gorm.Session{PrepareStmt: true}).Transaction(create) },
		"fresh session":   func(tx *gorm.DB) error { return create(tx.Session(&gorm.Session{NewDB: true})) },
		"debug":           func(tx *gorm.DB) error { return create(tx.Debug().Set("a", 1)) },
		"outer context":   func(tx *gorm.DB) error { return create(tx.WithContext(context.Background())) },
		"generics": func(tx *gorm.DB) error {
			return gorm.G[order](tx).Create(tx.Statement.Context, &order{Event: "inside"})
		},
		"generics outer": func(tx *gorm.DB) error {
			return gorm.G[order](tx).Create(context.Background(), &order{Event: "inside"})
		},
		"hooks":            func(tx *gorm.DB) error { return tx.Create(&parcel{Name: "p", Labels: []label{{Text: "a"}}}).Error },
		"DDL of one's own": func(tx *gorm.DB) error { return tx.Exec("CREATE TABLE IF NOT EXISTS inside (id int)").Error },
		"FromContext":      func(tx *gorm.DB) error { return create(idempotency.FromContext(tx.Statement.Context, db)) },
		"WithoutScope":     func(tx *gorm.DB) error { return create(db.WithContext(idempotency.WithoutScope(tx.Statement.Context))) },
		"inner handler":    func(tx *gorm.DB) error { _, err := idempotency.Do(tx, "s", "inside", nil, create); return err },
		"after an inner one": func(tx *gorm.DB) error {
			_, err := idempotency.Do(tx, "s", "inside 2", nil, create)
			return errors.Join(err, create(tx))
		},
		"association": func(tx *gorm.DB) error {
			p := parcel{Name: "p"}
			return errors.Join(tx.Create(&p).Error, tx.Model(&p).Association("Labels").Append(&label{Text: "b"}), tx.Model(&p).Association("Labels").Clear())
		},
		"dry run elsewhere": func(tx *gorm.DB) error {
			db.WithContext(tx.Statement.Context).ToSQL(func(db *gorm.DB) *gorm.DB { return db.Create(&order{}) })
			return nil
		},

		"Find":    outside(func(db *gorm.DB) error { return db.Find(&[]order{}).Error }),
		"First":   outside(func(db *gorm.DB) error { return db.First(&order{}).Error }),
		"Count":   outside(func(db *gorm.DB) error { return db.Model(&order{}).Count(new(int64)).Error }),
		"Pluck":   outside(func(db *gorm.DB) error { return db.Model(&order{}).Pluck("event", &[]string{}).Error }),
		"Preload": outside(func(db *gorm.DB) error { return db.Preload("Labels").Find(&[]parcel{}).Error }),
		"in batches": outside(func(db *gorm.DB) error {
			return db.FindInBatches(&[]order{}, 10, func(*gorm.DB, int) error { return nil }).Error
		}),
		"generics in": outside(func(db *gorm.DB) error { _, err := gorm.G[order](db).Find(db.Statement.Context); return err }),
		"Rows": outside(func(db *gorm.DB) error {
			rows, err := db.Model(&order{}).Rows()
			return errors.Join(err, rows.Close())
		}),
		"nested reading": outside(func(db *gorm.DB) error {
			return db.Transaction(func(tx *gorm.DB) error {
				_ = tx.Transaction(func(*gorm.DB) error { return errors.New("undone") }) // SAVEPOINT and ROLLBACK TO
				return tx.Find(&[]order{}).Error
			})
		}),
		"Lookup": outside(func(db *gorm.DB) error {
			_, err := idempotency.Lookup(db.Statement.Context, db, "s", "handle")
			return ignore(err)
		}),
		"schema":  outside(func(db *gorm.DB) error { return idempotency.CheckSchema(db.Statement.Context, db) }),
		"SELECT":  raw("SELECT event FROM orders"),
		"select":  raw("\n\t-- a comment\n/* and /* another */ */ ((select 'DELETE FROM orders'))"),
		"WITH":    raw("WITH o AS (SELECT event FROM orders) SELECT event FROM o"),
		"VALUES":  raw("VALUES ('INSERT')"),
		"TABLE":   raw("TABLE orders"),
		"SHOW":    raw("SHOW search_path"),
		"EXPLAIN": raw("EXPLAIN DELETE FROM orders"),
		"two": func(tx *gorm.DB) error {
			return db.WithContext(tx.Statement.Context).Exec("SELECT 1;").Error
		},
		"nothing":  func(tx *gorm.DB) error { return db.WithContext(tx.Statement.Context).Exec("-- nothing").Error },
		"in quote": raw(`SELECT $$ DELETE $$ || E'\' INSERT' AS "INTO"`),
	}
}

// ignore takes a missing key for no error: the reads above come in any order.
func ignore(err error) error {
	if errors.Is(err, idempotency.ErrKeyNotFound) {
		return nil
	}
	return err
}

// A goroutine that kept the context is not accused once the handler's scope has ended, whichever way it ended.
func TestContextIsNobodysAfterTheEnd(t *testing.T) {
	t.Parallel()
	db := open(t, setup{})
	for name, failure := range map[string]error{"committed": nil, "rolled back": errors.New("undone")} {
		var kept context.Context
		_, err := idempotency.Do(db, "s", name, nil, func(tx *gorm.DB) error {
			kept = tx.Statement.Context //nolint:fatcontext // kept beyond its end on purpose
			return failure
		})
		if !errors.Is(err, failure) {
			t.Fatal(err)
		}
		late := make(chan error)
		go func() { late <- db.WithContext(context.WithoutCancel(kept)).Create(&order{Event: name}).Error }()
		if err := <-late; err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := idempotency.Do(db.WithContext(kept), "s", name+" later", nil, nothing); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		requireEffects(t, db, name, 1)
	}
}

// The policies: a warning and an observation, or nothing at all, and the write goes ahead.
func TestPoliciesThatLetForeignWritesPass(t *testing.T) {
	t.Parallel()
	for policy, want := range map[idempotency.ForeignWritePolicy]int{idempotency.WarnForeignWrites: 1, idempotency.AllowForeignWrites: 0} {
		t.Run(fmt.Sprint(policy), func(t *testing.T) {
			t.Parallel()
			log := &journal{}
			seen := &observations{}
			db := open(t, setup{gorm: gorm.Config{Logger: log}, config: idempotency.Config{ForeignWrites: policy, Observe: seen.add}})
			failure := errors.New("undone")
			_, err := idempotency.Do(db, "s", "100%d", nil, func(tx *gorm.DB) error { // a key is no format
				if err := db.WithContext(tx.Statement.Context).Create(&order{Event: "foreign"}).Error; err != nil {
					t.Error(err)
				}
				return failure
			})
			requireError(t, err, failure)
			requireEffects(t, db, "foreign", 1) // that is what the policy is about: it outlives the rollback
			lines := log.of("warn", "error")
			if len(lines) != want || want > 0 && (!strings.Contains(lines[0], "guard_test.go:") || !strings.Contains(lines[0], `"100%d"`)) {
				t.Errorf("the log says %q, want %d warnings", lines, want)
			}
			if got := seen.of(idempotency.ForeignWrite); len(got) != want {
				t.Errorf("%d observations, want %d", len(got), want)
			}
			// The very key that is held is refused under every policy: it could only wait for itself.
			_, err = idempotency.Do(db, "s", "own", nil, func(tx *gorm.DB) error {
				_, err := idempotency.Do(db.WithContext(tx.Statement.Context), "s", "own", nil, unreachable(t))
				return err
			})
			requireError(t, err, idempotency.ErrReentrant)
		})
	}
}

// One plugin serves two databases: the same key there is another key, and a foreign write.
func TestSameKeyInAnotherDatabaseIsNotReentrant(t *testing.T) {
	t.Parallel()
	for policy, want := range map[idempotency.ForeignWritePolicy]error{
		idempotency.RejectForeignWrites: idempotency.ErrForeignWrite, idempotency.AllowForeignWrites: nil,
	} {
		plugin := idempotency.New(idempotency.Config{ForeignWrites: policy})
		first, second := openWith(t, plugin), openWith(t, plugin)
		_, err := idempotency.Do(first, "s", "e", nil, func(tx *gorm.DB) error {
			_, err := idempotency.Do(second.WithContext(tx.Statement.Context), "s", "e", nil, nothing)
			return err
		})
		if !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("policy %d: got %v, want %v", policy, err, want)
		}
	}
}

// A statement that would end the handler's transaction is refused on its connection, in whatever spelling, and the
// handler's other work stays possible: it never leaves an effect without its key.
func TestTransactionControlIsRefusedInAHandler(t *testing.T) {
	t.Parallel()
	db, sent := openWired(t, setup{})
	for n, text := range []string{
		"BEGIN", "begin;", "START TRANSACTION", "COMMIT", "commit and chain", "END", "ABORT", "ROLLBACK", "ROLLBACK AND CHAIN", "ROLLBACK WORK",
		"PREPARE TRANSACTION 'x'", "/* a */ ROLLBACK", "-- a\nROLLBACK", "SELECT 1; ROLLBACK", "; ; COMMIT",
	} {
		_, err := idempotency.Do(db, "s", fmt.Sprint(n), nil, func(tx *gorm.DB) error {
			if err := tx.Create(&order{Event: "kept"}).Error; err != nil {
				return err
			}
			sent.take()
			requireUnsupported(t, tx.Exec(text).Error)
			requireUnsupported(t, tx.WithContext(context.Background()).Raw(text).Scan(&[]int{}).Error)
			requireUnsupported(t, tx.Session(&gorm.Session{PrepareStmt: true}).Exec(text).Error)
			sent.requireSilent(t)
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	requireEffects(t, db, "kept", 15)
	// A joined handler may not end the caller's transaction either. Outside of handlers nobody is told what to do.
	err := db.Transaction(func(tx *gorm.DB) error {
		_, err := idempotency.Do(tx, "s", "joined", nil, func(tx *gorm.DB) error { return tx.Exec("ROLLBACK").Error })
		requireUnsupported(t, err)
		return tx.Exec("PREPARE mine AS SELECT 1").Error
	})
	if err != nil {
		t.Error(err)
	}
	if err := db.Connection(func(conn *gorm.DB) error { return errors.Join(conn.Exec("BEGIN").Error, conn.Exec("ROLLBACK").Error) }); err != nil {
		t.Error(err)
	}
}

// A foreign write is refused before it takes a connection: in a pool of one it would wait for its own caller.
func TestForeignWriteInAPoolOfOneDoesNotHang(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // what hangs fails
	defer cancel()
	db := open(t, setup{conns: 1}).WithContext(ctx)
	for name, write := range map[string]func(*gorm.DB) error{
		"create": func(db *gorm.DB) error { return db.Create(&order{Event: "foreign"}).Error },
		"exec":   func(db *gorm.DB) error { return db.Exec("DELETE FROM orders").Error },
		"scan":   func(db *gorm.DB) error { return db.Raw("DELETE FROM orders RETURNING id").Scan(&[]int{}).Error },
		"a key":  func(db *gorm.DB) error { _, err := idempotency.Do(db, "s", "another", nil, nothing); return err },
		"prepared": func(db *gorm.DB) error {
			return db.Session(&gorm.Session{PrepareStmt: true}).Create(&order{Event: "foreign"}).Error
		},
	} {
		_, err := idempotency.Do(db, "s", name, nil, func(tx *gorm.DB) error { return write(db.WithContext(tx.Statement.Context)) })
		requireError(t, err, idempotency.ErrForeignWrite)
	}
	_, err := idempotency.Do(db, "s", "own", nil, func(tx *gorm.DB) error {
		_, err := idempotency.Do(db.WithContext(tx.Statement.Context), "s", "own", nil, unreachable(t))
		return err
	})
	requireError(t, err, idempotency.ErrReentrant)
}

// Case C77: a handler that answers nothing has no completion that would notice that its key is gone. So the guard keeps it
// from writing to the table of keys, and from nothing else there.
func TestHandlerCannotChangeTheKeys(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"idempotency_keys", "public.idempotency_keys"} {
		db := open(t, setup{config: idempotency.Config{Table: table}})
		for name, write := range map[string]func(tx *gorm.DB) error{
			"Delete": func(tx *gorm.DB) error {
				return tx.Where("source = ?", "s").Delete(&idempotency.IdempotencyKey{}).Error
			},
			"Update": func(tx *gorm.DB) error {
				return tx.Model(&idempotency.IdempotencyKey{}).Where("source = ?", "s").Update("completed_at", nil).Error
			},
			"Exec":      func(tx *gorm.DB) error { return tx.Exec("DELETE FROM " + table).Error },
			"qualified": func(tx *gorm.DB) error { return tx.Exec("DELETE FROM public.Idempotency_Keys AS k").Error },
			"quoted":    func(tx *gorm.DB) error { return tx.Exec(`DELETE FROM "idempotency_keys"`).Error },
			"second":    func(tx *gorm.DB) error { return tx.Exec("SELECT 1; DELETE FROM " + table).Error },
			"in a CTE": func(tx *gorm.DB) error {
				return tx.Exec("WITH a AS (INSERT INTO orders (event) VALUES ('a')), b AS (DELETE FROM " + table + ") SELECT 1").Error
			},
			"alias": func(tx *gorm.DB) error {
				return tx.Table(table + " AS k").Where("true").Delete(&idempotency.IdempotencyKey{}).Error
			},
			"Table": func(tx *gorm.DB) error { return tx.Table(table).Where("true").Delete(map[string]any{}).Error },
		} {
			_, err := idempotency.Do(db, "s", name, nil, func(tx *gorm.DB) error {
				if err := tx.Create(&order{Event: name}).Error; err != nil {
					return err
				}
				var keys []idempotency.IdempotencyKey
				if err := tx.Find(&keys).Error; err != nil || len(keys) != 1 {
					t.Errorf("%s: the handler reads %d keys, %v", name, len(keys), err)
				}
				return write(tx)
			})
			requireError(t, err, idempotency.ErrUnsupported)
			requireEffects(t, db, name, 0)
			requireNoKey(t, db, "s", name)
		}
	}
}
