package gormtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/gorm"
)

// journal notes every row of the user's tables that changes, and every key that is claimed, in the transaction that does it.
// So what was rolled back is not in it; what one transaction did is together, with the keys that it claimed; and nothing
// escapes it, whichever connection, function or trigger made the change. Comparing the tables' contents before and after
// would show none of that, and would mistake a counter that was changed twice for one that was changed by two events.
//
// It is made of triggers, in a schema of its own that is dropped at the end. Their functions run with the rights of whoever
// made them: a handler may write under a role that knows nothing of the schema.
type journal struct {
	pool *sql.DB
}

// change is a row that changed, or a key that was claimed.
type change struct {
	tx        int64
	claimed   bool
	table     string // "" for a claim
	operation string // INSERT, UPDATE, DELETE or TRUNCATE
	row       string // as text; a claim's source and event id
	statement string // that the client sent
}

const journalSchema = `
SET LOCAL lock_timeout = '5s';
CREATE SCHEMA gormtest;
CREATE TABLE gormtest.journal (id bigserial PRIMARY KEY, tx bigint NOT NULL DEFAULT txid_current(), claimed boolean NOT NULL,
	relation text NOT NULL, operation text NOT NULL, row_text text NOT NULL, statement text NOT NULL DEFAULT current_query());
CREATE FUNCTION gormtest.note_change() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
	IF TG_OP = 'UPDATE' AND OLD::text IS NOT DISTINCT FROM NEW::text THEN
		RETURN NULL;
	END IF;
	INSERT INTO gormtest.journal (claimed, relation, operation, row_text) VALUES (false, TG_ARGV[0], TG_OP,
		CASE TG_OP WHEN 'TRUNCATE' THEN 'all rows' WHEN 'DELETE' THEN OLD::text ELSE NEW::text END);
	RETURN NULL;
END $$;
CREATE FUNCTION gormtest.note_claim() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
	INSERT INTO gormtest.journal (claimed, relation, operation, row_text) VALUES (true, '', TG_OP, NEW.source || ' ' || NEW.event_id);
	RETURN NULL;
END $$;`

// openJournal begins to take notes, but for the exempt tables.
func openJournal(ctx context.Context, db *gorm.DB, exempt []string) (*journal, error) {
	config, err := connConfig(ctx, db)
	if err != nil {
		return nil, err
	}
	j := &journal{pool: stdlib.OpenDB(*config)}
	if err := j.install(ctx, db, exempt); err != nil {
		_ = j.pool.Close()
		return nil, explainJournal(err)
	}
	return j, nil
}

func (j *journal) install(ctx context.Context, db *gorm.DB, exempt []string) error {
	tx, err := j.pool.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // a no-op after the commit
	table, err := libraryTable(db)
	if err != nil {
		return err
	}
	keys := table.Quoted()
	tables, err := watchable(ctx, tx, keys)
	if err != nil {
		return err
	}
	if tables, err = without(tables, exempt); err != nil {
		return err
	}
	statements := journalSchema
	for _, table := range tables {
		argument := "'" + strings.ReplaceAll(table.name, "'", "''") + "'"
		statements += fmt.Sprintf(`
			CREATE TRIGGER gormtest_change AFTER INSERT OR UPDATE OR DELETE ON %[1]s FOR EACH ROW EXECUTE FUNCTION gormtest.note_change(%[2]s);
			CREATE TRIGGER gormtest_truncate AFTER TRUNCATE ON %[1]s FOR EACH STATEMENT EXECUTE FUNCTION gormtest.note_change(%[2]s);`,
			table.quoted, argument)
	}
	statements += `
		CREATE TRIGGER gormtest_claim AFTER INSERT ON ` + keys + ` FOR EACH ROW EXECUTE FUNCTION gormtest.note_claim();`
	if _, err := tx.ExecContext(ctx, statements); err != nil {
		return err
	}
	return tx.Commit()
}

type watchedTable struct{ name, quoted string }

// watchable are the application's tables: not the library's, nor an extension's. A partition is watched through its parent.
func watchable(ctx context.Context, tx *sql.Tx, keys string) (tables []watchedTable, err error) {
	rows, err := tx.QueryContext(ctx, `
		SELECT CASE n.nspname WHEN 'public' THEN c.relname ELSE n.nspname || '.' || c.relname END, format('%I.%I', n.nspname, c.relname)
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't' AND c.oid <> $1::regclass
		  AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
		  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
		ORDER BY 1`, keys)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var table watchedTable
		if err := rows.Scan(&table.name, &table.quoted); err != nil {
			return nil, err
		}
		tables = append(tables, table)
	}
	return tables, rows.Err()
}

// without removes the exempt tables, each of which must exist: a slip of the pen would otherwise exempt nothing.
func without(tables []watchedTable, exempt []string) ([]watchedTable, error) {
	for _, name := range exempt {
		at := slices.IndexFunc(tables, func(t watchedTable) bool { return t.name == name || "public."+t.name == name })
		if at < 0 {
			return nil, fmt.Errorf("WithExempt: the database has no table %q", name)
		}
		tables = slices.Delete(tables, at, at+1)
	}
	return tables, nil
}

// explainJournal says what to do about an error that has a known remedy.
func explainJournal(err error) error {
	switch sqlState(err) {
	case stateSchemaExists:
		return fmt.Errorf("the database has a schema gormtest: another test is at work on it, or was killed; give each test its own, by Open or DSN (%w)", err)
	case stateNoRights:
		return fmt.Errorf("the role may not create a schema, or a trigger on each table: connect as the owner of the database and its tables (%w)", err)
	case stateLocked:
		return fmt.Errorf("a transaction that is open holds a table: end it first (%w)", err)
	}
	return err
}

const (
	stateSchemaExists = "42P06"
	stateNoRights     = "42501"
	stateLocked       = "55P03"
)

// take returns what was committed since the last take, in the order of the changes.
func (j *journal) take(ctx context.Context) (changes []change, err error) {
	rows, err := j.pool.QueryContext(ctx, `
		WITH taken AS (DELETE FROM gormtest.journal RETURNING *)
		SELECT tx, claimed, relation, operation, row_text, statement FROM taken ORDER BY id`)
	if err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var c change
		if err := rows.Scan(&c.tx, &c.claimed, &c.table, &c.operation, &c.row, &c.statement); err != nil {
			return nil, fmt.Errorf("read the journal: %w", err)
		}
		changes = append(changes, c)
	}
	return changes, rows.Err()
}

// sessionExists reports whether the server still has a session.
func (j *journal) sessionExists(ctx context.Context, pid int64) (exists bool, err error) {
	err = j.pool.QueryRowContext(ctx, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", pid).Scan(&exists)
	return exists, err
}

// close takes the triggers away again.
func (j *journal) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
	defer cancel()
	_, err := j.pool.ExecContext(ctx, "SET lock_timeout = '10s'; DROP SCHEMA gormtest CASCADE")
	if err != nil {
		err = fmt.Errorf("remove the journal: %w", explainJournal(err))
	}
	return errors.Join(err, j.pool.Close())
}
