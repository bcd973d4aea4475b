package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/pressly/goose/v3"

	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

// FS holds the migrations as goose SQL files, for the default table. [Up] needs none of it: it is for applications that
// run these migrations with a tool of their own.
//
//go:embed *.sql
var FS embed.FS

// Up applies every migration that is not recorded as applied, each in a transaction of its own, and then checks the table
// as [Validate] does. If there is nothing to apply it only reads, and a role without the right to create will do. A table
// that AutoMigrate has made is taken over as it is.
//
// Several processes may call it at once: see the package's documentation. It waits for the others as long as ctx and the
// role's lock_timeout and statement_timeout let it. db stays open, and one connection is enough. It must lead to the
// primary server.
//
// It creates no schema, and refuses an unqualified name that means a table in a later schema of the search path, since a
// new table in the first one would hide the keys in it.
//
// If a migration fails, nothing of it remains, those before it stay applied, and the next Up continues with it. (If the
// connection broke during its COMMIT it may be applied, and is then recorded so.) An error that satisfies
// errors.Is(err, idempotency.ErrSchema) means that all are recorded as applied and the table is nevertheless not what the
// library needs.
func Up(ctx context.Context, db *sql.DB, opts ...Option) error {
	if err := up(ctx, db, gather(opts)); err != nil {
		return fmt.Errorf("idempotency: migrate up: %w", err)
	}
	return nil
}

func up(ctx context.Context, db *sql.DB, o options) error {
	t, err := open(ctx, db, o)
	if err != nil {
		return err
	}
	if err := t.ready(); err != nil {
		return err
	}
	if err := createVersionTable(ctx, db, t); err != nil {
		return fmt.Errorf("no migration was applied: %w", err)
	}
	provider, err := newProvider(db, t)
	if err != nil {
		return err
	}
	applied, err := provider.Up(ctx)
	if partial := (*goose.PartialError)(nil); errors.As(err, &partial) {
		applied = partial.Applied
	}
	for _, result := range applied {
		o.observe(change(result))
	}
	if err != nil {
		return explain(err)
	}
	// Another process may have created the table otherwise since this one looked.
	if t, err = findTarget(ctx, db, t.names); err == nil {
		err = t.fits()
	}
	if err != nil {
		return err
	}
	if err := pgsql.CheckSchema(ctx, db, t.table); err != nil {
		return fmt.Errorf("every migration is recorded as applied in %[1]s, but %[2]w; if somebody dropped the table, "+
			"drop %[1]s too and migrate again", t.versionTable(), err)
	}
	return nil
}

// Down rolls back the newest applied migration, as goose's down command does, and does nothing if none is recorded as
// applied. Rolling back the first one drops the table with every key in it: an event that is delivered again afterwards
// takes effect again.
//
// If it fails, the migration stays applied, unless the connection broke during COMMIT.
func Down(ctx context.Context, db *sql.DB, opts ...Option) error {
	if err := down(ctx, db, gather(opts)); err != nil {
		return fmt.Errorf("idempotency: migrate down: %w", err)
	}
	return nil
}

func down(ctx context.Context, db *sql.DB, o options) error {
	t, err := open(ctx, db, o)
	if err != nil || !t.versioned {
		return err
	}
	provider, err := newProvider(db, t)
	if err != nil {
		return err
	}
	result, err := provider.Down(ctx)
	switch {
	case errors.Is(err, goose.ErrNoNextVersion):
		return nil
	case errors.Is(err, goose.ErrVersionNotFound):
		return fmt.Errorf("the newest migration in %s is of a later version of this library: %w", t.versionTable(), err)
	case err != nil:
		return explain(err)
	}
	o.observe(change(result))
	return nil
}

func change(result *goose.MigrationResult) Change {
	return Change{Version: result.Source.Version, Name: path.Base(result.Source.Path), Took: result.Duration}
}

// A MigrationStatus tells whether one migration is applied.
type MigrationStatus struct {
	Version   int64
	Name      string    // the file's name in FS
	AppliedAt time.Time // zero if it is not applied
}

// Applied reports whether the migration is recorded as applied.
func (s MigrationStatus) Applied() bool {
	return !s.AppliedAt.IsZero()
}

// Status lists the migrations in ascending order. It only reads, and tells what is recorded: [Validate] tells whether the
// table is usable.
func Status(ctx context.Context, db *sql.DB, opts ...Option) ([]MigrationStatus, error) {
	list, err := status(ctx, db, gather(opts))
	if err != nil {
		return nil, fmt.Errorf("idempotency: migration status: %w", err)
	}
	return list, nil
}

func status(ctx context.Context, db *sql.DB, o options) ([]MigrationStatus, error) {
	t, err := open(ctx, db, o)
	if err != nil {
		return nil, err
	}
	provider, err := newProvider(db, t)
	if err != nil {
		return nil, err
	}
	var list []MigrationStatus
	if !t.versioned {
		for _, source := range provider.ListSources() {
			list = append(list, MigrationStatus{Version: source.Version, Name: path.Base(source.Path)})
		}
		return list, nil
	}
	recorded, err := provider.Status(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range recorded {
		list = append(list, MigrationStatus{
			Version:   m.Source.Version,
			Name:      path.Base(m.Source.Path),
			AppliedAt: m.AppliedAt,
		})
	}
	return list, nil
}

// Validate reads the catalogue and refuses a table on which an event could take effect twice or be stuck for ever: one
// that is missing, temporary, unlogged, a view, hidden by row-level security, without a plain unique key on (source,
// event_id), with wrong columns, or partitioned by anything but hash. The table is found as a claim finds it, through the
// search path unless its name has a schema.
//
// Its error names everything that is wrong and satisfies errors.Is(err, idempotency.ErrSchema); any other error says that
// the catalogue could not be read. It does not ask which migrations are applied.
func Validate(ctx context.Context, db *sql.DB, opts ...Option) error {
	if err := validate(ctx, db, gather(opts)); err != nil {
		return fmt.Errorf("idempotency: validate: %w", err)
	}
	return nil
}

func validate(ctx context.Context, db *sql.DB, o options) error {
	n, err := newNames(o)
	if err != nil {
		return err
	}
	if db == nil {
		return errNoPool
	}
	return pgsql.CheckSchema(ctx, db, n.table)
}

var errNoPool = errors.New("the *sql.DB is nil")

// open checks the arguments before any SQL, and then finds out where the migrations work.
func open(ctx context.Context, db *sql.DB, o options) (target, error) {
	n, err := newNames(o)
	if err != nil {
		return target{}, err
	}
	if db == nil {
		return target{}, errNoPool
	}
	return findTarget(ctx, db, n)
}

// newProvider is never closed: goose's Close closes the caller's pool. Nothing of goose's package level is used, since an
// application's own migrations may have set it.
func newProvider(db *sql.DB, t target) (*goose.Provider, error) {
	store, err := newVersionStore(t)
	if err != nil {
		return nil, err
	}
	return goose.NewProvider(goose.DialectCustom, db, renderedFS{inner: FS, target: t},
		goose.WithStore(store),
		goose.WithDisableGlobalRegistry(true), // or the application's Go migrations would run as ours
		goose.WithLogger(goose.NopLogger()),
	)
}

// explain says what remains true after a migration has failed.
func explain(err error) error {
	var partial *goose.PartialError
	if !errors.As(err, &partial) {
		return err
	}
	return fmt.Errorf("%s failed (%d before it in this run stay applied, and the next run continues with it): %w",
		path.Base(partial.Failed.Source.Path), len(partial.Applied), partial.Err)
}
