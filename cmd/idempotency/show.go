package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

func newShow() *cobra.Command {
	var d database
	var r retention
	var payload string
	var asJSON bool
	command := &cobra.Command{
		Use:   "show SOURCE ID",
		Short: "Show everything that is known about one key: what was answered, and who holds it",
		Long: `Show everything that is known about one key: what was answered, and who holds it.

A key that a delivery has claimed and not committed is not there yet for anybody
else; which backend holds it is found by the key's advisory lock.

With --body it says whether that payload would match the first one, under the
digest that the row was written with: the SHA-256 sum of the bytes, or of their
canonical JSON. Any other digest is the application's own, and unknown here.

The exit status is 0 if there is such a key or somebody holds it, 1 if not, and
2 if the payload does not match.`,
		Example: `  idempotency show stripe evt_1Nv0FGQ9RKHgCVdK --dsn postgres://user@localhost:5432/shop

  # would this body be refused as a mismatch?
  idempotency show stripe evt_1Nv0FGQ9RKHgCVdK --body ./event.json

  # and when will it be swept?
  idempotency show stripe evt_1Nv0FGQ9RKHgCVdK --retention 30d

  # for a machine
  idempotency show stripe evt_1Nv0FGQ9RKHgCVdK --json | jq .answer.status`,
		Args: arguments("SOURCE", "ID"),
		RunE: func(command *cobra.Command, args []string) error {
			body, err := readPayload(command, payload)
			if err != nil {
				return err
			}
			shown, err := d.show(command.Context(), command.ErrOrStderr(), r, args[0], args[1])
			if err != nil {
				return err
			}
			if body != nil {
				if err := shown.compare(body); err != nil {
					return err
				}
			}
			if asJSON {
				err = printJSON(command.OutOrStdout(), shown)
			} else {
				_, err = io.WriteString(command.OutOrStdout(), shown.text())
			}
			if err == nil && shown.PayloadMatches != nil && !*shown.PayloadMatches {
				return errFindings
			}
			return err
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	d.addFlags(command)
	r.addFlags(command)
	command.Flags().StringVar(&payload, "body", "", "say whether the payload in `FILE` would match; - reads it from the standard input")
	nameValues(command, "body")
	addJSONFlag(command, &asJSON)
	return command
}

// readPayload reads --body; nil where there is none. An empty file is a payload, too.
func readPayload(command *cobra.Command, name string) ([]byte, error) {
	if !command.Flags().Changed("body") {
		return nil, nil
	}
	read := func() ([]byte, error) { return os.ReadFile(name) } //nolint:gosec // the caller names it
	if name == "-" {
		read = func() ([]byte, error) { return io.ReadAll(command.InOrStdin()) }
	}
	body, err := read()
	if err != nil {
		return nil, fmt.Errorf("--body: %w", err)
	}
	return append([]byte{}, body...), nil
}

// shownKey is the answer.
type shownKey struct {
	Source         string       `json:"source"`
	EventID        string       `json:"event_id"`
	ClaimedAt      *moment      `json:"claimed_at"`   // null: no row is committed
	CompletedAt    *moment      `json:"completed_at"` // null: never, by other code
	SweptAfter     *moment      `json:"swept_after"`  // null: no --retention, or claimed at infinity
	Digest         *shownDigest `json:"digest"`
	Answer         *shownAnswer `json:"answer"` // null: the handler gave none, which is answered as 200
	Holder         *shownHolder `json:"holder"` // null: nobody
	PayloadMatches *bool        `json:"payload_matches"`
}

type shownDigest struct {
	Scheme string `json:"scheme"`
	Sum    string `json:"sum"` // in hexadecimal
}

type shownAnswer struct {
	Status int                 `json:"status"`
	Header map[string][]string `json:"header"`
	Bytes  int                 `json:"bytes"`
	JSON   json.RawMessage     `json:"json"` // the body, if it is JSON
	Raw    []byte              `json:"raw"`  // the body's bytes, in base64; null: no body
}

type shownHolder struct {
	PID         int     `json:"pid"`
	Prepared    string  `json:"prepared"`
	User        string  `json:"user"`
	Application string  `json:"application"`
	State       string  `json:"state"`
	Since       *moment `json:"since"` // when its transaction began; null: this role may not see it
}

// show reads the key and looks for its holder. It is an error if there is neither.
func (d *database) show(ctx context.Context, messages io.Writer, r retention, source, id string) (*shownKey, error) {
	db, pool, err := d.open(ctx, r.config(), messages)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	key, err := d.lookupAlone(ctx, db, source, id)
	unknown := errors.Is(err, idempotency.ErrKeyNotFound)
	if err != nil && !unknown {
		return nil, err
	}
	holder, err := d.holder(ctx, pool, source, id)
	if err != nil {
		return nil, err
	}
	if unknown && holder == nil {
		return nil, d.notFound(ctx, pool, source, id)
	}
	shown := &shownKey{Source: source, EventID: id, Holder: holder}
	if !unknown {
		err = shown.fill(key, r)
	}
	return shown, err
}

func (d *database) holder(ctx context.Context, pool *sql.DB, source, id string) (*shownHolder, error) {
	table, err := pgsql.ParseTable(d.table)
	if err != nil {
		return nil, err
	}
	var session *pgsql.Session
	err = read(ctx, pool, func(tx *sql.Tx) error {
		session, err = pgsql.HolderOf(ctx, tx, table, source, id)
		return err
	})
	if err != nil || session == nil {
		return nil, err
	}
	holder := &shownHolder{PID: session.PID, Prepared: session.Prepared, User: session.User, Application: session.Application, State: session.State}
	if session.Visible() {
		holder.Since = momentOf(session.Since)
	}
	return holder, nil
}

func (s *shownKey) fill(key *storedKey, r retention) error {
	s.ClaimedAt, s.CompletedAt = key.claimed, key.completed
	if kept, known := r.of(key.Source); known {
		s.SweptAfter = key.claimed.after(kept)
	}
	scheme, sum := splitDigest(key.PayloadDigest)
	s.Digest = &shownDigest{Scheme: scheme, Sum: hex.EncodeToString(sum)}
	if key.ResponseStatus == nil {
		return nil
	}
	s.Answer = &shownAnswer{Status: int(*key.ResponseStatus), Bytes: len(key.ResponseRaw), Raw: key.ResponseRaw}
	if utf8.Valid(key.ResponseRaw) && json.Valid(key.ResponseRaw) {
		s.Answer.JSON = key.ResponseRaw
	}
	s.Answer.Header = map[string][]string{"Content-Type": {"application/json"}} // of an answer by Respond
	if key.ResponseHeader != nil {
		s.Answer.Header = nil
		if err := json.Unmarshal(key.ResponseHeader, &s.Answer.Header); err != nil {
			return errors.New("the stored headers are not an object of arrays of strings: other code than the library wrote them")
		}
	}
	return nil
}

// of is how long the flags say that a source's keys are kept.
func (r *retention) of(source string) (kept time.Duration, known bool) {
	if own, ok := r.sources[source]; ok {
		return own.Retention, true
	}
	return time.Duration(r.common), r.given()
}

// splitDigest takes a stored digest apart. A scheme's name may contain colons: the sum's length is what divides.
func splitDigest(stored []byte) (scheme string, sum []byte) {
	named := len(stored) - sha256.Size
	if named <= 0 || stored[named-1] != ':' {
		return idempotency.SHA256().Name, stored
	}
	return string(stored[:named-1]), stored[named:]
}

// compare finds out whether a delivery with this payload would be the same event.
func (s *shownKey) compare(payload []byte) error {
	if s.Digest == nil {
		return fmt.Errorf("event %q of source %q has no digest to compare --body with, until %s commits", s.EventID, s.Source, s.Holder.name())
	}
	digest, known := digestNamed(s.Digest.Scheme)
	if !known {
		return fmt.Errorf("--body: the digest %.64q is the application's own, which this command cannot compute", s.Digest.Scheme)
	}
	sum := digest.Sum(payload)
	matches := hex.EncodeToString(sum[:]) == s.Digest.Sum
	s.PayloadMatches = &matches
	return nil
}

// digestNamed makes one of the library's own digests from its name, which holds the pointers of a JSONDigest.
func digestNamed(scheme string) (idempotency.Digest, bool) {
	if scheme == idempotency.SHA256().Name {
		return idempotency.SHA256(), true
	}
	list, found := strings.CutPrefix(scheme, "json")
	var pointers []string
	if !found || json.Unmarshal([]byte(list), &pointers) != nil {
		return idempotency.Digest{}, false
	}
	digest := idempotency.JSONDigest(pointers...)
	return digest, digest.Name == scheme && digest.Sum != nil
}

// text is the answer for a person.
func (s *shownKey) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "event %q of source %q\n\n", s.EventID, s.Source)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-9s  %s\n", name, fmt.Sprintf(format, args...))
	}
	if s.ClaimedAt == nil {
		line("claimed", "and not committed: there is no row yet, and no answer")
	} else {
		line("claimed", "%s", s.ClaimedAt)
		line("completed", "%s", s.completed())
		line("digest", "%s %s", visible(s.Digest.Scheme), s.Digest.Sum)
	}
	if s.SweptAfter != nil {
		line("kept to", "%s", s.SweptAfter)
	}
	line("holder", "%s", s.Holder.describe())
	if s.PayloadMatches != nil {
		line("--body", "%s", map[bool]string{true: "matches", false: "does not match: it would be refused as ErrDigestMismatch"}[*s.PayloadMatches])
	}
	if s.ClaimedAt != nil {
		s.Answer.write(&b, line)
	}
	return b.String()
}

func (s *shownKey) completed() string {
	switch {
	case s.CompletedAt == nil:
		return "never: other code than the library wrote it, and its deliveries are in flight for ever"
	case s.CompletedAt.equal(s.ClaimedAt):
		return "with the claim, in one transaction"
	}
	return s.CompletedAt.String()
}

func (h *shownHolder) name() string {
	if h.Prepared != "" {
		return fmt.Sprintf("the prepared transaction %q", h.Prepared)
	}
	return fmt.Sprintf("backend %d", h.PID)
}

func (h *shownHolder) describe() string {
	if h == nil {
		return "nobody"
	}
	text := fmt.Sprintf("%s of the role %q", h.name(), h.User)
	if h.Application != "" {
		text += fmt.Sprintf(", application %q", h.Application)
	}
	if h.State != "" {
		text += ", " + h.State
	}
	if h.Since == nil {
		return text + "; since when needs pg_read_all_stats"
	}
	return text + ", since " + h.Since.String()
}

// write shows the status, the headers, and the body if a terminal can show it.
func (a *shownAnswer) write(b *strings.Builder, line func(name, format string, args ...any)) {
	if a == nil {
		line("answer", "none: answered as 200 with no body")
		return
	}
	line("answer", "%s", strings.TrimSpace(fmt.Sprintf("%d %s", a.Status, http.StatusText(a.Status))))
	for _, name := range slices.Sorted(maps.Keys(a.Header)) {
		for _, value := range a.Header[name] {
			line("", "%s: %s", visible(name), visible(value))
		}
	}
	switch pretty := new(bytes.Buffer); {
	case a.Raw == nil:
		line("body", "none")
	case a.JSON != nil && json.Indent(pretty, a.JSON, "", "  ") == nil:
		line("body", "%s, JSON", count(int64(a.Bytes), "byte", "bytes"))
		fmt.Fprintf(b, "\n%s\n", escaped(pretty.String()))
	case isText(a.Raw):
		line("body", "%s of text", count(int64(a.Bytes), "byte", "bytes"))
		fmt.Fprintf(b, "\n%s\n", escaped(strings.TrimRight(string(a.Raw), "\n")))
	default:
		line("body", "%s that are no text; --json gives them in base64", count(int64(a.Bytes), "byte", "bytes"))
	}
}

// isText reports whether these bytes are characters, and none of them moves the cursor. Those that change the direction belong
// to some languages' texts, and are escaped.
func isText(body []byte) bool {
	return utf8.Valid(body) && !strings.ContainsFunc(string(body), func(r rune) bool { return unicode.IsControl(r) && misleadsInText(r) })
}
