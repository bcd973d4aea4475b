package compat_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/lib/pq"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
	"github.com/gorm-idempotency/idempotency/internal/conformance"
)

// TestLibPQ runs the conformance suite over lib/pq and its binary mode (cases C1, C19, C20, C28, C29, C49, C50, C55).
func TestLibPQ(t *testing.T) {
	t.Parallel()
	for _, mode := range []struct {
		name       string
		parameters string
		config     gorm.Config
	}{
		{"text", "", gorm.Config{}},
		{"text PrepareStmt", "", gorm.Config{PrepareStmt: true}},
		{"binary", "binary_parameters=yes", gorm.Config{TranslateError: true}},
		{"binary PrepareStmt", "binary_parameters=yes", gorm.Config{PrepareStmt: true}},
	} {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			conformance.Run(t, conformance.Cell{
				Open: func(t *testing.T) *gorm.DB {
					t.Helper()
					config := mode.config
					config.Logger = logger.Discard
					db, err := gorm.Open(postgres.New(postgres.Config{
						DriverName: "postgres", DSN: with(gormtest.DSN(t), mode.parameters),
					}), &config)
					if err != nil {
						t.Fatal(err)
					}
					if err := db.Use(idempotency.New(idempotency.Config{})); err != nil {
						t.Fatal(err)
					}
					pool, err := db.DB()
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { _ = pool.Close() })
					return db
				},
				State: func(err error) string {
					var pqErr *pq.Error
					if errors.As(err, &pqErr) {
						return string(pqErr.Code)
					}
					return ""
				},
			})
		})
	}
}

// with adds a parameter to a DSN of either form.
func with(dsn, parameter string) string {
	switch {
	case parameter == "":
		return dsn
	case !strings.Contains(dsn, "://"):
		return dsn + " " + parameter
	case strings.Contains(dsn, "?"):
		return dsn + "&" + parameter
	}
	return dsn + "?" + parameter
}
