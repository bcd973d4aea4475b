package migrations

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

// maxPartitions bounds what one migration locks: a partition has six relations, its TOAST table included, and the server's
// lock table has by default some 6,400 places for everybody together.
const maxPartitions = 256

// WithPartitions has [Up] create the table as n hash partitions on (source, event_id), called like the table with "_p0",
// "_p1" and so on behind its name, each with its own indexes and fill factor. A key has one place in one partition, so it
// is as unique as in an ordinary table, and nothing else changes for the application.
//
// n is 0, the default, for an ordinary table, or from 2 to 256. A power of two is easier to grow later: when 16 become 32,
// each old partition's rows go to two new ones and no row moves anywhere else, while 16 to 20 moves nearly all of them.
//
// A table that exists stays as it is. Told n, Up refuses one that has another number of partitions, whatever their names,
// before it changes anything: it never converts a table. Told nothing, it takes over either kind, so that a version of the
// application from before a switch can still start after it. [Down], [Status] and [Validate] need no WithPartitions.
func WithPartitions(n int) Option {
	return func(o *options) {
		o.partitions = n
	}
}

func partitionNames(table pgsql.Table, n int) ([]string, error) {
	switch {
	case n < 0:
		return nil, fmt.Errorf("%d is negative: want 2 to %d, or 0 for an ordinary table", n, maxPartitions)
	case n == 1:
		return nil, errors.New("one partition is only slower than none: want 0 for an ordinary table")
	case n > maxPartitions:
		return nil, fmt.Errorf("%d are too many: want at most %d, since a migration locks each of them and its indexes at once",
			n, maxPartitions)
	}
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s_p%d", table.Name, i)
	}
	return names, nil
}

// fits refuses a table that exists and has not the partitions that the options ask for. What is no table of keys at all is
// CheckSchema's to refuse.
func (t target) fits() error {
	wanted, existing := int64(len(t.partitions)), t.existing.Int64
	switch {
	case !t.existing.Valid || wanted == 0 || existing == wanted:
		return nil
	case existing == 0:
		return fmt.Errorf("the table %s exists without partitions, and migrations do not convert it: leave WithPartitions "+
			"out, or move its keys into a partitioned table as docs/migrations.md says", t.keysTable())
	}
	return fmt.Errorf("the table %s exists with %d hash partitions and not %d, and migrations do not convert it: want "+
		"WithPartitions(%[2]d)", t.keysTable(), existing, wanted)
}

// storage is the end of a CREATE TABLE that has storage parameters.
var storage = regexp.MustCompile(`(?m)^\) (WITH \(.*\));$`)

// partition renders the migration that creates the table: its storage parameters, which a partitioned table cannot have,
// go to each partition. Everything else holds for both kinds, since what is done to a partitioned table, its indexes
// included, PostgreSQL does to the partitions.
func (t target) partition(text string) string {
	if len(t.partitions) == 0 {
		return text
	}
	return storage.ReplaceAllStringFunc(text, func(clause string) string {
		var b strings.Builder
		b.WriteString(") PARTITION BY HASH (source, event_id);")
		if !t.existing.Valid { // else it has partitions, whatever they are called
			b.WriteString("\n")
			for i, name := range t.partitions {
				fmt.Fprintf(&b, "\nCREATE TABLE IF NOT EXISTS %s PARTITION OF %s\n  FOR VALUES WITH (MODULUS %d, REMAINDER %d) %s;",
					qualify(t.schema, name), t.keysTable(), len(t.partitions), i, storage.FindStringSubmatch(clause)[1])
			}
		}
		b.WriteString("\n\n" + t.countPartitions())
		return b.String()
	})
}

// countPartitions fails, and so rolls the migration back, unless every partition is there: IF NOT EXISTS passes over a table
// of another kind, and over another relation that has a partition's name, and a key without a partition can never be claimed.
func (t target) countPartitions() string {
	block := fmt.Sprintf(`BEGIN
  IF (SELECT count(*) FROM pg_catalog.pg_partition_tree(%s) WHERE isleaf AND level > 0) <> %d THEN
    RAISE EXCEPTION USING MESSAGE = %s;
  END IF;
END`, literal(t.keysTable()), len(t.partitions),
		literal(fmt.Sprintf("%s exists, but not with %d partitions, or one of their names is taken", t.keysTable(), len(t.partitions))))
	return "-- +goose StatementBegin\nDO " + literal(block) + ";\n-- +goose StatementEnd"
}

func literal(text string) string {
	return "'" + strings.ReplaceAll(text, "'", "''") + "'"
}
