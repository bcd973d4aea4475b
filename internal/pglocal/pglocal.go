// Package pglocal starts a PostgreSQL for tests and demos: from the programs that are installed on the machine, or else
// from such as it downloads once and keeps in the user's cache.
//
// The server listens on a free port of the loopback address only, with a password that nobody but the caller has, and
// forgets durability for speed. Its files are in a folder of its own under the temporary folder, or in memory. It is
// gone, and they with it, when [Server.Stop] returns or when the process that started it ends in whatever way: os.Exit,
// a panic, an interrupt, SIGKILL.
package pglocal

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"time"
)

const remedy = "install PostgreSQL 12 or newer " +
	"(apt install postgresql, dnf install postgresql-server, apk add postgresql, brew install postgresql), " +
	"or give the DSN of a running server"

// ErrNoPrograms is wrapped by the errors of [Start] when it has no PostgreSQL server programs. They are whole sentences but
// for their end, so that a caller can add how it takes a DSN: "…, or give the DSN of a running server" + " with --dsn".
var ErrNoPrograms = errors.New("no PostgreSQL server programs were found: " + remedy)

// ErrUnsupported is returned by [Start] on systems where it cannot start a server. It ends as [ErrNoPrograms] does.
var ErrUnsupported = errors.New("PostgreSQL cannot be started from here on this system: " +
	"use WSL on Windows, or give the DSN of a running server")

// noProgramsError is ErrNoPrograms with what was tried.
type noProgramsError struct{ tried error }

func (e *noProgramsError) Error() string {
	return fmt.Sprintf("no PostgreSQL server programs were found, and %v: %s", e.tried, remedy)
}

func (e *noProgramsError) Unwrap() []error { return []error{ErrNoPrograms, e.tried} }

// Options are the choices of [Start]. The zero value is ready for use.
type Options struct {
	// Programs is the folder that holds the programs postgres and initdb.
	// If empty, Start looks for one, and downloads the programs if there is none.
	Programs string

	// Settings are server settings that add to or replace those that Start chooses,
	// such as "fsync": "on" for a benchmark.
	Settings map[string]string

	// Cache is the folder that keeps downloaded programs for the next time. Defaults to the value of the environment
	// variable IDEMPOTENCY_CACHE_DIR, or to the folder idempotency in the user's cache folder.
	Cache string

	// Repository is the Maven repository to download from, such as a company's mirror.
	// "off" downloads nothing. Defaults to the value of the environment variable IDEMPOTENCY_POSTGRES_REPOSITORY, or to
	// Maven Central.
	Repository string

	// Progress, if not nil, is told how a download gets on, several times a second, by one goroutine at a time and
	// never after Start has returned. If there is nothing to download, it is not called.
	Progress func(Progress)

	usual  []string // instead of usualFolders, for tests
	limits limits   // instead of defaultLimits, for tests
}

// limits bound a download.
type limits struct {
	whole   time.Duration // all of it, with the time that another process's takes
	connect time.Duration // until the repository begins to answer
	stall   time.Duration // between two pieces
}

// Server is a running PostgreSQL.
type Server struct {
	folder   string // what belongs to it but its files
	data     string // its files
	port     int
	password string
	stop     func() error
}

// DSN returns the URL of a database on the server. It contains the password.
// The database "postgres" always exists; its user of the same name may do everything.
func (s *Server) DSN(database string) string {
	dsn := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(superuser, s.password),
		Host:     net.JoinHostPort(loopback, strconv.Itoa(s.port)),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return dsn.String()
}

// Stop ends the server, whoever is connected to it, and removes its files. Later calls return what the first one did.
func (s *Server) Stop() error { return s.stop() }

const (
	loopback  = "127.0.0.1"
	superuser = "postgres"
)
