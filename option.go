package idempotency

import (
	"database/sql"
	"fmt"
	"time"
)

// Option changes one call of [Do]. Its zero value does nothing; of two that set the same thing the last one wins.
type Option struct {
	apply func(*options)
}

type options struct {
	wait      time.Duration
	txOptions *sql.TxOptions
}

// WithWait sets how long this call waits for another delivery of the event that holds its key, instead of Config.Wait
// or SourceConfig.Wait. The value is literal: 0 does not wait. A negative one makes the call fail with a [ConfigError].
// A joined call never waits, whatever it says.
func WithWait(wait time.Duration) Option {
	return Option{apply: func(o *options) { o.wait = wait }}
}

// WithTxOptions sets the isolation level of the call's own transaction, which is READ COMMITTED by default. nil and
// sql.LevelDefault mean that default. At higher levels a duplicate may cost a restart of the transaction, and the
// handler may fail with SQLSTATE 40001, as any transaction there. A read-only transaction, or a level that PostgreSQL
// does not have, makes the call fail with a [ConfigError]; a joined call, whose transaction has begun, fails with
// [ErrUnsupported].
func WithTxOptions(txOptions *sql.TxOptions) Option {
	return Option{apply: func(o *options) { o.txOptions = txOptions }}
}

func (o *options) collect(opts []Option) error {
	for _, opt := range opts {
		if opt.apply != nil {
			opt.apply(o)
		}
	}
	return o.validate()
}

func (o *options) validate() error {
	if o.wait < 0 {
		return &ConfigError{Field: "WithWait", Reason: fmt.Sprintf("is %v, and must not be negative; 0 does not wait", o.wait)}
	}
	if o.txOptions == nil {
		return nil
	}
	if o.txOptions.ReadOnly {
		return &ConfigError{Field: "WithTxOptions", Reason: "asks for a read-only transaction, which cannot claim a key"}
	}
	switch o.txOptions.Isolation {
	case sql.LevelDefault, sql.LevelReadUncommitted, sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable:
		return nil
	}
	return &ConfigError{Field: "WithTxOptions", Reason: fmt.Sprintf("asks for isolation level %v, which PostgreSQL does not have", o.txOptions.Isolation)}
}

// readCommitted is asked for explicitly, since a role's default may differ, and a snapshot older than the holder's commit
// cannot see its answer.
var readCommitted = &sql.TxOptions{Isolation: sql.LevelReadCommitted}

// begin are the options of a transaction of our own.
func (o *options) begin() *sql.TxOptions {
	if o.txOptions == nil || o.txOptions.Isolation == sql.LevelDefault {
		return readCommitted
	}
	return o.txOptions
}
