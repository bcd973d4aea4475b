package gormtest

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestDSNOfAnotherDatabase(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ dsn, want string }{
		"URL": {
			"postgres://u:p%40ss@h:5433/main?sslmode=disable&application_name=a%20b",
			"postgres://u:p%40ss@h:5433/other?sslmode=disable&application_name=a%20b",
		},
		"URL without a database":       {"postgresql://u@h", "postgresql://u@h/other"},
		"URL with a socket's folder":   {"postgres:///main?host=/run/postgresql", "postgres:///other?host=/run/postgresql"},
		"URL with dbname in its query": {"postgres://u@h/?dbname=main&sslmode=disable", "postgres://u@h/other?sslmode=disable"},
		"URL with several hosts":       {"postgres://u@h1:1,h2:2/main", "postgres://u@h1:1,h2:2/other"},
		"keywords":                     {"host=h user=u dbname=main password='p w'", "host=h user=u dbname=main password='p w' dbname=other"},
		"keywords without a database":  {" host=h\tuser=u\n", "host=h\tuser=u dbname=other"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			base, err := parseDSN(test.dsn)
			if err != nil {
				t.Fatal(err)
			}
			got := base.with("other")
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			requireSameBut(t, got, test.dsn, "other")
		})
	}
}

// requireSameBut checks that a driver sees the same server, role and parameters, and the other database.
func requireSameBut(t *testing.T, got, original, database string) {
	t.Helper()
	changed, err := pgx.ParseConfig(got)
	if err != nil {
		t.Fatal(err)
	}
	before, err := pgx.ParseConfig(original)
	if err != nil {
		t.Fatal(err)
	}
	if changed.Database != database {
		t.Errorf("the database is %q", changed.Database)
	}
	if changed.Host != before.Host || changed.Port != before.Port || changed.User != before.User ||
		changed.Password != before.Password || len(changed.Fallbacks) != len(before.Fallbacks) ||
		changed.RuntimeParams["application_name"] != before.RuntimeParams["application_name"] {
		t.Errorf("%q is another server than %q", got, original)
	}
}
