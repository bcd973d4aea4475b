package compat_test

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
	"github.com/gorm-idempotency/idempotency/internal/conformance"
	"github.com/gorm-idempotency/idempotency/migrations"
)

// The groups of the page. Whether PgBouncer follows prepared statements is the one thing that matters.
const (
	bouncerGroup    = "PgBouncer before 1.21, transaction mode"
	newBouncerGroup = "PgBouncer with max_prepared_statements, transaction mode"
)

// bouncerProgram is the environment's choice, or Debian's.
func bouncerProgram() string {
	if program := os.Getenv("PGBOUNCER"); program != "" {
		return program
	}
	if program, err := exec.LookPath("pgbouncer"); err == nil {
		return program
	}
	return "/usr/sbin/pgbouncer"
}

// keepsPrepared reports whether this PgBouncer follows prepared statements from one server connection to the next, as 1.21 and
// newer do.
var keepsPrepared = sync.OnceValues(func() (bool, error) {
	output, err := exec.Command(bouncerProgram(), "--version").Output()
	if err != nil {
		return false, fmt.Errorf("these tests need PgBouncer (apt install pgbouncer), or PGBOUNCER to name one: %w", err)
	}
	version := regexp.MustCompile(`PgBouncer (\d+)\.(\d+)`).FindStringSubmatch(string(output))
	if version == nil {
		return false, fmt.Errorf("%s does not say which version it is: %q", bouncerProgram(), output)
	}
	major, _ := strconv.Atoi(version[1])
	minor, _ := strconv.Atoi(version[2])
	return major > 1 || minor >= 21, nil
})

// startBouncer starts a PgBouncer in front of the server of a DSN, with so many connections to the server, and returns the
// DSN of the same database through it. It ends with the test, or with the process.
func startBouncer(t testing.TB, dsn, mode string, servers int, settings ...string) string {
	t.Helper()
	target, err := pgx.ParseConfig(dsn)
	requireNil(t, err)
	// Not under t.TempDir, which the account that runs PgBouncer for root cannot reach.
	folder, err := os.MkdirTemp("", "pgbouncer")
	requireNil(t, err)
	t.Cleanup(func() { requireNil(t, os.RemoveAll(folder)) })
	requireNil(t, os.Chmod(folder, 0o755))
	port := freePort(t)
	server := fmt.Sprintf("* = host=%s port=%d user=%s", target.Host, target.Port, target.User)
	if target.Password != "" {
		server += " password='" + strings.ReplaceAll(target.Password, "'", "''") + "'"
	}
	lines := append([]string{
		"[databases]", server,
		"[pgbouncer]", "listen_addr = 127.0.0.1", fmt.Sprintf("listen_port = %d", port), "unix_socket_dir =",
		"auth_type = any", "pool_mode = " + mode, fmt.Sprintf("default_pool_size = %d", servers), "max_client_conn = 500",
		"server_round_robin = 1", // so that a client meets all of its servers
		"ignore_startup_parameters = extra_float_digits",
	}, settings...)
	config := filepath.Join(folder, "pgbouncer.ini")
	requireNil(t, os.WriteFile(config, []byte(strings.Join(lines, "\n")+"\n"), 0o644))

	// The shell ends PgBouncer when this process closes the pipe, in whatever way it does.
	command := exec.Command("/bin/sh", "-c", `"$0" "$1" & read _; kill -9 $!; wait`, bouncerProgram(), config)
	if os.Getuid() == 0 { // PgBouncer refuses to be run by root
		runAsNobody(command)
	}
	var output strings.Builder
	command.Stdout, command.Stderr = &output, &output
	hold, err := command.StdinPipe()
	requireNil(t, err)
	requireNil(t, command.Start())
	t.Cleanup(func() {
		requireNil(t, hold.Close())
		_ = command.Wait()
		if t.Failed() {
			t.Logf("PgBouncer: %s", output.String())
		}
	})
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	awaitListener(t, address)
	through := url.URL{
		Scheme: "postgres", User: url.User(target.User), Host: address, Path: "/" + target.Database, RawQuery: "sslmode=disable",
	}
	return through.String()
}

func freePort(t testing.TB) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	requireNil(t, err)
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

func awaitListener(t testing.TB, address string) {
	t.Helper()
	for deadline := time.Now().Add(never); ; time.Sleep(2 * time.Millisecond) {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("PgBouncer does not listen: %v", err)
		}
	}
}

// throughBouncer is what the documentation says of a driver's mode behind PgBouncer in transaction mode, where two
// transactions of a client may run on two connections to the server.
type throughBouncer struct {
	driver   pgDriver
	prepared bool
	// names: it names prepared statements on its server's connection, and the next transaction finds another one.
	names bool
	// splits: it sends one statement outside of a transaction in two steps, which may meet two connections.
	splits bool
}

func bouncerCells() (cells []throughBouncer) {
	for _, d := range drivers {
		for _, prepared := range []bool{false, true} {
			c := throughBouncer{driver: d, prepared: prepared, names: prepared || strings.Contains(d.name, "cache_statement")}
			c.splits = !c.names && (strings.Contains(d.name, "describe") || d.name == "lib/pq")
			cells = append(cells, c)
		}
	}
	return cells
}

func (c throughBouncer) name() string {
	if c.prepared {
		return c.driver.name + ", PrepareStmt"
	}
	return c.driver.name
}

// TestPgBouncer sends 20 clients over 2 connections to the server, in each mode of each driver (case C51). The library needs
// nothing of a session. A driver that does is refused by the server, and no delivery takes a refusal for an answer.
func TestPgBouncer(t *testing.T) {
	t.Parallel()
	follows, err := keepsPrepared()
	requireNil(t, err)
	for _, cell := range bouncerCells() {
		t.Run(cell.name(), func(t *testing.T) {
			t.Parallel()
			direct := gormtest.DSN(t)
			admin := connect(t, direct)
			execute(t, admin, createOrders)
			var settings []string
			group := bouncerGroup
			if follows {
				group = newBouncerGroup
				settings = []string{"max_prepared_statements = 100"}
			}
			dsn := startBouncer(t, direct, "transaction", 2, settings...)
			db := open(t, cell.driver.dialector(dsn), gorm.Config{PrepareStmt: cell.prepared})
			requireNil(t, db.Use(idempotency.New(idempotency.Config{})))
			pool, err := db.DB()
			requireNil(t, err)
			pool.SetMaxOpenConns(20)
			pool.SetMaxIdleConns(20)
			refused := storm(t, cell, db)
			switch {
			case refused == 0:
				conformance.Note(t, group, cell.name(), "works")
			case !cell.names || follows:
				t.Errorf("%d deliveries were refused", refused)
			default:
				conformance.Note(t, group, cell.name(),
					"refused by the server (26000, 42P05): a statement was prepared on another connection")
			}
			if cell.names && !follows && refused == 0 {
				t.Error("nothing was refused: the documentation says that it is")
			}
			requireQuery(t, admin, "0", "SELECT count(*) FROM (SELECT event FROM orders GROUP BY event HAVING count(*) > 1) AS t")
			requireQuery(t, admin, "true", `SELECT NOT EXISTS (SELECT FROM orders FULL JOIN idempotency_keys
				ON orders.event COLLATE "C" = event_id WHERE event IS NULL OR event_id IS NULL)`)
			if refused == 0 {
				requireQuery(t, admin, "40", "SELECT count(*) FROM orders")
			}
		})
	}
}

// storm delivers 40 events four times each, by 20 clients, and counts the deliveries that were refused.
func storm(t *testing.T, cell throughBouncer, db *gorm.DB) (refused int) {
	t.Helper()
	const events, clients = 40, 20
	var mu sync.Mutex
	var all sync.WaitGroup
	for client := range clients {
		all.Go(func() {
			for n := client; n < 4*events; n += clients {
				event := fmt.Sprintf("evt%d", n%events)
				_, err := idempotency.Do(db, "s", event, nil, placeOrder(event), idempotency.WithWait(never))
				if err == nil {
					continue
				}
				if state := cell.driver.state(err); state != "26000" && state != "42P05" {
					t.Errorf("%s: %v", event, err)
				}
				requireNoVerdict(t, err)
				mu.Lock()
				refused++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return refused
}

// TestPgBouncerConformance runs the whole suite behind PgBouncer, in the modes that the documentation recommends there.
func TestPgBouncerConformance(t *testing.T) {
	t.Parallel()
	group := bouncerGroup
	follows, err := keepsPrepared()
	requireNil(t, err)
	if follows {
		group = newBouncerGroup
	}
	for _, d := range []pgDriver{drivers[3], drivers[4], drivers[6]} {
		cell := d.cell(group, d.name+", the whole suite")
		cell.Unnamed = !follows
		cell.Setup = func(t *testing.T, dsn string) string {
			t.Helper()
			return startBouncer(t, dsn, "transaction", 4)
		}
		run(t, cell)
	}
}

// What the library does outside of a delivery keeps together too: a driver that sends a statement in two steps could get the
// answer to somebody else's, if the second met another connection.
func TestLookupAndForgetThroughPgBouncer(t *testing.T) {
	t.Parallel()
	for _, cell := range bouncerCells() {
		if cell.names {
			continue
		}
		t.Run(cell.name(), func(t *testing.T) {
			t.Parallel()
			direct := gormtest.DSN(t)
			admin := connect(t, direct)
			execute(t, admin, createOrders)
			db := open(t, cell.driver.dialector(startBouncer(t, direct, "transaction", 2)), gorm.Config{})
			requireNil(t, db.Use(idempotency.New(idempotency.Config{})))
			var clients sync.WaitGroup
			for n := range 20 {
				clients.Go(func() {
					event := fmt.Sprintf("evt%d", n)
					if _, err := idempotency.Do(db, "s", event, nil, placeOrder(event)); err != nil {
						t.Error(err)
					}
					for range 10 {
						key, err := idempotency.Lookup(t.Context(), db, "s", event)
						if err != nil || string(key.ResponseBody) != `"`+event+`"` {
							t.Errorf("lookup of %s: %+v, %v", event, key, err)
						}
						if err := idempotency.CheckSchema(t.Context(), db); err != nil {
							t.Errorf("check of the schema: %v", err)
						}
					}
					if n%2 > 0 {
						return
					}
					if err := idempotency.Forget(t.Context(), db, "s", event); err != nil {
						t.Errorf("forget %s: %v", event, err)
					}
				})
			}
			clients.Wait()
			requireQuery(t, admin, "10", "SELECT count(*) FROM idempotency_keys")
			conformance.Note(t, bouncerGroup, cell.name()+": Lookup, Forget and CheckSchema", "work")
		})
	}
}

// In statement mode there are no transactions. PgBouncer says so at the first BEGIN.
func TestPgBouncerStatementModeIsRefused(t *testing.T) {
	t.Parallel()
	for _, d := range []pgDriver{drivers[3], drivers[4], drivers[5], drivers[6]} {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			direct := gormtest.DSN(t)
			db := open(t, d.dialector(startBouncer(t, direct, "statement", 2)), gorm.Config{})
			requireNil(t, db.Use(idempotency.New(idempotency.Config{})))
			for range 2 {
				_, err := idempotency.Do(db, "s", "evt", nil, unwanted(t), idempotency.WithWait(0))
				requireNoVerdict(t, err)
				// PgBouncer hangs up as well, and lib/pq then tells no more than that.
				reason := "transaction blocks not allowed in statement pooling mode"
				if d.libpq {
					reason = "driver: bad connection"
				}
				if !strings.HasPrefix(err.Error(), "idempotency: begin: ") || !strings.Contains(err.Error(), reason) {
					t.Errorf("error %v", err)
				}
				conformance.Note(t, "Refused", "PgBouncer in statement mode, "+d.name, "the first call fails at BEGIN: "+reason)
			}
			requireQuery(t, connect(t, direct), "0", "SELECT count(*) FROM idempotency_keys")
		})
	}
}

// Several processes migrate at once, direct and through PgBouncer (case C63, with its own goose table in each).
func TestMigrationsThroughPgBouncer(t *testing.T) {
	t.Parallel()
	direct := gormtest.DSN(t)
	admin := connect(t, direct)
	execute(t, admin, "DROP TABLE idempotency_keys", "DROP TABLE IF EXISTS idempotency_goose_version")
	pools := make([]*sql.DB, 6)
	through := startBouncer(t, direct, "transaction", 4)
	for i := range pools {
		pools[i] = connect(t, []string{direct, with(through, "default_query_exec_mode=exec")}[i%2])
	}
	var all sync.WaitGroup
	for _, pool := range pools {
		all.Go(func() {
			if err := migrations.Up(context.Background(), pool); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	requireNil(t, migrations.Validate(context.Background(), admin))
	requireQuery(t, admin, "0", "SELECT count(*) FROM (SELECT version_id FROM idempotency_goose_version GROUP BY version_id HAVING count(*) > 1) AS t")
	conformance.Note(t, "Beside", "migrations at the same time, direct and through PgBouncer", "work: each version once")
}
