package gormtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/gorm-idempotency/idempotency/migrations"
)

// templateFormat is part of the template's name. Count it up when the Go code of package migrations makes something else of
// the same SQL: a template of the code before would be taken for a current one.
const templateFormat = 1

// prepareTemplate returns the name of a migrated database to copy. It is made once for each server, role and text of the
// migrations, and shared by all processes.
//
// It is made under a name of its own, and given the shared name when it is finished. So a database with that name is
// always a finished one, whoever was killed while making it; and if two processes make it at once, the slower one drops
// its own. Nobody can connect to it, which would keep others from copying it.
func (s *server) prepareTemplate(ctx context.Context) (string, error) {
	name, err := s.templateName(ctx)
	if err != nil {
		return "", err
	}
	exists, err := s.exists(ctx, name)
	if err != nil || exists {
		return name, err
	}
	draft := newName()
	if err := s.makeTemplate(ctx, draft); err != nil {
		return "", err
	}
	err = s.whileInUse(func() error { return s.execute(ctx, "ALTER DATABASE "+draft+" RENAME TO "+name) })
	if state := sqlState(err); state == stateExists || state == stateUnique {
		err = s.dropDatabase(ctx, draft)
	}
	return name, err
}

func (s *server) makeTemplate(ctx context.Context, draft string) error {
	// template0 is what a fresh server has; template1 may have an administrator's additions, or be in use.
	if err := s.execute(ctx, "CREATE DATABASE "+draft+" TEMPLATE template0"); err != nil {
		return fmt.Errorf("create database %s: %w", draft, err)
	}
	if err := s.migrate(ctx, draft); err != nil {
		return err
	}
	return s.execute(ctx, "ALTER DATABASE "+draft+" ALLOW_CONNECTIONS false")
}

func (s *server) migrate(ctx context.Context, database string) error {
	db := stdlib.OpenDB(*s.base.configFor(database))
	defer db.Close()
	return migrations.Up(ctx, db)
}

// templateName depends on everything that the template's contents depend on. That includes the role, which owns them.
func (s *server) templateName(ctx context.Context) (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, templateFormat)
	err := fs.WalkDir(migrations.FS, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(migrations.FS, path)
		fmt.Fprintf(sum, "%s %d %s", path, len(content), content)
		return err
	})
	if err != nil {
		return "", err
	}
	var role string
	err = s.do(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT current_user").Scan(&role)
	})
	fmt.Fprintf(sum, "%s", role)
	return "gormtest_template_" + hex.EncodeToString(sum.Sum(nil)[:8]), err
}

func (s *server) exists(ctx context.Context, name string) (exists bool, err error) {
	err = s.do(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&exists)
	})
	return exists, err
}
