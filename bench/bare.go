package main

import (
	"context"

	"gorm.io/gorm"
)

// bare is the floor: the business write in a transaction, and no idempotency at all.
func bare(name string, db *gorm.DB) arm {
	deliver := func(ctx context.Context, event string) error {
		return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error { return place(tx, name, event) })
	}
	return arm{name: name, deliver: deliver, effects: onceEach}
}
