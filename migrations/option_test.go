package migrations

import (
	"testing"

	"gorm.io/gorm/schema"

	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

// goose and AutoMigrate must name the indexes alike, or a database that has seen both has each of them twice.
func TestIndexNamesAreGORMs(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"idempotency_keys", "app.keys", "Keys", "App.Idempotency_Keys", "_a._b", "a1.b2"} {
		table, err := pgsql.ParseTable(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, suffix := range []string{"claimed_at", "incomplete"} {
			want := schema.NamingStrategy{IdentifierMaxLength: 63}.IndexName(name, suffix)
			if got := indexName(table, suffix); got != want {
				t.Errorf("table %s: got %s, want %s", name, got, want)
			}
		}
	}
}
