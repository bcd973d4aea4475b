package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/internal/pgsql"
	"github.com/gorm-idempotency/idempotency/migrations"
)

func newMigrate() *cobra.Command {
	command := &cobra.Command{
		Use:   "migrate",
		Short: "Create the table of keys, check it, or print how it is created",
		Long: `Create the table of keys, check it, or print how it is created.

The migrations are the library's own, and share nothing with an application's:
they are recorded in a table of their own. "up" applies them; "sql" and "export"
give them to whoever applies migrations otherwise.`,
		Args: usage(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	command.AddCommand(newMigrateUp(), newMigrateDown(), newMigrateStatus(), newMigrateValidate(), newMigrateSQL(), newMigrateExport())
	return command
}

// migration is what the commands work on. Each has the flags that mean something to it.
type migration struct {
	database

	versionTable string
	partitions   int
}

func (m *migration) addTableFlag(command *cobra.Command) {
	command.Flags().SortFlags = false
	command.Flags().StringVar(&m.table, "table", pgsql.DefaultTable, "the table of keys, `NAME` or schema.name")
	nameValues(command, "table")
	noFiles(command, "table")
}

func (m *migration) addPartitionsFlag(command *cobra.Command) {
	command.Flags().IntVar(&m.partitions, "partitions", 0, "create the table as `N` hash partitions (none)")
	nameValues(command, "partitions")
	noFiles(command, "partitions")
}

func (m *migration) addVersionTableFlag(command *cobra.Command) {
	command.Flags().StringVar(&m.versionTable, "version-table", "",
		"the table of applied migrations, `NAME` or schema.name ("+migrations.DefaultVersionTable+", for another table TABLE_goose_versions)")
	nameValues(command, "version-table")
	noFiles(command, "version-table")
}

// options are the flags as the library has them. What it would refuse is a usageError.
func (m *migration) options(more ...migrations.Option) ([]migrations.Option, error) {
	options := slices.Concat(more, []migrations.Option{
		migrations.WithTable(m.table), migrations.WithVersionTable(m.versionTable), migrations.WithPartitions(m.partitions),
	})
	if _, err := migrations.SQL(options...); err != nil { // of bad options only
		return nil, usageError{errors.Unwrap(err)}
	}
	return options, nil
}

// on connects, and calls do with the pool and the options.
func (m *migration) on(ctx context.Context, do func(*sql.DB, ...migrations.Option) error, more ...migrations.Option) error {
	options, err := m.options(more...)
	if err != nil {
		return err
	}
	pool, err := m.pool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	return do(pool, options...)
}

func newMigrateUp() *cobra.Command {
	var m migration
	command := &cobra.Command{
		Use:   "up",
		Short: "Apply the migrations that are missing, and check the table",
		Long: `Apply the migrations that are missing, and check the table.

Several may run at once: they take turns. A table that exists is taken over as
it is; one with another number of partitions than --partitions says is refused.`,
		Example: `  idempotency migrate up --dsn postgres://user@localhost:5432/app

  # under another name, and in 16 partitions
  idempotency migrate up --table app.event_keys --partitions 16`,
		Args: usage(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			out, changes := command.OutOrStdout(), 0
			var written error
			return m.on(command.Context(), func(pool *sql.DB, options ...migrations.Option) error {
				if err := migrations.Up(command.Context(), pool, options...); err != nil {
					return err
				}
				if changes == 0 {
					_, written = fmt.Fprintf(out, "nothing to do: %s is up to date\n", m.table)
				}
				return written
			}, migrations.WithObserve(func(c migrations.Change) {
				changes++
				_, err := fmt.Fprintf(out, "applied %s in %v\n", c.Name, c.Took.Round(time.Millisecond))
				written = cmp.Or(written, err)
			}))
		},
	}
	m.addFlags(command)
	m.addPartitionsFlag(command)
	m.addVersionTableFlag(command)
	return command
}

func newMigrateDown() *cobra.Command {
	var m migration
	var sure bool
	command := &cobra.Command{
		Use:   "down",
		Short: "Roll back the newest migration; the first one drops every key",
		Long: `Roll back the newest migration.

Rolling back the first one drops the table with every key in it: an event that
is delivered again afterwards takes effect again. The command asks first; where
there is no terminal to ask on, it wants --yes.`,
		Example: `  idempotency migrate down --dsn postgres://user@localhost:5432/development`,
		Args:    usage(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			out := command.OutOrStdout()
			var written error
			return m.on(command.Context(), func(pool *sql.DB, options ...migrations.Option) error {
				newest, err := newestApplied(command.Context(), pool, options)
				if err != nil {
					return err
				}
				if newest.Version == 0 {
					_, err := fmt.Fprintf(out, "nothing to do: no migration of %s is applied\n", m.table)
					return err
				}
				if !sure {
					if err := confirm(command, m.downQuestion(newest)); err != nil {
						return err
					}
				}
				return cmp.Or(migrations.Down(command.Context(), pool, options...), written)
			}, migrations.WithObserve(func(c migrations.Change) {
				_, written = fmt.Fprintf(out, "rolled back %s in %v\n", c.Name, c.Took.Round(time.Millisecond))
			}))
		},
	}
	m.addFlags(command)
	m.addVersionTableFlag(command)
	command.Flags().BoolVarP(&sure, "yes", "y", false, "do not ask")
	return command
}

// newestApplied is the migration that Down rolls back; zero if there is none.
func newestApplied(ctx context.Context, pool *sql.DB, options []migrations.Option) (newest migrations.MigrationStatus, err error) {
	list, err := migrations.Status(ctx, pool, options...)
	for _, status := range list {
		if status.Applied() {
			newest = status
		}
	}
	return newest, err
}

func (m *migration) downQuestion(newest migrations.MigrationStatus) string {
	if newest.Version > 1 {
		return fmt.Sprintf("Roll back %s of the table %s?", newest.Name, m.table)
	}
	return fmt.Sprintf("This drops the table %s with every key in it: each event that is delivered again takes effect again. "+
		"Drop it?", m.table)
}

func newMigrateStatus() *cobra.Command {
	var m migration
	var asJSON bool
	command := &cobra.Command{
		Use:   "status",
		Short: "List the migrations, and when each was applied",
		Example: `  idempotency migrate status

  # those that are missing
  idempotency migrate status --json | jq '.migrations[] | select(.applied_at == null)'`,
		Args: usage(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			return m.on(command.Context(), func(pool *sql.DB, options ...migrations.Option) error {
				list, err := migrations.Status(command.Context(), pool, options...)
				if err != nil {
					return err
				}
				if asJSON {
					return printJSON(command.OutOrStdout(), newStatusReport(m.table, list))
				}
				w := tabwriter.NewWriter(command.OutOrStdout(), 0, 0, 2, ' ', 0)
				_, _ = fmt.Fprintln(w, "MIGRATION\tAPPLIED")
				for _, status := range list {
					applied := "not yet"
					if status.Applied() {
						applied = status.AppliedAt.UTC().Format("2006-01-02 15:04:05 MST")
					}
					_, _ = fmt.Fprintf(w, "%s\t%s\n", status.Name, applied)
				}
				return w.Flush()
			})
		},
	}
	m.addFlags(command)
	m.addVersionTableFlag(command)
	addJSONFlag(command, &asJSON)
	return command
}

// statusReport is what status --json prints.
type statusReport struct {
	Table      string            `json:"table"`
	Migrations []migrationReport `json:"migrations"`
}

type migrationReport struct {
	Version   int64      `json:"version"`
	Name      string     `json:"name"`
	AppliedAt *time.Time `json:"applied_at"`
}

func newStatusReport(table string, list []migrations.MigrationStatus) statusReport {
	report := statusReport{Table: table}
	for _, status := range list {
		m := migrationReport{Version: status.Version, Name: status.Name}
		if at := status.AppliedAt.UTC(); status.Applied() {
			m.AppliedAt = &at
		}
		report.Migrations = append(report.Migrations, m)
	}
	return report
}

func newMigrateValidate() *cobra.Command {
	var m migration
	var asJSON bool
	command := &cobra.Command{
		Use:   "validate",
		Short: "Check that the table keeps the promise, whoever created it",
		Long: `Check that the table keeps the promise, whoever created it.

It reads the catalogue and no keys, needs no right on the table, and asks for no
migrations. The exit status is 0 if the table is as the library needs it, 2 with
everything that is wrong if it is not, and 1 if it could not be read.`,
		Example: `  idempotency migrate validate --table app.event_keys`,
		Args:    usage(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			return m.on(command.Context(), func(pool *sql.DB, options ...migrations.Option) error {
				err := migrations.Validate(command.Context(), pool, options...)
				if err != nil && !errors.Is(err, idempotency.ErrSchema) {
					return err
				}
				return m.printVerdict(command, err, asJSON)
			})
		},
	}
	m.addFlags(command)
	addJSONFlag(command, &asJSON)
	return command
}

// verdict is what validate --json prints.
type verdict struct {
	Table    string   `json:"table"`
	OK       bool     `json:"ok"`
	Findings []string `json:"findings"`
}

// printVerdict returns errFindings if there are any. wrong is nil for a table that is right.
func (m *migration) printVerdict(command *cobra.Command, wrong error, asJSON bool) error {
	out, v := command.OutOrStdout(), verdict{Table: m.table, OK: wrong == nil, Findings: []string{}}
	v.Findings = append(v.Findings, pgsql.Problems(wrong)...)
	var err error
	if asJSON {
		err = printJSON(out, v)
	} else {
		_, err = io.WriteString(out, v.text())
	}
	if err == nil && !v.OK {
		return errFindings
	}
	return err
}

func (v verdict) text() string {
	if v.OK {
		return v.Table + " is as the library needs it\n"
	}
	return v.Table + " cannot be used:\n  - " + strings.Join(v.Findings, "\n  - ") + "\n"
}

func newMigrateSQL() *cobra.Command {
	var m migration
	command := &cobra.Command{
		Use:   "sql",
		Short: `Print the SQL that "up" would run, for psql`,
		Long: `Print the SQL that "up" would run, for psql.

It is one transaction, and records the migrations, so that "up" then finds
nothing to do. It needs no database. A table without a schema is created in the
first schema of the search path that psql has.`,
		Example: `  idempotency migrate sql --table app.event_keys --partitions 16 | psql -v ON_ERROR_STOP=1 "$DATABASE_URL"
  idempotency migrate validate --table app.event_keys`,
		Args: usage(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			options, err := m.options()
			if err != nil {
				return err
			}
			text, err := migrations.SQL(options...)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(command.OutOrStdout(), text)
			return err
		},
	}
	m.addTableFlag(command)
	m.addPartitionsFlag(command)
	m.addVersionTableFlag(command)
	return command
}

func newMigrateExport() *cobra.Command {
	var m migration
	command := &cobra.Command{
		Use:   "export DIR",
		Short: "Write the migrations into a folder of goose migrations",
		Long: `Write the migrations into DIR, a folder of the application's goose migrations.

They get the next numbers there, or timestamps if the newest file has one or
there is none. What is there already is left alone, so it may be run again after
each update of the library. It needs no database.`,
		Example: `  idempotency migrate export db/migrations --table app.event_keys`,
		Args:    arguments("DIR"),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(command *cobra.Command, args []string) error {
			options, err := m.options()
			if err != nil {
				return err
			}
			written, err := migrations.Export(args[0], options...)
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("there is no folder %s: create it, or correct the name", args[0])
			}
			if err != nil {
				return err
			}
			if len(written) == 0 {
				_, _ = fmt.Fprintf(command.ErrOrStderr(), "nothing to do: %s has every migration of %s\n", args[0], m.table)
				return nil
			}
			_, err = fmt.Fprintln(command.OutOrStdout(), strings.Join(written, "\n"))
			return err
		},
	}
	m.addTableFlag(command)
	m.addPartitionsFlag(command)
	return command
}
