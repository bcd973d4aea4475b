package faultproxy_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/gorm-idempotency/idempotency/gormtest"
	"github.com/gorm-idempotency/idempotency/internal/faultproxy"
)

// connect gives a proxy, a connection through it, and one that goes around it.
func connect(t *testing.T) (*faultproxy.Proxy, *pgx.Conn, *pgx.Conn) {
	t.Helper()
	config, err := pgx.ParseConfig(gormtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := faultproxy.Start(pgconn.NetworkAddress(config.Host, config.Port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	direct := dial(t, config)
	if _, err := direct.Exec(t.Context(), "CREATE TABLE marks (n int)"); err != nil {
		t.Fatal(err)
	}
	through := config.Copy()
	through.Host, through.Port, through.TLSConfig, through.Fallbacks = "127.0.0.1", proxy.Port(), nil, nil
	return proxy, dial(t, through), direct
}

func dial(t *testing.T, config *pgx.ConnConfig) *pgx.Conn {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func marks(t *testing.T, conn *pgx.Conn) (n int) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM marks").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestRequestsAreForwardedAndShownToThePlan(t *testing.T) {
	t.Parallel()
	proxy, through, direct := connect(t)
	var mu sync.Mutex
	var seen []string
	proxy.Follow(func(sql string) faultproxy.Fault {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, sql)
		return faultproxy.None
	})
	const insert = "INSERT INTO marks VALUES ($1)"
	for n := range 2 {
		if _, err := through.Exec(t.Context(), insert, n); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := through.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	var long string
	if err := through.QueryRow(t.Context(), "SELECT repeat('x', 1000000)").Scan(&long); err != nil || len(long) != 1000000 {
		t.Errorf("a long answer: %d bytes, %v", len(long), err)
	}
	if n := marks(t, direct); n != 2 {
		t.Errorf("%d rows, want 2", n)
	}
	mu.Lock()
	defer mu.Unlock()
	// The insert is prepared once, and executed twice by its name.
	if want := []string{insert, insert, insert, "COMMIT"}; !slices.Equal(seen[:min(4, len(seen))], want) {
		t.Errorf("the plan saw %q, want %q first", seen, want)
	}
}

func TestCut(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault faultproxy.Fault
		mode  pgx.QueryExecMode
		want  int
	}{
		"before a simple query": {faultproxy.CutBefore, pgx.QueryExecModeSimpleProtocol, 0},
		"after a simple query":  {faultproxy.CutAfter, pgx.QueryExecModeSimpleProtocol, 1},
		"before an extended":    {faultproxy.CutBefore, pgx.QueryExecModeExec, 0},
		"after an extended":     {faultproxy.CutAfter, pgx.QueryExecModeExec, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy, through, direct := connect(t)
			proxy.Follow(func(sql string) faultproxy.Fault {
				if strings.HasPrefix(sql, "INSERT") {
					return test.fault
				}
				return faultproxy.None
			})
			_, err := through.Exec(t.Context(), "INSERT INTO marks VALUES ($1)", test.mode, 1)
			if err == nil {
				t.Error("the client got an answer")
			}
			if n := marks(t, direct); n != test.want {
				t.Errorf("%d rows, want %d", n, test.want)
			}
		})
	}
}

func TestPlanDelays(t *testing.T) {
	t.Parallel()
	proxy, through, direct := connect(t)
	reached, release := make(chan struct{}), make(chan struct{})
	proxy.Follow(func(string) faultproxy.Fault {
		close(reached)
		<-release
		return faultproxy.None
	})
	done := make(chan error, 1)
	go func() {
		_, err := through.Exec(t.Context(), "INSERT INTO marks VALUES (1)", pgx.QueryExecModeSimpleProtocol)
		done <- err
	}()
	<-reached
	if n := marks(t, direct); n != 0 {
		t.Errorf("%d rows before the request was let through", n)
	}
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := marks(t, direct); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
}

func TestCloseBreaksLinks(t *testing.T) {
	t.Parallel()
	proxy, through, _ := connect(t)
	if err := proxy.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := through.Exec(ctx, "SELECT 1"); err == nil || ctx.Err() != nil {
		t.Errorf("a query through a closed proxy: %v", err)
	}
}
