package pgsql

import (
	"strings"
	"testing"
	"time"
)

func TestIsRead(t *testing.T) {
	t.Parallel()
	cases := map[bool][]string{
		true: {
			"", " \t\n", ";", " ; ;", "-- nothing", "/* nothing /* at all */ */",
			"SELECT 1", "select 1;", "sElEcT(1)", "SELECT 1; SELECT 2 ;", "TABLE orders", "VALUES (1), (2)", "SHOW search_path",
			"(SELECT 1) UNION (SELECT 2)", "((SELECT 1))", "( -- why\n (TABLE orders))",
			"-- INSERT\nSELECT 1", "/* a /* b */ DELETE */ SELECT 1", "--\rSELECT 1", "/**/SELECT 1", "\v\fSELECT 1",
			"SELECT 'DELETE FROM t; DELETE FROM t'", `SELECT "into" FROM t`, `SELECT "a""into" FROM t`, "SELECT 'it''s; into'",
			`SELECT E'\'; INTO ' FROM t`, `SELECT e'\\' FROM t`, `SELECT E'a''\' INTO ' FROM t`, `SELECT '\' FROM t`,
			"SELECT E'a' -- more\n '\\' INTO '", "SELECT $$ INTO $$", "SELECT $a$ $b$ INTO $$ $a$", "SELECT $ä1$ INTO $ä1$",
			"SELECT $1, $2", "SELECT ?, @name", "SELECT a$b$ FROM t", "SELECT $1$$ INTO $$", "SELECT 1$$ INTO $$",
			"SELECT substring(a FOR 3) FROM t", "SELECT delete, update FROM flags", "SELECT a - b, a-- INTO t\n, a / b",
			"EXPLAIN SELECT 1", "EXPLAIN DELETE FROM t", "EXPLAIN (COSTS off) DELETE FROM t", "EXPLAIN VERBOSE UPDATE t SET a = 1",
			"WITH a AS (SELECT 1) SELECT * FROM a", "WITH a AS (SELECT 'DELETE') SELECT * FROM a",
			"WITH a AS (SELECT overlay(a PLACING b FROM 1 FOR 2) FROM t) SELECT * FROM a",
			`WITH "update" AS (SELECT 1) TABLE "update"`, "WITH a AS (SELECT updated_at, insert_me FROM t) TABLE a",
		},
		false: {
			"INSERT INTO t VALUES (1)", "update t set a = 1", "DELETE FROM t", "MERGE INTO t USING s ON true WHEN MATCHED THEN DELETE",
			"TRUNCATE t", "COPY t FROM STDIN", "CREATE TABLE t ()", "DROP TABLE t", "CALL p()", "DO $$ BEGIN END $$", "LOCK t",
			"EXECUTE s", "REFRESH MATERIALIZED VIEW v", "SET a = 1", "BEGIN", "COMMIT", "SAVEPOINT a", "ROLLBACK TO a", "nonsense",
			"SELECT 1 FOR UPDATE", "SELECT 1 FOR KEY SHARE", "select 1 for share of t", "TABLE t FOR NO KEY UPDATE",
			"WITH a AS (SELECT * FROM t FOR UPDATE SKIP LOCKED) SELECT * FROM a", "WITH a AS (SELECT 1 FOR /* ! */ UPDATE) TABLE a",
			"SELECT 1; DELETE FROM t", "SELECT ';'; DELETE FROM t", "/* x */ -- y\n DELETE FROM t", "(((DELETE FROM t)))", "; DELETE FROM t", "--\rDELETE FROM t",
			"/* a /* b */ SELECT 1 */ DELETE FROM t", "SELECT 1 -- x\n; DELETE FROM t", "SELECT $1; DELETE FROM t", "SELECT $a; DELETE FROM t",
			"SELECT a$$; DELETE FROM t; SELECT a$$", "SELECT $1a$ INTO $1a$", `SELECT '\'; DELETE FROM t; --'`,
			"SELECT E'a'\n'\\''; DELETE FROM t; SELECT '", "SELECT E'a' '\\'; DELETE FROM t; --'", "SELECT 1E'\\''; DELETE FROM t; --'",
			`SELECT E'\\'; DELETE FROM t; --'`, `SELECT xE'\'; DELETE FROM t; --'`, `SELECT E '\'; DELETE FROM t; --'`,
			`SELECT U&'\'; DELETE FROM t; --'`, `SELECT "\"; DELETE FROM t; --"`, "SELECT 1 AS a$$; DELETE FROM t; --$$",
			"SELECT * INTO t FROM s", "select 1into t", "WITH a AS (SELECT 1) SELECT * INTO t FROM a", "(SELECT 1 INTO t)", "SELECT 1. INTO t",
			"EXPLAIN ANALYZE SELECT 1", "explain analyse select 1", "EXPLAIN VERBOSE ANALYZE DELETE FROM t", "EXPLAIN (ANALYZE) DELETE FROM t",
			"EXPLAIN (COSTS off, analyze true) DELETE FROM t", `EXPLAIN ("analyze") DELETE FROM t`,
			"WITH a AS (DELETE FROM t RETURNING *) SELECT * FROM a", "WITH a AS (SELECT 1) INSERT INTO t TABLE a",
			"WITH a AS (SELECT substring(b FOR 2) FROM s) UPDATE t SET a = 1", "WITH a AS (SELECT 1) update t SET a = 1",
			"(WITH a AS (INSERT INTO t VALUES (1) RETURNING *) TABLE a)", "WITH a AS (SELECT 1) MERGE INTO t USING a ON true WHEN MATCHED THEN DELETE",
			"WITH RECURSIVE a AS (SELECT 1) CYCLE b SET c USING key UPDATE t SET d = 1",
			"SELECT 'a", `SELECT "a`, "SELECT E'a\\'", "SELECT $$ a", "SELECT $a$ a $b$", "SELECT 1 /* a", "/* a", "SELECT (1", "SELECT 1)",
			"SELECT 1; SELECT '", "SELECT (1; SELECT 2", "SELECT 1)(", "ſELECT 1", "\ufeffSELECT 1", "\x00SELECT 1", "SELECTED", "SELECT1",
		},
	}
	for want, queries := range cases {
		for _, query := range queries {
			if got := IsRead(query); got != want {
				t.Errorf("IsRead(%q) = %v", query, got)
			}
		}
	}
}

func TestIsSavepoint(t *testing.T) {
	t.Parallel()
	cases := map[bool][]string{
		true: {
			"SAVEPOINT a", "savepoint a;", "RELEASE a", "RELEASE SAVEPOINT a", "ROLLBACK TO a", "ROLLBACK TO SAVEPOINT a",
			"ROLLBACK WORK TO a", "ROLLBACK TRANSACTION TO SAVEPOINT a", "-- x\nSAVEPOINT a", "RELEASE a; SAVEPOINT a", `SAVEPOINT "a;b"`,
		},
		false: {
			"", ";", "SELECT 1", "ROLLBACK", "ROLLBACK WORK", "ROLLBACK; TO", "COMMIT", "SAVEPOINT a; DELETE FROM t", "SELECT 1; SAVEPOINT a",
			"ROLLBACK AND CHAIN", `SAVEPOINT "a`, "ROLLBACK PREPARED 'a'",
		},
	}
	for want, queries := range cases {
		for _, query := range queries {
			if got := IsSavepoint(query); got != want {
				t.Errorf("IsSavepoint(%q) = %v", query, got)
			}
		}
	}
}

func TestEndsTransaction(t *testing.T) {
	t.Parallel()
	cases := map[string][]string{
		"BEGIN":               {"BEGIN", "begin;", "BEGIN ISOLATION LEVEL SERIALIZABLE", "/* x */ Begin"},
		"START":               {"START TRANSACTION READ ONLY"},
		"COMMIT":              {"COMMIT", "COMMIT WORK", "COMMIT AND CHAIN", "COMMIT PREPARED 'a'", "SELECT 1; commit", ";;COMMIT"},
		"END":                 {"END", "END TRANSACTION", "SELECT E'a'\n'\\''; END; SELECT '"},
		"ABORT":               {"ABORT", "INSERT INTO t VALUES ('a;b'); ABORT"},
		"PREPARE TRANSACTION": {"PREPARE TRANSACTION 'a'", "prepare -- x\n transaction 'a'"},
		"ROLLBACK": {
			"ROLLBACK", "ROLLBACK;", "ROLLBACK WORK", "rollback transaction", "ROLLBACK AND CHAIN", "ROLLBACK PREPARED 'a'",
			"ROLLBACK TO a; ROLLBACK", "ROLLBACK; TO", `ROLLBACK "to"`,
		},
		"": {
			"", "SELECT 1", "SAVEPOINT a", "RELEASE a", "ROLLBACK TO a", "ROLLBACK WORK TO SAVEPOINT a", "rollback transaction to a",
			"PREPARE a AS SELECT 1", "PREPARE; TRANSACTION", "EXECUTE a", "SELECT 'x; COMMIT'", "SELECT $$; COMMIT; $$", "-- ; COMMIT",
			"SELECT commit FROM t", "SELECT CASE WHEN true THEN 1 END", "DO $$ BEGIN COMMIT; END $$", "/* ; */ SELECT 1 /* ; COMMIT */",
			`SELECT ";COMMIT"`, "DEALLOCATE a", "SET TRANSACTION READ ONLY", "committed", `SELECT E'\';COMMIT;'`,
		},
	}
	for want, queries := range cases {
		for _, query := range queries {
			if got, ok := EndsTransaction(query); got != want || ok != (want != "") {
				t.Errorf("EndsTransaction(%q) = %q, %v, want %q", query, got, ok, want)
			}
		}
	}
}

func TestWrittenTable(t *testing.T) {
	t.Parallel()
	cases := map[string][]string{
		"orders": {
			"INSERT INTO orders VALUES (1)", `insert into "orders" ("id") values (1)`, "UPDATE orders SET a = 1", "UPDATE ONLY orders SET a = 1",
			"DELETE FROM orders", "DELETE FROM ONLY orders", "MERGE INTO orders USING s ON true WHEN MATCHED THEN DELETE", "TRUNCATE orders",
			"TRUNCATE TABLE ONLY orders, other", "COPY orders (a) FROM STDIN", "/* x */ INSERT INTO orders VALUES (1)",
			"WITH a AS (DELETE FROM orders RETURNING *) INSERT INTO log TABLE a", "SELECT 1; UPDATE orders SET a = 1",
			"WITH a AS (SELECT * FROM s FOR UPDATE OF s) UPDATE orders SET a = 1", "EXPLAIN ANALYZE DELETE FROM orders",
			"BEGIN; DELETE FROM orders", "INSERT INTO orders",
		},
		"public.orders": {"INSERT INTO public.orders VALUES (1)", `UPDATE "public" . "orders" SET a = 1`},
		`Or"ders`:       {`DELETE FROM "Or""ders"`},
		"bestellungä":   {"DELETE FROM bestellungä"},
		"": {
			"", "SELECT 1", "CREATE TABLE orders ()", "CALL p()", "COPY (SELECT 1) TO STDOUT", "INSERT INTO ? VALUES (1)", "DELETE", "UPDATE",
			"SELECT 'DELETE FROM orders'", "WITH a AS (SELECT 1) TABLE a",
		},
	}
	for want, queries := range cases {
		for _, query := range queries {
			if got := WrittenTable(query); got != want {
				t.Errorf("WrittenTable(%q) = %q, want %q", query, got, want)
			}
		}
	}
}

// A long text takes milliseconds, whatever it tries: with a step per pair of bytes it would take a minute.
func TestTextIsReadInLinearTime(t *testing.T) {
	t.Parallel()
	for _, unit := range []string{"(", ")", "$", "$a", "$a$", "'", `"`, "/*", "*/", "-", "--\n", "E'a'\n", "E'a' ", "E", ";", "\\", "FOR ", "1", " ", "(;"} {
		query := "SELECT " + strings.Repeat(unit, 1<<18/len(unit))
		start := time.Now()
		IsRead(query)
		IsSavepoint(query)
		EndsTransaction(query)
		WrittenTable(query)
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("256 KiB of %q took %v", unit, took)
		}
	}
}

func FuzzText(f *testing.F) {
	for _, seed := range []string{
		"SELECT 1", "INSERT INTO t VALUES ('a''b')", "SELECT E'a' -- x\n'\\''", "WITH a AS (SELECT 1 FOR NO KEY UPDATE) TABLE a",
		"SELECT $a$ ; $a$, $1", "/* /* */ */ (SELECT 1)", "ROLLBACK TO a; COMMIT", `EXPLAIN ("analyze") DELETE FROM "a"."b"`, "@x ? -- ;",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, query string) {
		read, savepoint := IsRead(query), IsSavepoint(query)
		_, ends := EndsTransaction(query)
		WrittenTable(query)

		if read && savepoint || (read || savepoint) && ends {
			t.Errorf("%q: read %v, savepoint %v, ends its transaction %v", query, read, savepoint, ends)
		}
		l := lexer{text: query}
		for l.next().kind != end {
			if l.last.text == "" {
				t.Fatalf("%q: an empty token at %d", query, l.pos)
			}
		}
		if l.broken {
			return
		}
		// What is whole on its own can hide nothing that follows it, and is hidden by nothing that precedes it.
		const apart = "\n;\n"
		if IsRead(query+apart+"DELETE FROM t") || IsRead("DELETE FROM t"+apart+query) {
			t.Errorf("%q hides a DELETE", query)
		}
		if _, ok := EndsTransaction(query + apart + "COMMIT"); !ok {
			t.Errorf("%q hides a COMMIT", query)
		}
		if got := IsRead("SELECT 1" + apart + query + apart + "SELECT 1"); got != read {
			t.Errorf("%q: a read is %v, between two others %v", query, read, got)
		}
		if got := IsRead("/* ' */ " + query + apart + " -- '"); got != read {
			t.Errorf("%q: a read is %v, between comments %v", query, read, got)
		}
	})
}

func BenchmarkIsRead(b *testing.B) {
	query := `WITH due AS (SELECT "id", "state" FROM "orders" WHERE "customer" = ? AND "state" = 'open') SELECT * FROM due`
	b.ReportAllocs()
	b.SetBytes(int64(len(query)))
	for b.Loop() {
		if !IsRead(query) {
			b.Fatal("not a read")
		}
	}
}
