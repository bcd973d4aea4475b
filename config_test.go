package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
	"gorm.io/gorm/schema"
	"gorm.io/gorm/utils/tests"

	"github.com/gorm-idempotency/idempotency"
	"github.com/gorm-idempotency/idempotency/gormtest"
)

const day = 24 * time.Hour

// offline is a handle with everything but a server.
func offline(t testing.TB) *gorm.DB {
	t.Helper()
	pool, err := sql.Open("pgx", "postgres://nobody@127.0.0.1:1/nothing")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close() })
	db, err := gorm.Open(postgres.New(postgres.Config{Conn: pool}), &gorm.Config{Logger: logger.Discard, DisableAutomaticPing: true})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// Cases C70 and C86: a value that means nothing, or that would lose keys, is refused and never taken for "unset".
func TestInitializeNamesTheFieldItRefuses(t *testing.T) {
	t.Parallel()
	type config = idempotency.Config
	type sources = map[string]idempotency.SourceConfig
	sum := idempotency.SHA256().Sum
	refused := map[string]struct {
		config config
		field  string
	}{
		"negative retention":             {config{Retention: -1}, "Retention"},
		"retention of a nanosecond":      {config{Retention: 1}, "Retention"},
		"retention just below a second":  {config{Retention: time.Second - 1}, "Retention"},
		"most negative retention":        {config{Retention: math.MinInt64}, "Retention"},
		"negative policy":                {config{ForeignWrites: -1}, "ForeignWrites"},
		"unknown policy":                 {config{ForeignWrites: 3}, "ForeignWrites"},
		"digest without a name":          {config{Digest: idempotency.Digest{Sum: sum}}, "Digest"},
		"digest without a function":      {config{Digest: idempotency.Digest{Name: "mine"}}, "Digest"},
		"digest that takes our name":     {config{Digest: idempotency.Digest{Name: "sha256", Sum: other}}, "Digest"},
		"digest that takes JSON's name":  {config{Digest: idempotency.Digest{Name: `json["/a"]`, Sum: sum}}, "Digest"},
		"digest with an endless name":    {config{Digest: idempotency.Digest{Name: strings.Repeat("n", 1025), Sum: sum}}, "Digest"},
		"pointer without a slash":        {config{Digest: idempotency.JSONDigest("data")}, "Digest"},
		"pointer to everything":          {config{Digest: idempotency.JSONDigest("/a", "")}, "Digest"},
		"pointer with a broken escape":   {config{Digest: idempotency.JSONDigest("/a~2")}, "Digest"},
		"pointer that is not UTF-8":      {config{Digest: idempotency.JSONDigest("/\xff")}, "Digest"},
		"source without a name":          {config{Sources: sources{"": {}}}, `Sources[""]`},
		"source with NUL":                {config{Sources: sources{"a\x00": {}}}, `Sources["a\x00"]`},
		"source that is not UTF-8":       {config{Sources: sources{"\xff": {}}}, `Sources["\xff"]`},
		"source with too long a name":    {config{Sources: sources{strings.Repeat("s", 256): {}}}, "Sources["},
		"negative retention of a source": {config{Sources: sources{"a": {Retention: -1}}}, `Sources["a"].Retention`},
		"negative horizon":               {config{Sources: sources{"a": {RetryHorizon: -1}}}, `Sources["a"].RetryHorizon`},
		"retention at the horizon":       {config{Sources: sources{"a": {Retention: 3 * day, RetryHorizon: 3 * day}}}, `Sources["a"].Retention`},
		"retention below the horizon":    {config{Sources: sources{"a": {Retention: 3*day - 1, RetryHorizon: 3 * day}}}, `Sources["a"].Retention`},
		"default below the horizon":      {config{Sources: sources{"a": {RetryHorizon: 31 * day}}}, `Sources["a"].Retention`},
		"source's digest":                {config{Sources: sources{"a": {Digest: idempotency.Digest{Name: "x"}}}}, `Sources["a"].Digest`},
		"the first of two sources":       {config{Sources: sources{"b": {Retention: -1}, "a": {Retention: -1}}}, `Sources["a"].Retention`},
	}
	for _, table := range []string{".", "a.", ".a", "a.b.c", "a b", `a"b`, "a;b", "ключи", "1a", "a-b", strings.Repeat("t", 64), "a." + strings.Repeat("t", 64), "t\x00", "t\n"} {
		refused["table "+table] = struct {
			config config
			field  string
		}{config{Table: table}, "Table"}
	}
	db := offline(t)
	for name, test := range refused {
		t.Run(strings.ToValidUTF8(name, "?"), func(t *testing.T) {
			err := db.Use(idempotency.New(test.config))
			requireError(t, err, idempotency.ErrInvalidConfig)
			var problem *idempotency.ConfigError
			if !errors.As(err, &problem) || !strings.HasPrefix(problem.Field, test.field) || problem.Reason == "" {
				t.Errorf("got %#v, want the field %s and a reason", problem, test.field)
			}
			if !strings.Contains(err.Error(), problem.Field) || !strings.Contains(err.Error(), problem.Reason) {
				t.Errorf("%q does not say field and reason", err)
			}
			if len(err.Error()) > 400 {
				t.Errorf("the error is endless: %d bytes", len(err.Error()))
			}
		})
	}
	// A refusal leaves nothing behind: the same handle takes a good one.
	if err := db.Use(idempotency.New(config{})); err != nil {
		t.Errorf("a good configuration after the bad ones: %v", err)
	}
}

func other(body []byte) [32]byte { return [32]byte{byte(len(body))} }

// Case C70, and the zero rule: what is left out is the default, and the extremes that make sense are taken.
func TestInitializeTakesWhatMakesSense(t *testing.T) {
	t.Parallel()
	type config = idempotency.Config
	for name, c := range map[string]config{
		"zero":                    {},
		"shortest retention":      {Retention: time.Second},
		"longest retention":       {Retention: math.MaxInt64},
		"no wait":                 {Wait: -1},
		"longest wait":            {Wait: math.MaxInt64},
		"no limit":                {MaxResponseBytes: -1},
		"one byte":                {MaxResponseBytes: 1},
		"longest table":           {Table: strings.Repeat("s", 63) + "." + strings.Repeat("t", 63)},
		"capital letters":         {Table: "Keys_2"},
		"digest of one's own":     {Digest: idempotency.Digest{Name: "length", Sum: other}},
		"digest with a colon":     {Digest: idempotency.Digest{Name: "sha256:", Sum: other}},
		"JSON digest":             {Digest: idempotency.JSONDigest()},
		"JSON digest by pointers": {Digest: idempotency.JSONDigest("/b~1c/0", "/a~0", "/")},
		"sources": {Sources: map[string]idempotency.SourceConfig{
			"stripe": {RetryHorizon: 3 * day, Retention: 3*day + 1, Wait: -1, Digest: idempotency.JSONDigest("/attempts")},
			"shop":   {},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if err := offline(t).Use(idempotency.New(c)); err != nil {
				t.Error(err)
			}
		})
	}
}

// New copies the map: it is not filled in for the caller, and what happens to it afterwards changes nothing.
func TestNewCopiesSources(t *testing.T) {
	t.Parallel()
	sources := map[string]idempotency.SourceConfig{"a": {Digest: idempotency.JSONDigest()}}
	db := openWith(t, idempotency.New(idempotency.Config{Sources: sources}))
	if got := sources["a"]; got.Retention != 0 || got.Wait != 0 {
		t.Errorf("the caller's map has become %+v", got)
	}
	sources["a"] = idempotency.SourceConfig{Digest: idempotency.SHA256()}
	requireDuplicate(t, db, "a", "e", `{"a":1}`, `{ "a": 1 }`, true)
}

// Initialize does no I/O: it works without a server, and says nothing to one.
func TestInitializeDoesNoIO(t *testing.T) {
	t.Parallel()
	if err := offline(t).Use(idempotency.New(idempotency.Config{})); err != nil {
		t.Error(err)
	}
}

func TestInitializeRefusesHandles(t *testing.T) {
	t.Parallel()
	plugin := idempotency.New(idempotency.Config{})
	other, err := gorm.Open(tests.DummyDialector{}, &gorm.Config{Logger: logger.Discard})
	if err != nil {
		t.Fatal(err)
	}
	for name, db := range map[string]*gorm.DB{
		"nil":                     nil,
		"zero":                    {},
		"zero configuration":      {Config: &gorm.Config{}},
		"not opened":              {Config: &gorm.Config{Dialector: postgres.Open("")}},
		"another dialect":         other,
		"another dialect's nil":   {Config: &gorm.Config{Dialector: (*postgres.Dialector)(nil)}},
		"another dialect's value": {Config: &gorm.Config{Dialector: tests.DummyDialector{}}},
	} {
		t.Run(name, func(t *testing.T) {
			requireUnsupported(t, plugin.Initialize(db))
		})
	}
	requireUnsupported(t, offline(t).Use(&idempotency.Plugin{}))
	requireUnsupported(t, offline(t).Use((*idempotency.Plugin)(nil)))
	requireUnsupported(t, other.Use(plugin))
}

func requireUnsupported(t testing.TB, err error) {
	t.Helper()
	requireError(t, err, idempotency.ErrUnsupported)
	requireError(t, err, errors.ErrUnsupported)
}

// Case C11: a database takes one plugin, however and how often it is offered, and the callbacks are registered once.
func TestPluginIsRegisteredOnce(t *testing.T) {
	t.Parallel()
	log := &journal{}
	writes := 0
	config := idempotency.Config{Observe: func(_ context.Context, o idempotency.Observation) {
		if o.Kind == idempotency.ForeignWrite {
			writes++
		}
	}}
	db := open(t, setup{gorm: gorm.Config{Logger: log}, config: config})
	plugin := idempotency.New(config)
	for range 2 {
		requireError(t, db.Use(plugin), gorm.ErrRegistered)
		requireError(t, plugin.Initialize(db), gorm.ErrRegistered)
	}
	requireError(t, db.Use(idempotency.New(idempotency.Config{Table: "other"})), gorm.ErrRegistered)
	requireError(t, db.Use(renamed{plugin}), gorm.ErrRegistered)

	_, err := idempotency.Do(db, "s", "e", nil, func(tx *gorm.DB) error {
		return db.WithContext(tx.Statement.Context).Create(&order{Event: "e"}).Error
	})
	requireError(t, err, idempotency.ErrForeignWrite)
	if writes != 1 {
		t.Errorf("one foreign write was seen %d times", writes)
	}
	if lines := log.of("warn", "error"); len(lines) > 0 {
		t.Errorf("registering said: %q", lines)
	}
}

// renamed is a plugin under another name, which db.Use does not recognise.
type renamed struct{ *idempotency.Plugin }

func (renamed) Name() string { return "another" }

// Case C11: Config.Plugins is another way to register, under whatever name.
func TestPluginInGormConfig(t *testing.T) {
	t.Parallel()
	plugins := map[string]gorm.Plugin{"keys": idempotency.New(idempotency.Config{})}
	db, err := gorm.Open(postgres.Open(gormtest.DSN(t)), &gorm.Config{Logger: logger.Discard, Plugins: plugins})
	if err != nil {
		t.Fatal(err)
	}
	requireError(t, db.Use(idempotency.New(idempotency.Config{})), gorm.ErrRegistered)
	if _, err := idempotency.Do(db, "s", "e", nil, nothing); err != nil {
		t.Error(err)
	}
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	_ = pool.Close()
}

// Case C11: two handles over one pool have a plugin each, and know one another's keys; one plugin serves two databases,
// and keeps their keys apart.
func TestPluginsAndDatabases(t *testing.T) {
	t.Parallel()
	shared := idempotency.New(idempotency.Config{})
	first, second := openWith(t, shared), openWith(t, shared)
	pool, err := first.DB()
	if err != nil {
		t.Fatal(err)
	}
	twin := open(t, setup{driver: postgres.New(postgres.Config{Conn: pool})})

	for db, replayed := range map[*gorm.DB]bool{first: false, second: false} {
		if result, err := idempotency.Do(db, "s", "e", nil, nothing); err != nil || result.Replayed != replayed {
			t.Errorf("got %+v, %v; the key belongs to another database", result, err)
		}
	}
	if result, err := idempotency.Do(twin, "s", "e", nil, nothing); err != nil || !result.Replayed {
		t.Errorf("got %+v, %v; want the replay that the twin handle claimed", result, err)
	}
}

func openWith(t testing.TB, plugin *idempotency.Plugin) *gorm.DB {
	t.Helper()
	db, err := gorm.Open(postgres.Open(gormtest.DSN(t)), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		t.Fatal(err)
	}
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close() })
	if err := db.Use(plugin); err != nil {
		t.Fatal(err)
	}
	return db
}

// Case C11: one plugin may be registered on several databases at once.
func TestPluginIsRegisteredConcurrently(t *testing.T) {
	t.Parallel()
	plugin := idempotency.New(idempotency.Config{})
	var group sync.WaitGroup
	for range 8 {
		db := offline(t)
		group.Go(func() {
			if err := db.Use(plugin); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
}

// An option of one call is refused before any SQL, whatever else is right.
func TestOptionsThatAreRefused(t *testing.T) {
	t.Parallel()
	db, sent := openWired(t, setup{})
	for name, test := range map[string]struct {
		option idempotency.Option
		field  string
	}{
		"negative wait":      {idempotency.WithWait(-1), "WithWait"},
		"read-only":          {idempotency.WithTxOptions(&sql.TxOptions{ReadOnly: true}), "WithTxOptions"},
		"snapshot isolation": {idempotency.WithTxOptions(&sql.TxOptions{Isolation: sql.LevelSnapshot}), "WithTxOptions"},
		"linearizable":       {idempotency.WithTxOptions(&sql.TxOptions{Isolation: sql.LevelLinearizable}), "WithTxOptions"},
		"no level at all":    {idempotency.WithTxOptions(&sql.TxOptions{Isolation: 99}), "WithTxOptions"},
		"negative level":     {idempotency.WithTxOptions(&sql.TxOptions{Isolation: -1}), "WithTxOptions"},
		"write committed":    {idempotency.WithTxOptions(&sql.TxOptions{Isolation: sql.LevelWriteCommitted}), "WithTxOptions"},
		"most negative wait": {idempotency.WithWait(math.MinInt64), "WithWait"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := idempotency.Do(db, "s", "e", nil, unreachable(t), idempotency.WithWait(time.Second), test.option)
			requireError(t, err, idempotency.ErrInvalidConfig)
			var problem *idempotency.ConfigError
			if !errors.As(err, &problem) || problem.Field != test.field {
				t.Errorf("got %#v, want the field %s", problem, test.field)
			}
			sent.requireSilent(t)
		})
	}
	requireNoKey(t, db, "s", "e")
}

// unreachable is a handler that must not run.
func unreachable(t testing.TB) func(*gorm.DB) error {
	return func(*gorm.DB) error {
		t.Error("the handler ran")
		return nil
	}
}

// The zero Option does nothing, and the last of several wins.
func TestOptionsThatAreTaken(t *testing.T) {
	t.Parallel()
	db, sent := openWired(t, setup{})
	serializable := idempotency.WithTxOptions(&sql.TxOptions{Isolation: sql.LevelSerializable})
	for level, options := range map[string][]idempotency.Option{
		"read committed":   {{}, idempotency.WithTxOptions(nil), serializable, idempotency.WithTxOptions(&sql.TxOptions{})},
		"serializable":     {idempotency.WithTxOptions(nil), serializable, {}, idempotency.WithWait(-1), idempotency.WithWait(0)},
		"repeatable read":  {idempotency.WithTxOptions(&sql.TxOptions{Isolation: sql.LevelRepeatableRead}), idempotency.WithWait(math.MaxInt64)},
		"read uncommitted": {idempotency.WithTxOptions(&sql.TxOptions{Isolation: sql.LevelReadUncommitted})},
	} {
		_, err := idempotency.Do(db, "s", level, nil, func(tx *gorm.DB) error {
			if got := read[string](t, tx, "SELECT current_setting('transaction_isolation')"); got != level {
				t.Errorf("the handler runs at %s, want %s", got, level)
			}
			return nil
		}, options...)
		if err != nil {
			t.Errorf("%s: %v", level, err)
		}
	}
	sent.take()

	// A joined call cannot choose the level of a transaction that has begun.
	err := db.Transaction(func(tx *gorm.DB) error {
		sent.take()
		_, err := idempotency.Do(tx, "s", "joined", nil, unreachable(t), serializable)
		requireUnsupported(t, err)
		sent.requireSilent(t)
		return tx.Create(&order{Event: "joined"}).Error
	})
	if err != nil {
		t.Errorf("the caller's transaction is not usable: %v", err)
	}
}

// Case C14: every statement and the model use Config.Table, whatever the search path, prefixes and plurals say.
func TestQualifiedTableIsUsedByEverything(t *testing.T) {
	t.Parallel()
	naming := schema.NamingStrategy{TablePrefix: "app_", SingularTable: true}
	config := idempotency.Config{Table: "app.keys"}
	db := open(t, setup{config: config, gorm: gorm.Config{NamingStrategy: naming}})
	mustExec(t, db, `CREATE SCHEMA app`)
	mustExec(t, db, `CREATE TABLE keys (LIKE idempotency_keys INCLUDING ALL)`) // a decoy
	mustExec(t, db, `CREATE TABLE app_order (LIKE orders INCLUDING ALL)`)      // where the naming strategy puts the orders
	if err := db.AutoMigrate(&idempotency.IdempotencyKey{}); err != nil {
		t.Fatal(err)
	}
	if err := idempotency.CheckSchema(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := idempotency.Do(db, "s", "e", nil, placeOrder("e")); err != nil {
			t.Fatal(err)
		}
	}
	requireEffects(t, db, "e", 1)
	var found []idempotency.IdempotencyKey
	if err := db.Where("event_id = ?", "e").Find(&found).Error; err != nil || len(found) != 1 {
		t.Errorf("Find gives %d keys, %v", len(found), err)
	}
	if key, err := idempotency.Lookup(t.Context(), db, "s", "e"); err != nil || *key.ResponseStatus != 201 {
		t.Errorf("Lookup gives %+v, %v", key, err)
	}
	if got := read[int](t, db, `SELECT count(*) FROM app.keys`); got != 1 {
		t.Errorf("app.keys has %d rows, want 1", got)
	}
	if err := idempotency.Forget(t.Context(), db, "s", "e"); err != nil {
		t.Error(err)
	}
	if got := read[int](t, db, `SELECT count(*) FROM app.keys`); got != 0 {
		t.Errorf("app.keys has %d rows after Forget, want 0", got)
	}
	if _, err := idempotency.Do(db, "s", "e", nil, placeOrder("e")); err != nil {
		t.Fatal(err)
	}
	if err := db.Where("event_id = ?", "e").Delete(&idempotency.IdempotencyKey{}).Error; err != nil {
		t.Error(err)
	}
	if got := read[int](t, db, `SELECT (SELECT count(*) FROM app.keys) + (SELECT count(*) FROM keys) + (SELECT count(*) FROM idempotency_keys)`); got != 0 {
		t.Errorf("%d rows are left in app.keys or were put into a decoy", got)
	}
}
func nothing(*gorm.DB) error { return nil }
