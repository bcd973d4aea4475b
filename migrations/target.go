package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
)

// target is where the migrations work, with the search path resolved. Everything is named with its schema from there on:
// behind a pooler each transaction may meet another connection, and the search path is the connection's.
type target struct {
	names
	schema         string // the table's
	versionsSchema string
	versioned      bool          // the version table exists
	missingSchema  string        // "" if both schemas exist
	forbidden      string        // a schema in which this role may not create; "" for none
	hidden         string        // what the table's unqualified name means now, if that is in another schema
	taken          string        // names that the migrations want to create and that others have
	existing       sql.NullInt64 // hash partitions of the table that exists, 0 for an ordinary one
}

const targetQuery = `
SELECT coalesce(want.keys, ''), coalesce(want.versions, ''),
       EXISTS (SELECT 1 FROM pg_catalog.pg_class c WHERE c.relnamespace = v.oid AND c.relname = $4::name),
       CASE WHEN k.oid IS NULL THEN coalesce(want.keys, '') WHEN v.oid IS NULL THEN want.versions ELSE '' END,
       CASE WHEN NOT pg_catalog.has_schema_privilege(v.oid, 'CREATE') THEN want.versions
            WHEN NOT pg_catalog.has_schema_privilege(k.oid, 'CREATE') THEN want.keys ELSE '' END,
       coalesce((SELECT n.nspname || '.' || c.relname
                 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
                 WHERE $1::text = '' AND c.oid = pg_catalog.to_regclass($5::text) AND n.oid <> k.oid), ''),
       coalesce((SELECT string_agg(c.relname, ', ')
                 FROM pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_index i ON i.indexrelid = c.oid
                 LEFT JOIN pg_catalog.pg_inherits h ON h.inhrelid = c.oid
                 LEFT JOIN pg_catalog.pg_class t ON t.oid = coalesce(i.indrelid, h.inhparent)
                 WHERE c.relnamespace = k.oid AND c.relname = ANY (pg_catalog.string_to_array($6::text, ',')::name[])
                   AND t.relname IS DISTINCT FROM $2::name), ''),
       (SELECT CASE WHEN c.relkind = 'r' THEN 0 ELSE (SELECT nullif(count(*), 0) FROM pg_catalog.pg_partition_tree(c.oid) WHERE isleaf) END
        FROM pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_partitioned_table p ON p.partrelid = c.oid
        WHERE c.relnamespace = k.oid AND c.relname = $2::name AND (c.relkind = 'r' OR p.partstrat = 'h'))
FROM (SELECT coalesce(nullif($1::text, ''), current_schema()) AS keys,
             coalesce(nullif($3::text, ''), nullif($1::text, ''), current_schema()) AS versions) AS want
LEFT JOIN pg_catalog.pg_namespace k ON k.nspname = want.keys
LEFT JOIN pg_catalog.pg_namespace v ON v.nspname = want.versions`

// findTarget reads the catalogue and writes nothing.
func findTarget(ctx context.Context, db *sql.DB, n names) (target, error) {
	t := target{names: n}
	err := db.QueryRowContext(ctx, targetQuery,
		n.table.Schema, n.table.Name, n.versions.Schema, n.versions.Name, n.table.Quoted(),
		strings.Join(n.created(), ","), // plain identifiers; no array, which drivers send differently
	).Scan(&t.schema, &t.versionsSchema, &t.versioned, &t.missingSchema, &t.forbidden, &t.hidden, &t.taken, &t.existing)
	if err != nil {
		return target{}, fmt.Errorf("read the catalogue: %w", err)
	}
	// A line break could smuggle a goose annotation into the rendered file. Only a schema that the search path names can
	// hold one: configured names are plain.
	if strings.ContainsAny(t.schema, "\r\n") {
		return target{}, fmt.Errorf("the schema %q has a line break in its name", t.schema)
	}
	return t, nil
}

// ready tells whether the migrations may run here.
func (t target) ready() error {
	switch {
	case t.schema == "":
		return errors.New("the search path names no schema that exists and may be used: name the schema, as in " +
			"WithTable(\"app." + t.table.Name + "\")")
	case t.missingSchema != "":
		return fmt.Errorf("the schema %q does not exist, and migrations do not create schemas: CREATE SCHEMA %s first",
			t.missingSchema, quote(t.missingSchema))
	case t.hidden != "":
		// Creating it would hide the existing table from every claim: all the keys in it would be forgotten.
		return fmt.Errorf("%q means %s on this search path, and a new table in the schema %q would hide it: "+
			"name the schema that is meant, as in WithTable(%q)", t.table.Name, t.hidden, t.schema, t.hidden)
	case t.taken != "":
		// IF NOT EXISTS looks at the name alone, and would leave the table without its index or partition.
		return fmt.Errorf("an index or a partition of %s needs a name that another relation in the schema %q has: %s",
			t.table, t.schema, t.taken)
	}
	return t.fits()
}

// keysTable is the table of keys as it stands in a statement.
func (t target) keysTable() string {
	return qualify(t.schema, t.table.Name)
}

// versionTable is the version table as it stands in a statement. goose puts it into its statements as it is, so unquoted
// it would lose its case, and the tables "Keys" and "keys" would share one.
func (t target) versionTable() string {
	return qualify(t.versionsSchema, t.versions.Name)
}

// qualify is a relation's name as it stands in a statement: without a schema in what is printed for a search path that is
// not known yet.
func qualify(schema, name string) string {
	if schema == "" {
		return quote(name)
	}
	return quote(schema) + "." + quote(name)
}

func quote(identifier string) string {
	return `"` + strings.ReplaceAll(identifier, `"`, `""`) + `"`
}
