package gormtest

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

// tap is a driver between database/sql and pgx. Every request of its pool passes here, whoever makes it: GORM, code with a
// bare *sql.DB, or the library. It is where a request can be seen, and where a connection can be broken.
type tap struct {
	statements pgsql.Statements // the library's, by which a claim is known
	watch      func(request)    // is told each request before the server sees it; may be nil

	mu      sync.Mutex
	conns   int
	won     int // how many claims won their key: how often a handler ran
	open    map[*tappedConn]struct{}
	holding map[*tappedConn]eventKey // the connections on which a handler is at work, each with the key it holds
	cut     *cut                     // where the next connection breaks, if at all
}

func newTap(watch func(request)) *tap {
	return &tap{watch: watch, open: make(map[*tappedConn]struct{}), holding: make(map[*tappedConn]eventKey)}
}

// eventKey is a key as a claim names it.
type eventKey struct{ source, id string }

func (k eventKey) String() string { return fmt.Sprintf("%s %s", k.source, k.id) }

// request is a call that has reached the driver.
type request struct {
	conn   *tappedConn
	holds  bool       // its connection holds a key: it is a handler's own
	text   string     // BEGIN, COMMIT and ROLLBACK for what database/sql has calls of its own for
	caller string     // the line that asked for it, outside of GORM and the library
	others []eventKey // what is held on other connections meanwhile
}

// writes reports whether the request changes or locks something, as far as its text tells.
func (r request) writes() bool {
	switch r.text {
	case begin, commit, rollback:
		return false
	}
	return !pgsql.IsRead(r.text) && !pgsql.IsSavepoint(r.text)
}

// What a transaction begins and ends with, which database/sql has calls for.
const (
	begin    = "BEGIN"
	commit   = "COMMIT"
	rollback = "ROLLBACK"
)

// tapped returns a handle like db on a pool of its own, whose requests pass the tap. Callbacks, plugins, logger and
// everything else are db's. Its connections are pgx's own, also where db's pipeline: each request is then one that can be
// looked at, and a connection can break between any two of them.
func tapped(ctx context.Context, db *gorm.DB, t *tap) (*gorm.DB, *sql.DB, error) {
	config, err := connConfig(ctx, db)
	if err != nil {
		return nil, nil, err
	}
	pool := sql.OpenDB(tappedConnector{stdlib.GetConnector(*config), t})
	session := db.Session(&gorm.Session{NewDB: true, Context: ctx})
	// The pool stands in both: the Config's says which database it is, the Statement's is what statements run on.
	session.ConnPool, session.Statement.ConnPool = pool, pool
	return session, pool, nil
}

// connConfig asks a live connection how it was made. So it doesn't matter how the handle was opened.
func connConfig(ctx context.Context, db *gorm.DB) (*pgx.ConnConfig, error) {
	pool, err := db.DB()
	if err != nil {
		return nil, err
	}
	conn, err := pool.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("the handle has no connection to the database: %w", oneLine(err))
	}
	defer conn.Close()
	var config *pgx.ConnConfig
	err = conn.Raw(func(driverConn any) error {
		c := pgxConn(driverConn)
		if c == nil {
			return fmt.Errorf("the kit works on the driver pgx alone, and the handle's connection is a %T: leave the DriverName of "+
				"gorm.io/driver/postgres empty, or open a handle for the test by gormtest.Open", driverConn)
		}
		config = c.Config()
		return nil
	})
	return config, err
}

// pgxConn is the connection of pgx's that a driver's is, or nil.
func pgxConn(driverConn any) *pgx.Conn {
	if c, ok := driverConn.(interface{ Conn() *pgx.Conn }); ok {
		return c.Conn()
	}
	return nil
}

// arrive notes what a request says about who holds a key, and tells whoever watches.
func (t *tap) arrive(c *tappedConn, text string) request {
	if t.endsScope(text) {
		t.release(c)
	}
	others, holds := t.held(c)
	r := request{conn: c, holds: holds, text: text, caller: caller(), others: others}
	if t.watch != nil {
		t.watch(r)
	}
	return r
}

func (t *tap) claims(text string) bool {
	return text == t.statements.Claim || text == t.statements.ClaimUnlocked
}

// endsScope reports whether a request ends what a handler works in: the transaction, or the outermost joined call's
// savepoint.
func (t *tap) endsScope(text string) bool {
	switch text {
	case commit, rollback, pgsql.ReleaseSavepoint(1), pgsql.RollbackToSavepoint(1):
		return true
	}
	return false
}

func (t *tap) hold(c *tappedConn, key eventKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.won++
	if _, inside := t.holding[c]; !inside { // a joined call inside a handler is part of the handler's work
		t.holding[c] = key
	}
}

func (t *tap) forget(c *tappedConn) {
	t.release(c)
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, c)
}

// breakAll breaks the connections that are still in use, whoever waits on them. pgx then asks the server to cancel what it is
// carrying out for them, so that no session goes on with locks in hand.
func (t *tap) breakAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.open {
		c.breakLink()
	}
}

// claimsWon is how many claims have won their key: how often handlers ran.
func (t *tap) claimsWon() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.won
}

func (t *tap) release(c *tappedConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.holding, c)
}

// held tells the keys that are held on connections other than c, or that c holds one itself: then it is that handler's own
// work, whoever else is at work.
func (t *tap) held(c *tappedConn) (elsewhere []eventKey, here bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, here = t.holding[c]; here {
		return nil, true
	}
	for _, key := range t.holding {
		elsewhere = append(elsewhere, key)
	}
	return elsewhere, false
}

// keysHeld are the keys that handlers hold at this moment.
func (t *tap) keysHeld() []eventKey {
	keys, _ := t.held(nil)
	return keys
}

// ours reports whether a statement is the library's own, about its table.
func (t *tap) ours(text string) bool {
	return t.claims(text) || text == t.statements.Lookup || text == t.statements.Complete
}

// shorten makes a statement one line that fits into a message.
func shorten(text string) string {
	const limit = 160
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > limit {
		return strings.ToValidUTF8(text[:limit], "") + " …"
	}
	return text
}
