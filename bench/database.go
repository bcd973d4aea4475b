package main

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq" // the driver "postgres"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/bench/internal/wire"
	"github.com/gorm-idempotency/idempotency/migrations"
	"github.com/gorm-idempotency/idempotency/pipeline"
)

// tables are those of the arms beside the library's own, which its migrations make.
//
//go:embed tables.sql
var tables string

// database is one of the benchmark's own. It has the tables of all arms.
type database struct {
	server *server
	name   string
}

// durable and fast are how a database's transactions commit: a fast one does not wait for the disk, which would otherwise be
// most of what a transaction takes, and the same for every arm.
const (
	durable = "on"
	fast    = "off"
)

func (s *server) create(ctx context.Context, commit string) (*database, error) {
	d := &database{server: s, name: newName()}
	if err := s.execute(ctx, "CREATE DATABASE "+d.name+" TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'"); err != nil {
		return nil, fmt.Errorf("create a database: %w", err)
	}
	if err := d.prepare(ctx, commit); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare a database: %w", err), d.drop())
	}
	return d, nil
}

func (d *database) prepare(ctx context.Context, commit string) error {
	if err := d.server.execute(ctx, "ALTER DATABASE "+d.name+" SET synchronous_commit = "+commit); err != nil {
		return err
	}
	pool := d.pool()
	defer pool.Close()
	if err := migrations.Up(ctx, pool); err != nil {
		return err
	}
	return d.execute(ctx, tables)
}

// drop drops the database, whatever became of the context of whoever made it.
func (d *database) drop() error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if err := d.server.execute(ctx, "DROP DATABASE IF EXISTS "+d.name+" WITH (FORCE)"); err != nil {
		return fmt.Errorf("the database %s is still there, drop it: %w", d.name, err)
	}
	return nil
}

func (d *database) config() *pgx.ConnConfig {
	config := d.server.config.Copy()
	config.Database = d.name
	return config
}

// pool is for what is not measured.
func (d *database) pool() *sql.DB {
	config := d.config()
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol // takes several statements at once
	return stdlib.OpenDB(*config)
}

// execute runs statements without parameters.
func (d *database) execute(ctx context.Context, statements string) error {
	pool := d.pool()
	defer pool.Close()
	_, err := pool.ExecContext(ctx, statements)
	return err
}

// dsn leads straight to the database, or over a network.
func (d *database) dsn(link *wire.Link) string {
	config := d.server.config
	host, port := config.Host, config.Port
	if link != nil {
		host, port = "127.0.0.1", link.Port()
	}
	query := url.Values{
		"host": {host}, "port": {strconv.Itoa(int(port))}, "sslmode": {"disable"},
		"connect_timeout": {strconv.Itoa(int(config.ConnectTimeout / time.Second))},
	}
	u := url.URL{Scheme: "postgres", User: url.UserPassword(config.User, config.Password), Path: "/" + d.name, RawQuery: query.Encode()}
	return u.String()
}

// handles are the ways into a database. Each has a pool of its own of the same size, and connects when it is first used.
type handles struct {
	plain     *gorm.DB // pgx, as gorm.io/driver/postgres opens it
	prepared  *gorm.DB // the same with GORM's PrepareStmt
	pq        *gorm.DB // lib/pq
	pipelined *gorm.DB // pgx, opened by the library's package pipeline
	raw       *pgxpool.Pool
}

func (h *handles) each() []*gorm.DB { return []*gorm.DB{h.plain, h.prepared, h.pq, h.pipelined} }

func (d *database) open(ctx context.Context, connections int, link *wire.Link) (*handles, error) {
	return open(ctx, d.dsn(link), connections, idempotency.Config{})
}

func open(ctx context.Context, dsn string, connections int, config idempotency.Config) (_ *handles, err error) {
	h := &handles{}
	defer func() {
		if err != nil {
			h.close()
			err = fmt.Errorf("open the pools: %w", err)
		}
	}()
	connConfig, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	pipelining := postgres.New(postgres.Config{Conn: pipeline.OpenDB(stdlib.GetConnector(*connConfig))})
	for _, way := range []struct {
		handle    **gorm.DB
		dialector gorm.Dialector
		prepare   bool
	}{
		{&h.plain, postgres.Open(dsn), false},
		{&h.prepared, postgres.Open(dsn), true},
		{&h.pq, postgres.New(postgres.Config{DriverName: "postgres", DSN: dsn}), false},
		{&h.pipelined, pipelining, false},
	} {
		if *way.handle, err = openGORM(way.dialector, connections, way.prepare, config); err != nil {
			return nil, err
		}
	}
	poolConfig, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	poolConfig.MaxConns = int32(connections) //nolint:gosec // at most 64
	h.raw, err = pgxpool.NewWithConfig(ctx, poolConfig)
	return h, err
}

func openGORM(dialector gorm.Dialector, connections int, prepare bool, config idempotency.Config) (*gorm.DB, error) {
	db, err := gorm.Open(dialector, &gorm.Config{Logger: logger.Discard, PrepareStmt: prepare, DisableAutomaticPing: true})
	if err != nil {
		return nil, err
	}
	pool, err := db.DB()
	if err != nil {
		return nil, err
	}
	pool.SetMaxOpenConns(connections)
	pool.SetMaxIdleConns(connections)
	return db, db.Use(idempotency.New(config))
}

func (h *handles) close() {
	for _, db := range h.each() {
		if db == nil {
			continue
		}
		if pool, err := db.DB(); err == nil {
			_ = pool.Close()
		}
	}
	if h.raw != nil {
		h.raw.Close()
	}
}
