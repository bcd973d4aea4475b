// Package pglocal starts a PostgreSQL for tests and demos from the programs that are installed on the machine.
//
// The server lives in a folder of its own under the temporary folder, listens on a free port of the loopback address
// only, and forgets durability for speed. It is gone, and its folder with it, when [Server.Stop] returns or when the
// process that started it ends in whatever way: os.Exit, a panic, an interrupt, SIGKILL.
//
// Whoever may connect to the loopback address may use the server: there is no password. It is no place for secrets.
package pglocal

import (
	"errors"
	"net"
	"net/url"
	"strconv"
)

// ErrNoPrograms is returned by [Start] when the machine has no PostgreSQL server programs. It is a whole sentence but for
// its end, so that a caller can add how it takes a DSN: "…, or give the DSN of a running server" + " with --dsn".
var ErrNoPrograms = errors.New("no PostgreSQL server programs were found: install PostgreSQL 12 or newer " +
	"(apt install postgresql, dnf install postgresql-server, apk add postgresql, brew install postgresql), " +
	"or give the DSN of a running server")

// ErrUnsupported is returned by [Start] on systems where it cannot start a server. It ends as [ErrNoPrograms] does.
var ErrUnsupported = errors.New("PostgreSQL cannot be started from here on this system: " +
	"use WSL on Windows, or give the DSN of a running server")

// Options are the choices of [Start]. The zero value is ready for use.
type Options struct {
	// Programs is the folder that holds the programs postgres and initdb.
	// If empty, Start looks for one.
	Programs string

	// Settings are server settings that add to or replace those that Start chooses,
	// such as "fsync": "on" for a benchmark.
	Settings map[string]string
}

// Server is a running PostgreSQL.
type Server struct {
	folder string // everything the server writes
	port   int
	stop   func() error
}

// DSN returns the URL of a database on the server.
// The database "postgres" always exists; its user of the same name may do everything.
func (s *Server) DSN(database string) string {
	dsn := url.URL{
		Scheme:   "postgres",
		User:     url.User(superuser),
		Host:     net.JoinHostPort(loopback, strconv.Itoa(s.port)),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return dsn.String()
}

// Stop ends the server, whoever is connected to it, and removes its folder. Later calls return what the first one did.
func (s *Server) Stop() error { return s.stop() }

const (
	loopback  = "127.0.0.1"
	superuser = "postgres"
)
