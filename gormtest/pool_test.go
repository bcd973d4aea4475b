package gormtest

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/pipeline"
)

// openPipelinedShop is a shop whose pool pipelines.
func openPipelinedShop(t testing.TB) *gorm.DB {
	t.Helper()
	config, err := connConfig(t.Context(), openShop(t))
	if err != nil {
		t.Fatal(err)
	}
	pool := pipeline.OpenDB(stdlib.GetConnector(*config))
	db, err := gorm.Open(postgres.New(postgres.Config{Conn: pool}), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		t.Fatal(err)
	}
	closeAfter(t, db)
	if err := db.Use(idempotency.New(idempotency.Config{})); err != nil {
		t.Fatal(err)
	}
	return db
}

// On a pool of package pipeline every tool works as on any other, statement by statement.
func TestPipeliningPools(t *testing.T) {
	t.Parallel()
	for tool, use := range tools {
		t.Run(tool, func(t *testing.T) {
			t.Parallel()
			use(t, openPipelinedShop(t), correct["Do"](t), WithEvents(5))
			fault := wrong["a counter before the call"]
			requireFailure(t, func(test *fakeTest) { use(test, openPipelinedShop(t), fault.deliver(t)) }, fault.crash...)
		})
	}
	t.Run("RequireSingleConn", func(t *testing.T) {
		t.Parallel()
		RequireSingleConn(t, openPipelinedShop(t), func(db *gorm.DB) error {
			_, err := idempotency.Do(db, "shop", "evt_0", nil, pay(0))
			return err
		})
	})
	t.Run("Record", func(t *testing.T) {
		t.Parallel()
		r := Record(t, openPipelinedShop(t))
		if _, err := idempotency.Do(r.DB(), "shop", "evt_0", nil, pay(0)); err != nil {
			t.Fatal(err)
		}
		var verbs []string
		for _, s := range r.Statements() {
			verbs = append(verbs, strings.Fields(s.Text)[0])
		}
		if want := []string{"BEGIN", "INSERT", "INSERT", "UPDATE", "UPDATE", "COMMIT"}; !slices.Equal(verbs, want) {
			t.Errorf("%q, want %q", verbs, want)
		}
	})
}

// A recorder's handle, and one whose driver says by a method which connection of pgx it is on, do too. Another driver is refused.
func TestConnectionsThatAreNotPgx(t *testing.T) {
	t.Parallel()
	recorded := Record(t, openShop(t)).DB()
	RequireSingleConn(t, recorded, func(db *gorm.DB) error {
		_, err := idempotency.Do(db, "shop", "evt_0", nil, pay(0))
		return err
	})
	mocked, _ := NewMock(t)
	if _, err := connConfig(t.Context(), mocked); err == nil || !strings.Contains(err.Error(), "works on the driver pgx alone") {
		t.Errorf("got %v", err)
	}
	for _, other := range []any{nil, 1, struct{}{}} {
		if c := pgxConn(other); c != nil {
			t.Errorf("%T is taken for a connection of pgx", other)
		}
	}
	if own := (&pgx.Conn{}); pgxConn(methodConn{own}) != own {
		t.Error("a connection that has the method is not found")
	}
}

type methodConn struct{ conn *pgx.Conn }

func (c methodConn) Conn() *pgx.Conn { return c.conn }

// The reply to a request that the server refuses is lost too, and its connection breaks.
func TestLostRefusals(t *testing.T) {
	t.Parallel()
	c, tapOfTest := &cut{at: 1, when: afterRequest}, newTap(nil)
	db, pool, err := tapInto(t.Context(), openShop(t), tapOfTest)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close() })
	tapOfTest.follow(c)
	if err := db.Exec("SELECT nonsense").Error; err == nil || !strings.Contains(err.Error(), "cut the connection") {
		t.Errorf("got %v", err)
	}
	if c.hit == nil || !c.hit.conn.broken.Load() {
		t.Error("its connection is whole")
	}
}
