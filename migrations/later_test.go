package migrations

import (
	"context"
	"database/sql"
	"testing"
	"testing/fstest"

	"github.com/pressly/goose/v3"
)

// laterFS is what the library's migrations may be one day.
func laterFS(t *testing.T) fstest.MapFS {
	t.Helper()
	const name = "00001_create_idempotency_keys.sql"
	first, err := FS.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return fstest.MapFS{
		name: {Data: first},
		"00002_later.sql": {Data: []byte(`-- +goose Up
ALTER TABLE idempotency_keys ADD COLUMN IF NOT EXISTS attempts INT NOT NULL DEFAULT 0;
CREATE INDEX IF NOT EXISTS idx_idempotency_keys_attempts ON idempotency_keys (attempts) WITH (fillfactor = 70);

-- +goose Down
ALTER TABLE idempotency_keys DROP COLUMN IF EXISTS attempts;
`)},
	}
}

// UpLater runs the library's migrations and a later one that changes the table.
func UpLater(ctx context.Context, t *testing.T, db *sql.DB, opts ...Option) error {
	t.Helper()
	at, err := open(ctx, db, gather(opts))
	if err != nil {
		return err
	}
	store, err := newVersionStore(at)
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectCustom, db, renderedFS{inner: laterFS(t), target: at},
		goose.WithStore(store), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return err
	}
	_, err = provider.Up(ctx)
	return err
}
