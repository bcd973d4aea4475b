package compat_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/pressly/goose/v3"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"gorm.io/gorm"
	"gorm.io/plugin/opentelemetry/tracing"
	"gorm.io/plugin/optimisticlock"
	"gorm.io/plugin/prometheus"
	"gorm.io/plugin/soft_delete"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
	"github.com/gorm-idempotency/idempotency/internal/conformance"
	"github.com/gorm-idempotency/idempotency/migrations"
)

// TestPluginsConformance runs the whole suite beside the plugins that register callbacks, in either order.
func TestPluginsConformance(t *testing.T) {
	t.Parallel()
	otel := func(t testing.TB, db *gorm.DB, _ string) {
		t.Helper()
		requireNil(t, db.Use(tracing.NewPlugin(tracing.WithTracerProvider(trace.NewTracerProvider()))))
	}
	metrics := func(t testing.TB, db *gorm.DB, _ string) {
		t.Helper()
		requireNil(t, db.Use(prometheus.New(prometheus.Config{DBName: "app", RefreshInterval: 3600})))
	}
	first := drivers[0].cell("Beside", "opentelemetry before, prometheus after this plugin, the whole suite")
	first.Before, first.After = otel, metrics
	run(t, first)
	last := drivers[0].cell("Beside", "prometheus before, opentelemetry after this plugin, PrepareStmt, the whole suite")
	last.Before, last.After = metrics, otel
	last.Gorm.PrepareStmt = true
	run(t, last)
}

// The handler's statements are traced as any other, inside of the caller's span; ours do not pass the callbacks, and so
// leave neither payload nor answer in a trace.
func TestTracingShowsTheHandlersStatements(t *testing.T) {
	t.Parallel()
	exporter := tracetest.NewInMemoryExporter()
	provider := trace.NewTracerProvider(trace.WithSyncer(exporter))
	db := openWithOrders(t, gormtest.DSN(t), gorm.Config{})
	requireNil(t, db.Use(tracing.NewPlugin(tracing.WithTracerProvider(provider), tracing.WithoutMetrics())))
	ctx, span := provider.Tracer("test").Start(t.Context(), "delivery")
	for range 2 {
		_, err := idempotency.Do(db.WithContext(ctx), "s", "evt", []byte("SECRET"), func(tx *gorm.DB) error {
			return errors.Join(tx.Create(&order{Event: "evt"}).Error, idempotency.Respond(tx, 200, "SECRET"))
		})
		requireNil(t, err)
	}
	span.End()
	created := 0
	for _, s := range exporter.GetSpans() {
		text := s.Name
		for _, attribute := range s.Attributes {
			text += " " + attribute.Value.Emit()
		}
		if strings.Contains(text, "SECRET") {
			t.Errorf("a span has the payload or the answer: %s", text)
		}
		if strings.Contains(text, `INSERT INTO "orders"`) {
			created++
			if s.Parent.SpanID() != span.SpanContext().SpanID() {
				t.Error("the handler's statement is not in the caller's trace")
			}
		}
	}
	if created != 1 {
		t.Errorf("%d spans of the handler's insert, want 1", created)
	}
	conformance.Note(t, "Beside", "opentelemetry: traces", "the handler's statements are traced, this library's are not")
}

type locked struct {
	ID      uint
	Event   string
	Version optimisticlock.Version
}

type marked struct {
	ID        uint
	Event     string
	DeletedAt soft_delete.DeletedAt `gorm:"softDelete:flag"`
}

// Models with optimistic locking and with the soft_delete plugin's flag are written once, and undone with the handler.
func TestFieldPlugins(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	db := openWithOrders(t, dsn, gorm.Config{})
	requireNil(t, db.AutoMigrate(&locked{}, &marked{}))
	failed := errors.New("the handler's own")
	attempts := 0
	handler := func(tx *gorm.DB) error {
		attempts++
		row, mark, gone := &locked{Event: "evt"}, &marked{Event: "evt"}, &marked{Event: "evt"}
		if err := errors.Join(tx.Create(row).Error, tx.Create(mark).Error, tx.Create(gone).Error, tx.Delete(gone).Error); err != nil {
			return err
		}
		stale := *row
		if err := tx.Model(row).Update("event", "changed").Error; err != nil {
			return err
		}
		if updated := tx.Model(&stale).Update("event", "lost"); updated.Error != nil || updated.RowsAffected != 0 {
			t.Errorf("a stale version was written: %d rows, %v", updated.RowsAffected, updated.Error)
		}
		if attempts == 1 {
			return failed
		}
		return nil
	}
	_, err := idempotency.Do(db, "s", "evt", nil, handler)
	requireIs(t, err, failed)
	for delivery := range 2 {
		result, err := idempotency.Do(db, "s", "evt", nil, handler)
		if err != nil || result.Replayed != (delivery == 1) {
			t.Errorf("delivery %d: %+v, %v", delivery, result, err)
		}
	}
	admin := connect(t, dsn)
	requireQuery(t, admin, "1", "SELECT count(*) FROM lockeds WHERE event = 'changed' AND version = 2")
	requireQuery(t, admin, "1", "SELECT count(*) FROM lockeds")
	requireQuery(t, admin, "1", "SELECT count(*) FROM markeds WHERE deleted_at = 1")
	requireQuery(t, admin, "1", "SELECT count(*) FROM markeds WHERE deleted_at = 0")
	conformance.Note(t, "Beside", "optimisticlock, soft_delete", "work in a handler")
}

func widgets(version string) fstest.MapFS {
	return fstest.MapFS{version + "_widgets.sql": {Data: []byte(
		"-- +goose Up\nCREATE TABLE IF NOT EXISTS widgets (id int);\n-- +goose Down\nDROP TABLE IF EXISTS widgets;\n")}}
}

// Cases C57 and C58: an application that migrates through a Provider of its own, with lower and higher versions than
// ours, before us, after us and at the same time. Package migrations tests goose's global functions.
func TestApplicationsOwnProvider(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"00001", "20250101"} {
		for _, order := range []string{"application first", "ours first", "at the same time"} {
			name := fmt.Sprintf("goose Provider at %s, %s", version, order)
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				ctx := context.Background()
				db := connect(t, gormtest.DSN(t))
				execute(t, db, "DROP TABLE idempotency_keys", "DROP TABLE IF EXISTS idempotency_goose_version")
				provider, err := goose.NewProvider(goose.DialectPostgres, db, widgets(version))
				requireNil(t, err)
				application := func() error {
					_, err := provider.Up(ctx)
					return err
				}
				ours := func() error { return migrations.Up(ctx, db) }
				switch order {
				case "application first":
					requireNil(t, errors.Join(application(), ours(), application()))
				case "ours first":
					requireNil(t, errors.Join(ours(), application(), ours()))
				default:
					atTheSameTime(t, application, ours)
				}
				requireNil(t, migrations.Validate(ctx, db))
				requireQuery(t, db, "0", "SELECT count(*) FROM widgets")
				current, target, err := provider.GetVersions(ctx)
				if err != nil || current != target {
					t.Errorf("the application is at %d, want %d: %v", current, target, err)
				}
				_, err = provider.DownTo(ctx, 0)
				requireNil(t, err)
				requireNil(t, migrations.Validate(ctx, db))
				conformance.Note(t, "Beside", name, "works: each keeps its own version table")
			})
		}
	}
}

func atTheSameTime(t *testing.T, functions ...func() error) {
	t.Helper()
	var all sync.WaitGroup
	for _, function := range functions {
		all.Go(func() {
			if err := function(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// Case C59: a role without rights on public, whose search path is its own schema, with a version table of its own name. The
// second run changes nothing.
func TestMigrationsInASchemaOfTheirOwn(t *testing.T) {
	t.Parallel()
	dsn := gormtest.DSN(t)
	admin := connect(t, dsn)
	database := query(t, admin, "SELECT current_database()")
	role := "role_" + database
	execute(t, admin, "DROP TABLE idempotency_keys", "CREATE ROLE "+role, "CREATE SCHEMA app AUTHORIZATION "+role,
		"REVOKE ALL ON SCHEMA public FROM PUBLIC")
	t.Cleanup(func() { execute(t, connect(t, dsn), "DROP OWNED BY "+role+" CASCADE", "DROP ROLE "+role) })
	db := connect(t, with(dsn, "role="+role, "search_path=app"))
	for range 2 {
		requireNil(t, migrations.Up(context.Background(), db, migrations.WithVersionTable("keys_version")))
	}
	requireNil(t, migrations.Validate(context.Background(), db))
	requireQuery(t, admin, "app app", "SELECT string_agg(schemaname, ' ') FROM pg_tables WHERE tablename IN ('idempotency_keys', 'keys_version')")
	requireQuery(t, admin, "1", "SELECT count(*) FROM app.keys_version WHERE version_id = 1")
	conformance.Note(t, "Beside", "migrations by a role without rights on public, search_path=app", "work, twice")
}
