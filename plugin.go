package idempotency

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency/internal/gate"
	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

// Defaults of [Config].
const (
	defaultRetention        = 30 * 24 * time.Hour
	defaultWait             = 2 * time.Second
	defaultMaxResponseBytes = 1 << 20

	// minRetention is refused from below: nobody redelivers within less, and a slip of the unit would delete live keys.
	minRetention = time.Second

	// minWait likewise: nobody means a wait of nanoseconds, which is what a bare number is.
	minWait = time.Millisecond
)

const pluginName = "idempotency"

// Config sets up a [Plugin]. The zero Config is ready to use. In each field 0 means the default, and a negative value is
// refused unless the field says otherwise.
type Config struct {
	// Table is the table of keys, as "table" or "schema.table", in letters, digits and underscores. Case matters.
	// "idempotency_keys" by default, found through the search path.
	Table string

	// Retention is how long a key outlives its claim, at least one second. Once a [Sweeper] has deleted the key, a
	// delivery of the event takes effect again. 30 days by default.
	Retention time.Duration

	// Wait is how long a duplicate waits for the delivery that holds its key, before it is told ErrInFlight, at least a
	// millisecond. Waiting holds no connection. 2 seconds by default; negative: not at all. A joined call never waits.
	Wait time.Duration

	// Digest is what of a payload must be equal between deliveries of one event. SHA256() by default.
	Digest Digest

	// Sources overrides the above for single sources, by their name. New copies the map.
	Sources map[string]SourceConfig

	// ForeignWrites says what happens to a write that leaves a handler's transaction. RejectForeignWrites by default.
	ForeignWrites ForeignWritePolicy

	// MaxResponseBytes limits an answer's headers and body together. 1 MiB by default; negative: 256 MiB, which no
	// configuration exceeds, since the database would refuse what is not much larger.
	MaxResponseBytes int

	// Observe is told what became of each delivery, after its transaction has ended; of a joined one, while the caller's
	// goes on. It runs in the goroutine of the call, so it should be quick, and must not call Do; a panic in it is logged
	// and changes nothing. nil by default.
	Observe func(context.Context, Observation)
}

// SourceConfig overrides Config for one source. A field that is 0 takes Config's value.
type SourceConfig struct {
	// RetryHorizon is how long the sender keeps redelivering, manual resends included. Initialize refuses a retention
	// that does not exceed it: the late redelivery would find no key and take effect again. 0: not known.
	RetryHorizon time.Duration

	Retention time.Duration // as Config.Retention
	Wait      time.Duration // as Config.Wait; negative: not at all
	Digest    Digest        // as Config.Digest
}

// ForeignWritePolicy says what happens to a write whose context comes from inside a handler, on another connection than
// the handler's: it would survive the handler's rollback, and happen again at the next delivery.
type ForeignWritePolicy int

// The policies of Config.ForeignWrites.
const (
	RejectForeignWrites ForeignWritePolicy = iota // the write fails with ErrForeignWrite
	WarnForeignWrites                             // the write is logged and observed, and goes ahead
	AllowForeignWrites                            // nothing happens
)

// Plugin adds idempotency to a *gorm.DB. Make one with [New] and register it with db.Use, once for each database and
// before its first use, as any GORM plugin. One Plugin can serve several databases.
type Plugin struct {
	config  Config // with its defaults filled in
	invalid error  // why Initialize refuses it
	table   pgsql.Table
	sql     pgsql.Statements

	gate   gate.Gate[gateKey]
	locks  lockBudget
	warned sync.Map // names of digests that nobody knows, once each
}

// New returns a plugin with this configuration. It never fails: Plugin.Initialize validates.
func New(config Config) *Plugin {
	p := &Plugin{config: withDefaults(config)}
	p.table, p.invalid = validate(p.config)
	p.sql = pgsql.Render(p.table)
	return p
}

func withDefaults(config Config) Config {
	if config.Table == "" {
		config.Table = pgsql.DefaultTable
	}
	if config.Retention == 0 {
		config.Retention = defaultRetention
	}
	if config.Wait == 0 {
		config.Wait = defaultWait
	}
	if config.Digest.isZero() {
		config.Digest = SHA256()
	}
	if config.MaxResponseBytes == 0 {
		config.MaxResponseBytes = defaultMaxResponseBytes
	}
	config.Sources = maps.Clone(config.Sources)
	for name, source := range config.Sources {
		if source.Retention == 0 {
			source.Retention = config.Retention
		}
		if source.Wait == 0 {
			source.Wait = config.Wait
		}
		if source.Digest.isZero() {
			source.Digest = config.Digest
		}
		config.Sources[name] = source
	}
	return config
}

// validate looks at a Config whose defaults are filled in, and names the first field that is wrong.
func validate(config Config) (pgsql.Table, error) {
	table, err := pgsql.ParseTable(config.Table)
	if err != nil {
		return table, &ConfigError{Field: "Table", Reason: err.Error()}
	}
	if config.ForeignWrites < RejectForeignWrites || config.ForeignWrites > AllowForeignWrites {
		return table, &ConfigError{Field: "ForeignWrites", Reason: fmt.Sprintf("is %d, which is no policy", config.ForeignWrites)}
	}
	common := SourceConfig{Retention: config.Retention, Wait: config.Wait, Digest: config.Digest}
	if err := common.validate(""); err != nil {
		return table, err
	}
	for _, name := range slices.Sorted(maps.Keys(config.Sources)) {
		if reason := unusable(name, maxSourceBytes); reason != "" {
			return table, &ConfigError{Field: fmt.Sprintf("Sources[%.64q]", name), Reason: "has a name that " + reason}
		}
		if err := config.Sources[name].validate(fmt.Sprintf("Sources[%q].", name)); err != nil {
			return table, err
		}
	}
	return table, nil
}

func (s SourceConfig) validate(prefix string) error {
	switch {
	case s.Retention < minRetention:
		return &ConfigError{Field: prefix + "Retention", Reason: fmt.Sprintf("is %v, and must be at least %v", s.Retention, minRetention)}
	case s.Wait > 0 && s.Wait < minWait:
		return &ConfigError{Field: prefix + "Wait", Reason: fmt.Sprintf("is %v, and must be at least %v; negative: not at all", s.Wait, minWait)}
	case s.RetryHorizon < 0:
		return &ConfigError{Field: prefix + "RetryHorizon", Reason: fmt.Sprintf("is %v, and must not be negative", s.RetryHorizon)}
	case s.Retention <= s.RetryHorizon:
		return &ConfigError{Field: prefix + "Retention", Reason: fmt.Sprintf(
			"is %v, and must exceed the sender's retry horizon of %v: a later redelivery would take effect again", s.Retention, s.RetryHorizon)}
	}
	if problem := s.Digest.problem(); problem != "" {
		return &ConfigError{Field: prefix + "Digest", Reason: problem}
	}
	return nil
}

// of are a source's settings.
func (c Config) of(source string) SourceConfig {
	if s, ok := c.Sources[source]; ok {
		return s
	}
	return SourceConfig{Retention: c.Retention, Wait: c.Wait, Digest: c.Digest}
}

// Name implements gorm.Plugin.
func (p *Plugin) Name() string { return pluginName }

// Initialize implements gorm.Plugin; db.Use calls it. It validates the configuration, registers the callbacks of the
// guard, and the model [IdempotencyKey] under Config.Table. It does no I/O and starts no goroutines: [CheckSchema] looks
// at the database.
//
// Errors: [ConfigError]; [ErrUnsupported] for a dialect other than PostgreSQL; gorm.ErrRegistered where a Plugin is
// registered already, with this configuration or another one.
func (p *Plugin) Initialize(db *gorm.DB) error {
	if p == nil || p.config.Table == "" {
		return unsupported("a Plugin that New did not make")
	}
	if p.invalid != nil {
		return p.invalid
	}
	if db == nil || db.Config == nil || db.Dialector == nil || db.Callback() == nil {
		return unsupported("a *gorm.DB that is nil, or that gorm.Open did not make")
	}
	if name := db.Name(); name != "postgres" {
		return unsupported(fmt.Sprintf("the dialect %q: keys are stored in PostgreSQL", name))
	}
	if guardRegistered(db) {
		return fmt.Errorf("idempotency: a database takes one Plugin: %w", gorm.ErrRegistered)
	}
	if err := p.registerModel(db); err != nil {
		return err
	}
	return p.registerGuard(db)
}

// registerModel gives the model the configured table. A static TableName method could not, and a naming strategy must not:
// the statements say Config.Table, whatever prefix or plural GORM would choose.
func (p *Plugin) registerModel(db *gorm.DB) error {
	statement := &gorm.Statement{DB: db}
	if err := statement.Parse(&IdempotencyKey{}); err != nil {
		return fmt.Errorf("idempotency: register the model: %w", err)
	}
	statement.Schema.Table = p.table.String()
	return nil
}

// opened reports whether a handle was made by gorm.Open, as far as can be told.
func opened(db *gorm.DB) bool { return db != nil && db.Config != nil && db.Statement != nil }

// pluginOf finds the plugin of a handle.
func pluginOf(db *gorm.DB) (*Plugin, error) {
	if !opened(db) {
		return nil, unsupported("a *gorm.DB that is nil, or that gorm.Open did not make")
	}
	if p, ok := db.Plugins[pluginName].(*Plugin); ok {
		return p, nil
	}
	// Config.Plugins, given to gorm.Open, is a map whose keys are the application's.
	for _, plugin := range db.Plugins {
		if p, ok := plugin.(*Plugin); ok {
			return p, nil
		}
	}
	return nil, ErrNotRegistered
}
