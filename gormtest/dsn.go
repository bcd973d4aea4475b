package gormtest

import (
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// connectTimeout is for servers that don't answer, where the DSN names no timeout of its own.
const connectTimeout = 5 * time.Second

// baseDSN is a DSN of which databases on the same server can be derived.
type baseDSN struct {
	text   string
	url    *url.URL // nil: keywords and values
	config *pgx.ConnConfig
}

// parseDSN reads a DSN as pgx does, environment variables included.
//
// Its error says nothing of the cause: with a password that should have been escaped, the parser's message may contain a
// part of it.
func parseDSN(text string) (*baseDSN, error) {
	errInvalid := errors.New("IDEMPOTENCY_TEST_DSN is neither a URL, postgres://user:password@host:5432/database with " +
		"special characters percent-encoded, nor keywords and values, host=… user=… password=…")
	text = strings.TrimSpace(text)
	config, err := pgx.ParseConfig(text)
	if err != nil {
		return nil, errInvalid
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = connectTimeout
	}
	base := &baseDSN{text: text, config: config}
	if strings.HasPrefix(text, "postgres://") || strings.HasPrefix(text, "postgresql://") {
		if base.url, err = url.Parse(text); err != nil {
			return nil, errInvalid
		}
	}
	return base, nil
}

// with returns the DSN of another database on the server. Names here need no quoting.
func (b *baseDSN) with(database string) string {
	if b.url == nil {
		return b.text + " dbname=" + database // the last one of a keyword wins
	}
	changed := *b.url
	changed.Path, changed.RawPath = "/"+database, ""
	changed.RawQuery = withoutDatabase(changed.RawQuery)
	return changed.String()
}

// withoutDatabase removes what would take precedence over a URL's path. The rest stays as it is written: encoding it anew
// would turn "%20" into "+", which libpq doesn't read as a space.
func withoutDatabase(query string) string {
	var kept []string
	for pair := range strings.SplitSeq(query, "&") {
		name, _, _ := strings.Cut(pair, "=")
		if name != "dbname" && name != "database" {
			kept = append(kept, pair)
		}
	}
	return strings.Join(kept, "&")
}

// configFor returns how to connect to a database on the server.
func (b *baseDSN) configFor(database string) *pgx.ConnConfig {
	config := b.config.Copy()
	config.Database = database
	return config
}
