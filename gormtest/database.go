package gormtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Databases for tests are called gormtest_<unix time>_<random>. The time is when they were made, so that a later process
// can tell what a killed one has left behind; the random part keeps tests, processes and machines apart.
const (
	namePattern = `^gormtest_[0-9]{10}_[0-9a-f]{16}$`
	leftoverAge = 24 * time.Hour
)

const (
	stateInUse  = "55006" // somebody is connected to a database that is to be copied, renamed or dropped
	stateSyntax = "42601"
	stateExists = "42P04"
	stateUnique = "23505" // what "exists" is when two come at once, seen on version 13
)

func newName() string {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	return fmt.Sprintf("gormtest_%d_%s", time.Now().Unix(), hex.EncodeToString(random[:]))
}

// createDatabase copies the template.
func (s *server) createDatabase(ctx context.Context, name string) error {
	err := s.whileInUse(func() error {
		return s.execute(ctx, "CREATE DATABASE "+name+" TEMPLATE "+s.template+s.strategy)
	})
	if err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	return nil
}

// copyStrategy prefers copying files to PostgreSQL 15's writing of the copy through the log: measured, a quarter of the
// processor's time. But it needs two checkpoints, which are cheap only on a server that doesn't wait for its disk, and a
// burden to all users of one that does. Before 15 there is no choice.
func (s *server) copyStrategy(ctx context.Context) (string, error) {
	var preferred bool
	err := s.do(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `
			SELECT current_setting('server_version_num')::int >= 150000 AND current_setting('fsync') = 'off'`).Scan(&preferred)
	})
	if err != nil || !preferred {
		return "", err
	}
	return " STRATEGY file_copy", nil
}

// dropDatabase drops a database, whoever is connected to it. PostgreSQL 12 has no FORCE.
func (s *server) dropDatabase(ctx context.Context, name string) error {
	err := s.whileInUse(func() error {
		err := s.execute(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
		if sqlState(err) == stateSyntax {
			return s.disconnectAndDrop(ctx, name)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("drop database %s: %w", name, err)
	}
	return nil
}

func (s *server) disconnectAndDrop(ctx context.Context, name string) error {
	return s.do(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name)
		if err != nil {
			return err
		}
		_, err = conn.Exec(ctx, "DROP DATABASE IF EXISTS "+name)
		return err
	})
}

// whileInUse repeats what fails because somebody is connected. The server itself waits five seconds each time.
func (s *server) whileInUse(fn func() error) error {
	const attempts = 3
	var err error
	for range attempts {
		if err = fn(); sqlState(err) != stateInUse {
			return err
		}
	}
	return err
}

// dropLeftovers drops what processes that were killed a day ago or longer have left. It leaves alone what isn't the
// role's own, and, since it drops without force, what anybody is connected to.
//
// Age is all it goes by, because nothing else tells reliably that a process on some machine is dead: an advisory lock is
// lost with its connection and means nothing behind a pooler.
func (s *server) dropLeftovers(ctx context.Context) error {
	return s.do(ctx, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `
			SELECT datname FROM pg_database
			WHERE datname ~ $1 AND pg_get_userbyid(datdba) = current_user
			  AND to_timestamp(split_part(datname, '_', 2)::bigint) < now() - $2::interval`, namePattern, leftoverAge)
		if err != nil {
			return err
		}
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		for _, name := range names {
			// It may be in use, or another process may be dropping it: then it is for a later one.
			_, _ = conn.Exec(ctx, "DROP DATABASE IF EXISTS "+name)
		}
		return nil
	})
}
