package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/gorm-idempotency/idempotency"
)

func newDoctor() *cobra.Command {
	var d database
	var r retention
	var asJSON bool
	command := &cobra.Command{
		Use:   "doctor",
		Short: "Look for what is wrong with the table of keys, and say what to do about it",
		Long: `Look for what is wrong with the table of keys, and say what to do about it.

It looks at the schema, indexes and settings, at who holds keys and who waits
for them, at claims that were never completed, at keys that should have been
swept or were deleted too early. It reads at most about 256 pages of the table,
however large that is, and writes nothing, so that it may run every minute.

It does not know the application's Config: without --retention it cannot tell
which keys are overdue, and says so. Give it the same flags as sweep.

A key that a sweep has just not come by yet is no fault: it calls a key overdue
that is older than its retention by a tenth of it, and by a day. What a sweep
would delete now, sweep --dry-run counts.

The exit status is 0 if all is well, notes aside, 2 if there is a warning or
worse, and 1 if it could not look.`,
		Example: `  idempotency doctor --dsn postgres://user@localhost:5432/shop --retention 30d

  # with the sources' retention, and how long their senders redeliver
  idempotency doctor --retention 30d --source stripe=35d/30d --source shop=7d/48h

  # for an alert
  idempotency doctor --retention 30d --json | jq -r '.findings[] | select(.severity != "note") | .check'`,
		Args: usage(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			ctx, out := command.Context(), command.OutOrStdout()
			db, pool, err := d.open(ctx, r.config(), command.ErrOrStderr())
			if err != nil {
				return err
			}
			defer pool.Close()
			report, err := idempotency.Inspect(ctx, db)
			if err != nil {
				return err
			}
			r.withhold(report)
			nameTheFlag(report)
			if asJSON {
				err = printJSON(out, report)
			} else {
				err = newConsultation(out, report).print()
			}
			if err == nil && !report.Healthy() {
				return errFindings
			}
			return err
		},
	}
	d.addFlags(command)
	r.addFlags(command)
	addJSONFlag(command, &asJSON)
	return command
}

// withhold takes what was judged by a Config that nobody gave out of a report, and lists it as not checked.
func (r *retention) withhold(report *idempotency.Report) {
	if !r.given() {
		const reason = "how long keys are kept is not known: give --retention, as in the application's Config"
		withhold(report, "overdue-keys", reason)
		withhold(report, "deleted-early", reason)
		report.Overdue = 0
	}
	if len(r.sources) == 0 {
		withhold(report, "no-retry-horizon", "the sources are not known: give --source NAME=AGE/HORIZON for each of the application's Config")
	}
}

// nameTheFlag adds to what is said of an unusable table, in the library's words, how this command is told of another one.
func nameTheFlag(report *idempotency.Report) {
	for i := range report.Findings {
		if f := &report.Findings[i]; f.Check == "schema" {
			f.Remedy += " If the table has another name, give it with --table."
		}
	}
}

func withhold(report *idempotency.Report, check, reason string) {
	report.Findings = slices.DeleteFunc(report.Findings, func(f idempotency.Finding) bool { return f.Check == check })
	if !slices.ContainsFunc(report.Skipped, func(s idempotency.Skipped) bool { return s.Check == check }) {
		report.Skipped = append(report.Skipped, idempotency.Skipped{Check: check, Reason: reason})
	}
}

// consultation is a report on its way to a person.
type consultation struct {
	report *idempotency.Report
	colour bool
	width  int
	text   strings.Builder
	out    io.Writer
}

// widestLine is the width of lines where the terminal is wider, or where there is none.
const widestLine = 100

func newConsultation(out io.Writer, report *idempotency.Report) *consultation {
	screen := screenOn(out)
	c := &consultation{report: report, colour: screen.Colour, width: widestLine, out: out}
	if screen.Size != nil {
		columns, _ := screen.Size()
		c.width = max(40, min(widestLine, columns))
	}
	return c
}

func (c *consultation) print() error {
	c.verdict()
	for _, severity := range []idempotency.Severity{idempotency.Critical, idempotency.Warning, idempotency.Note} {
		c.findings(severity)
	}
	c.numbers()
	c.sessions()
	c.skipped()
	_, err := io.WriteString(c.out, c.text.String())
	return err
}

var severityColours = map[idempotency.Severity]string{
	idempotency.Critical: "\x1b[1;31m", idempotency.Warning: "\x1b[33m", idempotency.Note: "\x1b[36m",
}

func (c *consultation) paint(escape, text string) string {
	if !c.colour {
		return text
	}
	return escape + text + "\x1b[0m"
}

func (c *consultation) verdict() {
	verdict := c.paint("\x1b[32m", "healthy")
	if !c.report.Healthy() {
		verdict = c.paint("\x1b[1;31m", "not healthy")
	}
	fmt.Fprintf(&c.text, "%s: %s, %s", c.report.Table, verdict, count(int64(len(c.report.Findings)), "finding", "findings"))
	if skipped := len(c.report.Skipped); skipped > 0 {
		fmt.Fprintf(&c.text, ", %s not made", count(int64(skipped), "check", "checks"))
	}
	c.text.WriteString("\n")
}

func (c *consultation) findings(severity idempotency.Severity) {
	for _, f := range c.report.Findings {
		if f.Severity != severity {
			continue
		}
		fmt.Fprintf(&c.text, "\n%s  %s\n", c.paint(severityColours[severity], strings.ToUpper(severity.String())), f.Check)
		c.paragraph("  ", f.Message)
		c.paragraph("  > ", f.Remedy)
	}
}

// paragraph wraps a text. What follows the first line is indented as deep as that.
func (c *consultation) paragraph(indent, text string) {
	line := indent
	for word := range strings.FieldsSeq(text) {
		if len(line) > len(indent) && len([]rune(line))+1+len([]rune(word)) > c.width {
			c.text.WriteString(line + "\n")
			line = strings.Repeat(" ", len(indent))
		}
		if strings.TrimSpace(line) != "" && line != indent {
			line += " "
		}
		line += word
	}
	c.text.WriteString(line + "\n")
}

func (c *consultation) numbers() {
	r := c.report
	if r.TableBytes+r.IndexBytes == 0 {
		return // they could not be read
	}
	about := "about "
	if r.SampledPages == r.Pages {
		about = ""
	}
	c.text.WriteString("\n")
	if r.SampledPages > 0 || r.Pages == 0 {
		c.number("keys", fmt.Sprintf("%s%s, from %s of %s pages", about, humanize.Comma(r.Keys), humanize.Comma(r.SampledPages), humanize.Comma(r.Pages)))
		c.number("oldest", oldest(r))
	}
	if c.made("overdue-keys") {
		c.number("overdue", about+humanize.Comma(r.Overdue)+", by more than a tenth of their retention and a day")
	}
	c.number("size", fmt.Sprintf("table %s, indexes %s", size(r.TableBytes), size(r.IndexBytes)))
	if r.Updates > 0 {
		c.number("HOT", fmt.Sprintf("%s of %s", percent(float64(r.HOTUpdates)/float64(r.Updates)), count(r.Updates, "update", "updates")))
	}
	c.number("dead", count(r.DeadRows, "row", "rows"))
	c.number("holding", count(int64(r.Holding), "transaction", "transactions"))
	c.number("waiting", count(int64(r.Waiting), "backend", "backends"))
}

func oldest(r *idempotency.Report) string {
	if r.Keys == 0 {
		return "no keys"
	}
	return fmt.Sprintf("%.1f days, of those read", r.OldestClaim.Hours()/24)
}

func (c *consultation) made(check string) bool {
	return !slices.ContainsFunc(c.report.Skipped, func(s idempotency.Skipped) bool { return s.Check == check })
}

func (c *consultation) number(name, value string) { fmt.Fprintf(&c.text, "%-8s %s\n", name, value) }

func (c *consultation) sessions() {
	if len(c.report.Holders)+len(c.report.Waiters) == 0 {
		return
	}
	t := newTable("backend", "role", "application", "for", "")
	for _, h := range c.report.Holders {
		name := fmt.Sprint(h.PID)
		if h.Prepared != "" {
			name = "prepared " + h.Prepared
		}
		t.row(name, visible(h.User), shorten(visible(h.Application), nameWidth), age(h.Held), "holds keys, "+count(int64(h.Keys), "lock", "locks")+", "+h.State)
	}
	for _, w := range c.report.Waiters {
		behind := strings.Trim(strings.ReplaceAll(fmt.Sprint(w.BlockedBy), " ", ", "), "[]")
		t.row(fmt.Sprint(w.PID), visible(w.User), shorten(visible(w.Application), nameWidth), age(w.Waited), "waits behind "+behind)
	}
	c.text.WriteString("\n")
	_ = t.print(&c.text) // a strings.Builder never fails
}

func age(d time.Duration) string {
	if d == 0 {
		return "?"
	}
	return d.Round(time.Second).String()
}

func (c *consultation) skipped() {
	if len(c.report.Skipped) == 0 {
		return
	}
	c.text.WriteString("\nNot checked\n")
	var reasons []string
	checks := make(map[string][]string)
	for _, s := range c.report.Skipped {
		if checks[s.Reason] == nil {
			reasons = append(reasons, s.Reason)
		}
		checks[s.Reason] = append(checks[s.Reason], s.Check)
	}
	for _, reason := range reasons {
		c.paragraph("  ", strings.Join(checks[reason], ", ")+": "+reason)
	}
}
