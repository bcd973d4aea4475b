package idempotency_test

import (
	"strings"
	"testing"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency/internal/conformance"
)

// TestConformance runs the suite in GORM's two commonest settings. The module internal/compat runs it over everything else.
func TestConformance(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]gorm.Config{
		"defaults":    {},
		"PrepareStmt": {PrepareStmt: true, SkipDefaultTransaction: true, TranslateError: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conformance.Run(t, conformance.Cell{Dialector: postgres.Open, Gorm: config})
		})
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
