package migrations_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/pressly/goose/v3"

	"github.com/gorm-idempotency/idempotency/migrations"
)

// applicationFS is an application's migrations: one that creates the table widgets.
func applicationFS(version string) fstest.MapFS {
	return fstest.MapFS{version + "_widgets.sql": {Data: []byte(
		"-- +goose Up\nCREATE TABLE widgets (id int);\n-- +goose Down\nDROP TABLE widgets;\n")}}
}

// applicationUp migrates as most applications do: through goose's package-level functions.
func applicationUp(pool *sql.DB, files fstest.MapFS) error {
	goose.SetBaseFS(files)
	goose.SetLogger(goose.NopLogger())
	goose.SetTableName(goose.DefaultTablename)
	if err := goose.SetDialect("postgres"); err != nil {
		return err
	}
	return goose.UpContext(context.Background(), pool, ".")
}

// C57 and C58. It is not parallel, since goose's package level is the whole process's.
func TestApplicationsGooseAndOurs(t *testing.T) {
	ctx := context.Background()
	for _, version := range []string{"1", "00001", "20250101", "0"} {
		for _, first := range []string{"application", "ours"} {
			t.Run(first+" first, application at "+version, func(t *testing.T) {
				pool := open(t, emptyDatabase(t))
				files := applicationFS(version)
				if version == "0" { // the application migrates nothing yet
					files = fstest.MapFS{}
				}
				app := func() error {
					if len(files) == 0 {
						return nil
					}
					return applicationUp(pool, files)
				}
				ours := func() error { return migrations.Up(ctx, pool) }
				order := []func() error{app, ours, app, ours}
				if first == "ours" {
					order = order[1:]
				}
				for _, step := range order {
					ok(t, step())
				}
				ok(t, migrations.Validate(ctx, pool))
				equal(t, "our versions", query(t, pool, versionsOf+"idempotency_goose_version ORDER BY id"), oneVersionEach)
				if len(files) > 0 {
					equal(t, "application's table", query(t, pool, "SELECT count(*) FROM widgets"), "0")
					equal(t, "application's versions", query(t, pool, "SELECT count(*) FROM goose_db_version WHERE version_id > 0"), "1")
					ok(t, goose.DownContext(ctx, pool, "."))
					ok(t, migrations.Validate(ctx, pool))
				}
			})
		}
	}
}

// C57
func TestApplicationsGooseAndOursAtTheSameTime(t *testing.T) {
	ctx := context.Background()
	pool := open(t, emptyDatabase(t))
	files := applicationFS("20250101")
	ok(t, applicationUp(pool, files))
	var both sync.WaitGroup
	both.Go(func() {
		for range 10 {
			ok(t, errors.Join(goose.DownContext(ctx, pool, "."), goose.UpContext(ctx, pool, ".")))
		}
	})
	both.Go(func() {
		for range 10 {
			ok(t, errors.Join(migrations.Up(ctx, pool), migrations.Validate(ctx, pool), migrations.Down(ctx, pool)))
		}
	})
	both.Wait()
	equal(t, "relations", query(t, pool, relations),
		"public.goose_db_version\npublic.idempotency_goose_version\npublic.widgets")
	equal(t, "application's table name", goose.TableName(), goose.DefaultTablename)
}

// C58
func TestTheGlobalRegistryIsLeftAlone(t *testing.T) {
	defer goose.ResetGlobalMigrations()
	ctx := context.Background()
	pool := open(t, emptyDatabase(t))

	// Importing this package has registered nothing: an application's provider sees its own migrations only.
	provider, err := goose.NewProvider(goose.DialectPostgres, pool, applicationFS("20250101"))
	ok(t, err)
	if sources := provider.ListSources(); len(sources) != 1 {
		t.Errorf("the application's provider has %d migrations: want its own", len(sources))
	}

	// And what the application registers is not run as ours, also under our number.
	goose.AddNamedMigrationContext("00001_application.go", func(context.Context, *sql.Tx) error {
		t.Error("the application's Go migration ran as ours")
		return nil
	}, nil)
	goose.AddNamedMigrationContext("00002_application.go", func(context.Context, *sql.Tx) error {
		t.Error("the application's Go migration ran as ours")
		return nil
	}, nil)
	ok(t, migrations.Up(ctx, pool))
	equal(t, "versions", query(t, pool, versionsOf+"idempotency_goose_version ORDER BY id"), oneVersionEach)
}
