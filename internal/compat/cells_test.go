package compat_test

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/schema"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/internal/conformance"
	"github.com/gorm-idempotency/idempotency/pipeline"
)

// pgDriver is a driver in one of its modes.
type pgDriver struct {
	name       string
	parameters []string
	libpq      bool
}

// drivers are pgx in each of its modes, and lib/pq in both of its own.
var drivers = []pgDriver{
	{name: "pgx, cache_statement (its default)", parameters: []string{"default_query_exec_mode=cache_statement"}},
	{name: "pgx, cache_describe", parameters: []string{"default_query_exec_mode=cache_describe"}},
	{name: "pgx, describe_exec", parameters: []string{"default_query_exec_mode=describe_exec"}},
	{name: "pgx, exec", parameters: []string{"default_query_exec_mode=exec"}},
	{name: "pgx, simple_protocol", parameters: []string{"default_query_exec_mode=simple_protocol"}},
	{name: "lib/pq", libpq: true},
	{name: "lib/pq, binary_parameters", parameters: []string{"binary_parameters=yes"}, libpq: true},
}

func (d pgDriver) dsn(dsn string) string { return with(dsn, d.parameters...) }

// dialector is what an application gives to gorm.Open.
func (d pgDriver) dialector(dsn string) gorm.Dialector {
	config := postgres.Config{DSN: d.dsn(dsn)}
	if d.libpq {
		config.DriverName = "postgres"
	}
	return postgres.New(config)
}

func (d pgDriver) connect(dsn string) (driver.Connector, error) {
	if d.libpq {
		return pq.NewConnector(d.dsn(dsn))
	}
	config, err := pgx.ParseConfig(d.dsn(dsn))
	if err != nil {
		return nil, err
	}
	return stdlib.GetConnector(*config), nil
}

func (d pgDriver) state(err error) string {
	if !d.libpq {
		return conformance.PgxState(err)
	}
	var pqErr *pq.Error
	if errors.As(err, &pqErr) {
		return string(pqErr.Code)
	}
	return ""
}

// cell is the driver's, in GORM's defaults.
func (d pgDriver) cell(group, name string) conformance.Cell {
	return conformance.Cell{Group: group, Name: name, Dialector: d.dialector, State: d.state}
}

// with adds parameters to a DSN of either form.
func with(dsn string, parameters ...string) string {
	for _, parameter := range parameters {
		switch {
		case !strings.Contains(dsn, "://"):
			dsn += " " + parameter
		case strings.Contains(dsn, "?"):
			dsn += "&" + parameter
		default:
			dsn += "?" + parameter
		}
	}
	return dsn
}

func run(t *testing.T, cell conformance.Cell) {
	t.Helper()
	t.Run(cell.Name, func(t *testing.T) {
		t.Parallel()
		conformance.Run(t, cell)
	})
}

// TestDrivers runs the suite over the drivers' modes, without and with GORM's cache of prepared statements (cases C1, C7, C19,
// C20, C25, C28, C29, C49, C50, C55, C74, C75).
func TestDrivers(t *testing.T) {
	t.Parallel()
	for _, d := range drivers {
		run(t, d.cell("Drivers", d.name))
		prepared := d.cell("Drivers", d.name+", PrepareStmt")
		prepared.Gorm = gorm.Config{PrepareStmt: true}
		run(t, prepared)
	}
	for _, d := range drivers {
		if d.libpq {
			continue
		}
		for _, prepared := range []bool{false, true} {
			cell := d.cell("Pipelined", d.name)
			if prepared {
				cell.Name += ", PrepareStmt"
			}
			cell.Gorm = gorm.Config{PrepareStmt: prepared}
			cell.Dialector = func(dsn string) gorm.Dialector {
				connector, err := d.connect(dsn)
				if err != nil {
					t.Error(err)
				}
				return postgres.New(postgres.Config{Conn: pipeline.OpenDB(connector)})
			}
			run(t, cell)
		}
	}
	wrapped := drivers[0].cell("Drivers", "a driver wrapped in another one")
	wrapped.Dialector = func(dsn string) gorm.Dialector {
		connector, err := drivers[0].connect(dsn)
		if err != nil {
			t.Error(err)
		}
		pool, _ := conformance.OpenRecorded(connector)
		return postgres.New(postgres.Config{Conn: pool})
	}
	run(t, wrapped)
}

// TestProtocol proves the statements of each path by a driver that logs them (case C48).
func TestProtocol(t *testing.T) {
	t.Parallel()
	for _, d := range drivers {
		for _, prepared := range []bool{false, true} {
			name := d.name
			if prepared {
				name += ", PrepareStmt"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				cell := d.cell("Statements", name)
				cell.Gorm = gorm.Config{PrepareStmt: prepared}
				conformance.Protocol(t, cell, d.connect)
			})
		}
	}
}

// TestSettings runs the suite over what an application may set in gorm.Config, and over tables in a schema (cases C14, C24).
func TestSettings(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]gorm.Config{
		"SkipDefaultTransaction":                  {SkipDefaultTransaction: true},
		"TranslateError":                          {TranslateError: true},
		"DisableNestedTransaction":                {DisableNestedTransaction: true},
		"NamingStrategy with prefix, singular":    {NamingStrategy: schema.NamingStrategy{TablePrefix: "app_", SingularTable: true}},
		"NamingStrategy with a schema":            {NamingStrategy: schema.NamingStrategy{TablePrefix: "app."}},
		"QueryFields, CreateBatchSize":            {QueryFields: true, CreateBatchSize: 2},
		"AllowGlobalUpdate, FullSaveAssociations": {AllowGlobalUpdate: true, FullSaveAssociations: true},
		"all at once": {
			PrepareStmt: true, SkipDefaultTransaction: true, TranslateError: true, DisableNestedTransaction: true, QueryFields: true,
			CreateBatchSize: 2, NamingStrategy: schema.NamingStrategy{TablePrefix: "app.", SingularTable: true},
		},
	} {
		for _, table := range []string{"", "keys.of_events"} {
			title := name
			if table != "" {
				if name != "all at once" && name != "NamingStrategy with a schema" {
					continue
				}
				title += ", Config.Table in a schema"
			}
			cell := drivers[0].cell("GORM", title)
			cell.Gorm = config
			cell.Config.Table = table
			run(t, cell)
		}
	}
}

// TestHandles runs the suite over the handles that an application may have (case C9).
func TestHandles(t *testing.T) {
	t.Parallel()
	for _, handle := range conformance.Handles {
		for _, d := range []pgDriver{drivers[0], drivers[5]} {
			cell := d.cell("Handles", fmt.Sprintf("%s, %s", handle.Name, strings.Split(d.name, ",")[0]))
			cell.Handle = handle
			cell.Gorm = gorm.Config{PrepareStmt: d.libpq}
			if d.libpq {
				cell.Name += ", PrepareStmt"
			}
			run(t, cell)
		}
	}
	flat := drivers[0].cell("Handles", "Transaction, DisableNestedTransaction")
	flat.Handle = conformance.InTransaction
	flat.Gorm = gorm.Config{DisableNestedTransaction: true}
	run(t, flat)
	for _, handle := range []conformance.Handle{conformance.Pool, conformance.InTransaction} {
		single := drivers[0].cell("Handles", handle.Name+", in a pool of one connection")
		single.Handle = handle
		single.Conns = 1
		run(t, single)
	}
}

// TestIsolation runs the suite with the server's, the role's and the call's isolation levels (case C27).
func TestIsolation(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		byDefault := drivers[0].cell("Isolation", "the default is "+level)
		byDefault.Strict = level != "read committed"
		byDefault.Alone = level == "serializable"
		byDefault.Setup = func(t *testing.T, dsn string) string {
			t.Helper()
			admin := connect(t, dsn)
			database := query(t, admin, "SELECT current_database()")
			execute(t, admin, fmt.Sprintf("ALTER DATABASE %s SET default_transaction_isolation = '%s'", database, level))
			return dsn
		}
		run(t, byDefault)
		inside := byDefault
		inside.Name += ", in the caller's transaction"
		inside.Handle = conformance.InTransaction
		run(t, inside)
	}
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		asked := drivers[0].cell("Isolation", "WithTxOptions at "+strings.ToLower(level.String()))
		asked.Strict = level != sql.LevelReadCommitted
		asked.Options = []idempotency.Option{idempotency.WithTxOptions(&sql.TxOptions{Isolation: level})}
		run(t, asked)
		pqAsked := drivers[5].cell("Isolation", asked.Name+", lib/pq")
		pqAsked.Strict, pqAsked.Options = asked.Strict, asked.Options
		run(t, pqAsked)
	}
}
