package gormtest

import (
	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

// libraryTable is the table of keys, which the plugin has registered the model with.
func libraryTable(db *gorm.DB) (pgsql.Table, error) {
	statement := &gorm.Statement{DB: db}
	if err := statement.Parse(&idempotency.IdempotencyKey{}); err != nil {
		return pgsql.Table{}, err
	}
	return pgsql.ParseTable(statement.Schema.Table)
}
