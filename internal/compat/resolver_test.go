package compat_test

import (
	"fmt"
	"testing"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/plugin/dbresolver"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
	"github.com/gorm-idempotency/idempotency/internal/conformance"
)

// replicas are databases in the place of a replica: one that has not got our table yet, and one that is stale, with a row of
// another time under the key that is to be delivered.
func replicas(t *testing.T) map[string]string {
	t.Helper()
	missing, stale := gormtest.DSN(t), gormtest.DSN(t)
	execute(t, connect(t, missing), "DROP TABLE idempotency_keys", createOrders)
	execute(t, connect(t, stale), createOrders, `INSERT INTO idempotency_keys (source, event_id, payload_digest, claimed_at, completed_at, response_status)
		VALUES ('s', 'evt', sha256(''), '2001-01-01', '2001-01-01', 418)`)
	return map[string]string{"without the table": missing, "stale": stale}
}

// Case C15: every statement of ours goes to the source, in transactions and out of them, whatever handle the application
// has, with resolvers for everything or for single tables.
func TestResolverKeepsOursOnTheSource(t *testing.T) {
	t.Parallel()
	for kind, replica := range replicas(t) {
		for scope, datas := range map[string][]any{
			"everything": nil, "our table": {"idempotency_keys"}, "the model": {&idempotency.IdempotencyKey{}}, "the orders": {&order{}},
		} {
			for _, prepared := range []bool{false, true} {
				name := fmt.Sprintf("a replica %s, resolver for %s", kind, scope)
				if prepared {
					name += ", PrepareStmt"
				}
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					dsn := gormtest.DSN(t)
					admin := connect(t, dsn)
					execute(t, admin, createOrders)
					db := open(t, postgres.Open(dsn), gorm.Config{PrepareStmt: prepared})
					resolver := dbresolver.Register(dbresolver.Config{Replicas: []gorm.Dialector{postgres.Open(replica)}}, datas...)
					requireNil(t, db.Use(idempotency.New(idempotency.Config{}))) // our model, before the resolver parses it
					requireNil(t, db.Use(resolver))
					t.Cleanup(func() {
						requireNil(t, resolver.Call(func(pool gorm.ConnPool) error {
							if closer, ok := pool.(interface{ Close() error }); ok {
								return closer.Close()
							}
							return nil
						}))
					})
					deliverOnTheSource(t, db)
					requireQuery(t, admin, "1", "SELECT count(*) FROM orders WHERE event = 'evt'")
					requireQuery(t, admin, "1", "SELECT count(*) FROM idempotency_keys WHERE event_id = 'evt' AND response_status = 201")
					requireQuery(t, connect(t, replica), "0", "SELECT count(*) FROM orders")
					conformance.Note(t, "dbresolver", name, "works: all on the source")
				})
			}
		}
	}
}

func deliverOnTheSource(t *testing.T, db *gorm.DB) {
	t.Helper()
	ctx := t.Context()
	result, err := idempotency.Do(db, "s", "evt", nil, placeOrder("evt"))
	if err != nil || result.Replayed {
		t.Fatalf("first delivery: %+v, %v", result, err)
	}
	deliverAgain := func(db *gorm.DB) error {
		result, err := idempotency.Do(db, "s", "evt", nil, unwanted(t))
		if err != nil || !result.Replayed || result.Status != 201 {
			t.Errorf("redelivery: %+v, %v", result, err)
		}
		key, err := idempotency.Lookup(ctx, db, "s", "evt")
		if err != nil || key.ResponseStatus == nil || *key.ResponseStatus != 201 {
			t.Errorf("lookup: %+v, %v", key, err)
		}
		return idempotency.CheckSchema(ctx, db)
	}
	requireNil(t, deliverAgain(db))
	requireNil(t, deliverAgain(db.Clauses(dbresolver.Write)))
	requireNil(t, deliverAgain(db.Clauses(dbresolver.Write).Session(&gorm.Session{})))
	requireNil(t, db.Transaction(deliverAgain))
	requireNil(t, db.Clauses(dbresolver.Write).Transaction(deliverAgain))
	_, err = idempotency.Do(db, "s", "other", nil, func(tx *gorm.DB) error {
		// A read on the handler's handle stays in its transaction, where its own writes are visible.
		if err := tx.Create(&order{Event: "other"}).Error; err != nil {
			return err
		}
		var count int64
		if err := tx.Model(&order{}).Where("event = ?", "other").Count(&count).Error; err != nil || count != 1 {
			t.Errorf("the handler sees %d of its orders, %v", count, err)
		}
		if err := tx.Clauses(dbresolver.Read).Model(&order{}).Where("event = ?", "other").Count(&count).Error; err != nil || count != 1 {
			t.Errorf("the handler sees %d of its orders on Clauses(dbresolver.Read), %v", count, err)
		}
		return deliverAgain(tx)
	})
	requireNil(t, err)
	requireNil(t, idempotency.Forget(ctx, db, "s", "other"))
}

// A handle that the application has turned to a replica asks the replica, which refuses. It is no duplicate.
func TestResolverHandleOnAReplicaIsRefused(t *testing.T) {
	t.Parallel()
	for kind, replica := range replicas(t) {
		want := "42P01"
		if kind == "stale" {
			want = "25006"
			admin := connect(t, replica)
			execute(t, admin, "ALTER DATABASE "+query(t, admin, "SELECT current_database()")+" SET default_transaction_read_only = on")
		}
		db := openWithOrders(t, gormtest.DSN(t), gorm.Config{})
		requireNil(t, db.Use(dbresolver.Register(dbresolver.Config{Replicas: []gorm.Dialector{postgres.Open(replica)}})))
		_, err := idempotency.Do(db.Clauses(dbresolver.Read), "s", "evt", nil, unwanted(t))
		requireNoVerdict(t, err)
		if state := conformance.PgxState(err); state != want {
			t.Errorf("a replica %s: %v, want SQLSTATE %s", kind, err, want)
		}
		conformance.Note(t, "Refused", "Do on db.Clauses(dbresolver.Read), a replica "+kind, "the first call fails with SQLSTATE "+want)
	}
}

// TestResolverConformance runs the whole suite with a resolver, registered before our plugin and after it.
func TestResolverConformance(t *testing.T) {
	t.Parallel()
	use := func(t testing.TB, db *gorm.DB, dsn string) {
		t.Helper()
		requireNil(t, db.Use(dbresolver.Register(dbresolver.Config{Replicas: []gorm.Dialector{postgres.Open(dsn)}})))
	}
	before := drivers[0].cell("dbresolver", "registered before this plugin, the whole suite")
	before.Before = use
	run(t, before)
	after := drivers[0].cell("dbresolver", "registered after this plugin, PrepareStmt, the whole suite")
	after.After = use
	after.Gorm.PrepareStmt = true
	run(t, after)
}
