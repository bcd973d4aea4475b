package idempotency

import (
	"context"

	"gorm.io/gorm"
)

// InspectImpatiently inspects with limits that a test reaches at once: any holder, waiter or snapshot is an old one, and a
// handful of updates, rows or scans says something.
func InspectImpatiently(ctx context.Context, db *gorm.DB) (*Report, error) {
	return inspect(ctx, db, limits{pages: usualLimits.pages, updates: 100, dead: 100, scans: 5, ranges: 64, index: usualLimits.index})
}
