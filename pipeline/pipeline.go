// Package pipeline makes idempotency cost no round trip of its own, on pgx.
//
// A delivery's claim travels with BEGIN, the statement that stores its answer with COMMIT, and a duplicate's look-up with
// ROLLBACK. A transaction that claims a key and stores an answer then takes as many round trips to the server as one without the library, which on a
// network is nearly all that the library costs.
//
// It is switched on by how the pool is opened:
//
//	config, err := pgx.ParseConfig(dsn)
//	pool := pipeline.OpenDB(stdlib.GetConnector(*config))
//	db, err := gorm.Open(postgres.New(postgres.Config{Conn: pool}), &gorm.Config{})
//	err = db.Use(idempotency.New(idempotency.Config{}))
//
// In pgx's mode describe_exec each pair takes two round trips, as any statement does there, which is still two less than
// without this package.
//
// Nothing else changes. A handler's transaction is a *sql.Tx of that pool, so prepared statements, nested transactions and
// code that asks for the *sql.Tx work as before. Statements of other code are sent as pgx sends them.
package pipeline

import (
	"context"
	"database/sql"
	"database/sql/driver"

	"github.com/jackc/pgx/v5/stdlib"
)

// OpenDB opens a pool over connections of pgx, as sql.OpenDB does, on which the library pipelines its statements. The
// connector is one of stdlib.GetConnector or stdlib.GetPoolConnector, or one around those that hands out their connections;
// connections of any other driver work as they did, without pipelining. For a pgxpool, set the *sql.DB's maximum of idle
// connections to zero, as stdlib.OpenDBFromPool does.
//
// It connects to nothing yet. What [database/sql.Conn.Raw] gives on the pool has a method Conn that returns the *pgx.Conn, as
// a *stdlib.Conn has, but is of another type.
func OpenDB(connector driver.Connector) *sql.DB {
	return sql.OpenDB(pipelining{connector})
}

// pipelining is a connector whose connections pipeline.
type pipelining struct{ driver.Connector }

func (p pipelining) Connect(ctx context.Context) (driver.Conn, error) {
	inner, err := p.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	if pgx, ok := inner.(*stdlib.Conn); ok {
		return &conn{pgxConn: pgx}, nil
	}
	return inner, nil
}

// Driver tells the library that the connections pipeline, if they are pgx's.
func (p pipelining) Driver() driver.Driver {
	if pgx, ok := p.Connector.Driver().(*stdlib.Driver); ok {
		return pipeliningDriver{pgx}
	}
	return p.Connector.Driver()
}

type pipeliningDriver struct{ *stdlib.Driver }

func (pipeliningDriver) Pipelines() {}
