package idempotency_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
	"github.com/gorm-idempotency/idempotency/internal/conformance"
)

// TestPgx runs the conformance suite over pgx's modes and GORM's settings (cases C1, C7, C19, C20, C25, C28, C29, C49, C55,
// C74, C75).
func TestPgx(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		for _, config := range []struct {
			name   string
			config gorm.Config
		}{
			{"plain", gorm.Config{}},
			{"PrepareStmt", gorm.Config{PrepareStmt: true, TranslateError: true, SkipDefaultTransaction: true}},
		} {
			t.Run(mode+" "+config.name, func(t *testing.T) {
				t.Parallel()
				conformance.Run(t, conformance.Cell{
					Open: func(t *testing.T) *gorm.DB {
						t.Helper()
						gormConfig := config.config
						gormConfig.Logger = logger.Discard
						dsn := withParameter(gormtest.DSN(t), "default_query_exec_mode", mode)
						db, err := gorm.Open(postgres.Open(dsn), &gormConfig)
						if err != nil {
							t.Fatal(err)
						}
						if err := db.Use(idempotency.New(idempotency.Config{})); err != nil {
							t.Fatal(err)
						}
						t.Cleanup(func() { closePool(t, db) })
						return db
					},
					State: func(err error) string {
						var pgErr *pgconn.PgError
						if errors.As(err, &pgErr) {
							return pgErr.Code
						}
						return ""
					},
				})
			})
		}
	}
}

// withParameter adds a parameter to a DSN of either form.
func withParameter(dsn, name, value string) string {
	switch {
	case !strings.Contains(dsn, "://"):
		return dsn + " " + name + "=" + value
	case strings.Contains(dsn, "?"):
		return dsn + "&" + name + "=" + value
	}
	return dsn + "?" + name + "=" + value
}

func closePool(t *testing.T, db *gorm.DB) {
	t.Helper()
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	if err := pool.Close(); err != nil {
		t.Error(err)
	}
}
