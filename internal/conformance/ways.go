package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/gorm-idempotency/idempotency"
)

// never is longer than any wait here lasts.
const never = time.Minute

// way is one in which a handler may write with GORM: one effect, and so many marks, under this name.
type way struct {
	name  string
	write func(tx *gorm.DB, table, name string) error
	marks int64

	names bool // a prepared statement
}

// waysToWrite are those of GORM's that an application may use in a handler (case C23).
var waysToWrite = []way{
	{"Create", func(tx *gorm.DB, _, name string) error { return tx.Create(&effect{Event: name}).Error }, 0, false},
	{"Create of a map", func(tx *gorm.DB, _, name string) error {
		return tx.Model(&effect{}).Create(map[string]any{"event": name}).Error
	}, 0, false},
	{"Save", func(tx *gorm.DB, _, name string) error { return tx.Save(&effect{Event: name}).Error }, 0, false},
	{"FirstOrCreate", func(tx *gorm.DB, _, name string) error {
		return tx.Where("event = ?", name).Attrs(effect{Event: name}).FirstOrCreate(&effect{}).Error
	}, 0, false},
	{"CreateInBatches", func(tx *gorm.DB, _, name string) error {
		return tx.CreateInBatches([]effect{{Event: name}, {Event: name + " too"}, {Event: name + " as well"}}, 2).Error
	}, 0, false},
	{"OnConflict", func(tx *gorm.DB, _, name string) error {
		return tx.Clauses(clause.OnConflict{DoNothing: true}, clause.Returning{}).Create(&effect{Event: name}).Error
	}, 0, false},
	{"Exec", func(tx *gorm.DB, table, name string) error {
		return tx.Exec("INSERT INTO "+table+" (event) VALUES ( ?)", name).Error
	}, 0, false},
	{"Raw and Scan", func(tx *gorm.DB, table, name string) error {
		var id uint
		return tx.Raw("INSERT INTO "+table+" (event) VALUES (@name) RETURNING id", map[string]any{"name": name}).Scan(&id).Error
	}, 0, false},
	{"Raw and Rows", func(tx *gorm.DB, table, name string) error {
		rows, err := tx.Raw("INSERT INTO "+table+" (event) VALUES ( ?) RETURNING id", name).Rows()
		if err != nil {
			return err
		}
		return errors.Join(rows.Close(), rows.Err())
	}, 0, false},
	{"generics", func(tx *gorm.DB, _, name string) error {
		return gorm.G[effect](tx).Create(context.Background(), &effect{Event: name})
	}, 0, false},
	{"generics with the handler's context", func(tx *gorm.DB, table, name string) error {
		return gorm.G[effect](tx).Exec(tx.Statement.Context, "INSERT INTO "+table+" (event) VALUES ( ?)", name)
	}, 0, false},
	{"session with PrepareStmt", func(tx *gorm.DB, _, name string) error {
		return tx.Session(&gorm.Session{PrepareStmt: true}).Create(&effect{Event: name}).Error
	}, 0, true},
	{"session with NewDB and SkipHooks", func(tx *gorm.DB, _, name string) error {
		return tx.Session(&gorm.Session{NewDB: true, SkipHooks: true}).Create(&effect{Event: name}).Error
	}, 0, false},
	{"session with SkipDefaultTransaction", func(tx *gorm.DB, _, name string) error {
		return tx.Session(&gorm.Session{SkipDefaultTransaction: true}).Create(&effect{Event: name}).Error
	}, 0, false},
	{"another context", func(tx *gorm.DB, _, name string) error {
		return tx.WithContext(context.Background()).Create(&effect{Event: name}).Error
	}, 0, false},
	{"Debug", func(tx *gorm.DB, _, name string) error { return tx.Debug().Create(&effect{Event: name}).Error }, 0, false},
	{"FromContext", func(tx *gorm.DB, _, name string) error {
		return idempotency.FromContext(tx.Statement.Context, tx).Create(&effect{Event: name}).Error
	}, 0, false},
	{"nested Transaction", func(tx *gorm.DB, _, name string) error {
		return tx.Transaction(func(tx *gorm.DB) error { return tx.Create(&effect{Event: name}).Error })
	}, 0, false},
	{"savepoints", func(tx *gorm.DB, _, name string) error {
		return errors.Join(tx.SavePoint("mine").Error, tx.Create(&effect{Event: name}).Error,
			tx.RollbackTo("mine").Error, tx.Create(&effect{Event: name}).Error)
	}, 0, false},
	{"a model's hook", func(tx *gorm.DB, _, name string) error {
		return tx.Set("hooked", true).Create(&effect{Event: name}).Error
	}, 1, false},
	{"an association", func(tx *gorm.DB, _, name string) error {
		return tx.Create(&effect{Event: name, Marks: []mark{{Event: name}, {Event: name}}}).Error
	}, 2, false},
	{"association mode", func(tx *gorm.DB, _, name string) error {
		e := &effect{Event: name}
		return errors.Join(tx.Create(e).Error, tx.Model(e).Association("Marks").Append(&mark{Event: name}),
			tx.Preload("Marks").Where("event = ?", name).Find(&[]effect{}).Error)
	}, 1, false},
	{"updates", func(tx *gorm.DB, _, name string) error {
		e := &effect{Event: name, Version: 1}
		return errors.Join(tx.Create(e).Error, tx.Model(e).Update("version", gorm.Expr("version + ?", 1)).Error,
			tx.Model(e).Clauses(clause.Returning{}).Updates(map[string]any{"version": 3}).Error)
	}, 0, false},
	{"soft delete", func(tx *gorm.DB, _, name string) error {
		e, gone := &effect{Event: name}, &effect{Event: name}
		return errors.Join(tx.Create(e).Error, tx.Create(gone).Error, tx.Delete(gone).Error)
	}, 0, false},
	{"delete", func(tx *gorm.DB, _, name string) error {
		return errors.Join(tx.Create(&[]effect{{Event: name}, {Event: name, Version: 9}}).Error,
			tx.Unscoped().Where("event = ? AND version = 9", name).Delete(&effect{}).Error)
	}, 0, false},
	{"rows that are locked and found in batches", func(tx *gorm.DB, _, name string) error {
		e := &effect{Event: name}
		return errors.Join(tx.Create(e).Error,
			tx.Clauses(clause.Locking{Strength: "UPDATE"}).Where("event = ?", name).FindInBatches(&[]effect{}, 1, func(tx *gorm.DB, _ int) error {
				return tx.Session(&gorm.Session{NewDB: true}).Model(e).Update("version", 2).Error
			}).Error)
	}, 0, false},
}

// ways writes in each way: what a failed handler wrote is gone, and what a successful one wrote is there once, all by the
// handler's own transaction.
func ways(s *scene) {
	naming := s.Gorm.NamingStrategy
	if naming == nil {
		naming = defaultNaming
	}
	table := naming.TableName("effect")
	failed := errors.New("the handler's own")
	for i, way := range waysToWrite {
		if way.names && s.Unnamed {
			continue
		}
		id := fmt.Sprint(i)
		var xid int64
		handler := func(tx *gorm.DB) error {
			if err := tx.Raw("SELECT txid_current()").Scan(&xid).Error; err != nil {
				return err
			}
			if err := way.write(tx, table, s.name(id)); err != nil {
				return fmt.Errorf("%s: %w", way.name, err)
			}
			return idempotency.Respond(tx, 200, way.name)
		}
		_, err := s.do(id, nil, func(tx *gorm.DB) error { return errors.Join(handler(tx), failed) })
		if !errors.Is(err, failed) {
			s.Errorf("%s, failing: %v", way.name, err)
		}
		if n := s.count(&effect{}, id, "true") + s.count(&mark{}, id, "true"); n != 0 {
			s.Errorf("%s: %d rows are left of a handler that failed", way.name, n)
		}
		s.requireExecuted(id, nil, handler)
		s.requireReplayed(id, nil)
		s.requireEffects(id, 1)
		if n := s.count(&mark{}, id, "true"); n != way.marks {
			s.Errorf("%s: %d marks, want %d", way.name, n, way.marks)
		}
		if n := s.count(&effect{}, id, "xid <> ?", xid) + s.count(&mark{}, id, "xid <> ?", xid); n != 0 {
			s.Errorf("%s: %d rows were written by another transaction", way.name, n)
		}
	}
}

func (s *scene) count(model any, event, condition string, args ...any) (count int64) {
	s.Helper()
	requireNil(s.T, s.db.Unscoped().Model(model).Where("event = ?", s.name(event)).Where(condition, args...).Count(&count).Error)
	return count
}
