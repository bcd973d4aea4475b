package idempotency

import (
	"context"
	"fmt"
	"reflect"
	"runtime"
	"strings"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

const guardName = "idempotency:guard"

// registerGuard puts the guard before everything else that a statement goes through. Before("*") always leads, also with
// SkipDefaultTransaction, where GORM's own first callbacks are not registered and anchors on them are ignored.
func (p *Plugin) registerGuard(db *gorm.DB) error {
	callbacks := db.Callback()
	for operation, register := range map[string]func(string, func(*gorm.DB)) error{
		"create": callbacks.Create().Before("*").Register,
		"update": callbacks.Update().Before("*").Register,
		"delete": callbacks.Delete().Before("*").Register,
		"query":  callbacks.Query().Before("*").Register,
		"row":    callbacks.Row().Before("*").Register,
		"raw":    callbacks.Raw().Before("*").Register,
	} {
		if err := register(guardName, p.guard(operation)); err != nil {
			return fmt.Errorf("idempotency: register the %s callback: %w", operation, err)
		}
	}
	return nil
}

func guardRegistered(db *gorm.DB) bool { return db.Callback().Raw().Get(guardName) != nil }

// guard looks at a statement that is about to run. On the connection of an open scope it may do anything but end the
// transaction, or change the keys: a handler that deletes its own has its effect again at the next delivery. On another
// connection, with a context that comes from inside a scope, it may only read: a write there survives the scope's rollback
// and happens again, and it can wait for a row of its own scope for ever, which the database cannot see as a cycle. So can a
// read that locks rows.
//
// It cannot see a statement on an outer handle with an outer context, nor one on a *sql.DB.
func (p *Plugin) guard(operation string) func(*gorm.DB) {
	return func(db *gorm.DB) {
		if db.DryRun || db.Error != nil {
			return
		}
		conn := connection(db)
		inside, around, occupied := scopes.at(conn), scopeIn(db.Statement.Context), scopes.occupied(conn)
		if inside == nil && around == nil && !occupied {
			return // no handler is near, and nothing is looked at any closer
		}
		text := db.Statement.SQL.String() // empty but for raw SQL: GORM has not built it yet
		read := reads(db, operation, text)
		if inside != nil {
			_ = db.AddError(inside.forbids(db, text, read))
		}
		if occupied && !read {
			_ = db.AddError(unsupported("a write on the connection of a handler's transaction, beside that: it would end it"))
		}
		if around != nil && !read && (!hashable(conn) || around.conn != conn) {
			_ = db.AddError(around.foreign(db, operation, tableOf(db, text)))
		}
	}
}

// forbids says why a statement must not run in a handler's own transaction.
func (s *scope) forbids(db *gorm.DB, text string, read bool) error {
	if word, ends := pgsql.EndsTransaction(text); ends {
		return unsupported(word + " inside a handler, whose transaction ends when it returns")
	}
	if !read && s.plugin.writesKeys(db, text) {
		return unsupported("a write to the table of keys inside a handler, whose own key is in it")
	}
	return nil
}

// writesKeys reports whether a write may be one to the table of keys. Raw SQL that names it counts, in whatever part.
func (p *Plugin) writesKeys(db *gorm.DB, text string) bool {
	if text != "" {
		return pgsql.Names(text, p.table.Name)
	}
	if s := db.Statement.Schema; s != nil && s.ModelType == keyModel {
		return true
	}
	table := db.Statement.Table
	return table[strings.LastIndexByte(table, '.')+1:] == p.table.Name
}

var keyModel = reflect.TypeFor[IdempotencyKey]()

// tableOf is the table that a statement is about: the model's, or the one that raw SQL writes to.
func tableOf(db *gorm.DB, text string) string {
	if text == "" {
		return db.Statement.Table
	}
	return pgsql.WrittenTable(text)
}

// reads reports whether a statement changes and locks nothing. A SELECT that calls a function that writes is invisible here.
func reads(db *gorm.DB, operation, text string) bool {
	if text != "" {
		return pgsql.IsRead(text) || pgsql.IsSavepoint(text)
	}
	_, locks := db.Statement.Clauses[clause.Locking{}.Name()]
	return !locks && (operation == "query" || operation == "row")
}

// foreign applies the policy to a write that is about to leave the scope's transaction, and returns why it must not.
func (s *scope) foreign(db *gorm.DB, operation, table string) error {
	if s.plugin.config.ForeignWrites == AllowForeignWrites {
		return nil
	}
	err := &ForeignWriteError{
		Source: s.key.source, EventID: s.key.eventID, Operation: operation, Table: table, Caller: caller(),
	}
	s.observeForeign(Observation{Kind: ForeignWrite, Source: s.key.source, EventID: s.key.eventID, Err: err})
	if s.plugin.config.ForeignWrites == WarnForeignWrites {
		db.Logger.Warn(db.Statement.Context, "%s", err.Error()) // a key may contain a %
		return nil
	}
	return err
}

// ours are the packages whose frames stand between a statement and the line that asked for it.
var ours = []string{"runtime.", "gorm.io/gorm.", "gorm.io/gorm/", "gorm.io/driver/", "github.com/gorm-idempotency/idempotency."}

// caller is the line outside of GORM and this package that the current statement comes from.
func caller() string {
	counters := make([]uintptr, 64)
	frames := runtime.CallersFrames(counters[:runtime.Callers(2, counters)])
	for {
		frame, more := frames.Next()
		if !isOurs(frame) && frame.File != "" {
			return fmt.Sprintf("%s:%d", frame.File, frame.Line)
		}
		if !more {
			return ""
		}
	}
}

func isOurs(frame runtime.Frame) bool {
	if strings.HasSuffix(frame.File, "_test.go") {
		return false
	}
	for _, prefix := range ours {
		if strings.HasPrefix(frame.Function, prefix) {
			return true
		}
	}
	return false
}

// refuseOutside keeps a statement of ours from another connection than the open scope's that its context comes from: they
// do not pass the callbacks, and in a pool of one connection the claim would wait for its own caller.
func (p *Plugin) refuseOutside(ctx context.Context, db *gorm.DB, k key) error {
	s := scopeIn(ctx)
	conn := connection(db)
	if s == nil || hashable(conn) && s.conn == conn {
		return nil
	}
	if s.database == database(db) && s.holds(p, k) { // one plugin may serve several databases
		return reentrant(k)
	}
	return s.foreign(db, "idempotent", p.table.String())
}
