package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorm-idempotency/idempotency"
)

// retention is what the command cannot know of an application's Config unless it is told: the flags --retention and
// --source.
type retention struct {
	common  period // 0: not given
	sources sourceFlag
}

// addFlags gives a command the flags.
func (r *retention) addFlags(command *cobra.Command) {
	command.Flags().Var(&r.common, "retention", "how long keys are kept, such as 720h or 30d: the application's Config.Retention")
	command.Flags().Var(&r.sources, "source", "another retention of one source, and how long its sender "+
		"keeps redelivering (once for each source)")
	noFiles(command, "retention", "source")
}

// given reports whether the command was told the retention of every source.
func (r *retention) given() bool { return r.common > 0 }

// config is the application's Config, as far as the flags tell. Without --retention its Retention is 0, which the library
// takes for its default: look at given first.
func (r *retention) config() idempotency.Config {
	return idempotency.Config{Retention: time.Duration(r.common), Sources: r.sources}
}

// period is a flag's value: a duration above zero, in Go's units and days. Zero is refused, since the library would take it
// for its default.
type period time.Duration

const day = 24 * time.Hour

// Set reads "720h", "30d" or "1d12h".
func (p *period) Set(text string) error {
	parsed, err := parsePeriod(text)
	if err == nil {
		*p = period(parsed)
	}
	return err
}

func parsePeriod(text string) (time.Duration, error) {
	var days time.Duration
	if number, rest, ok := strings.Cut(text, "d"); ok {
		count, err := strconv.ParseUint(number, 10, 32)
		if err != nil || count > uint64(math.MaxInt64/day) {
			return 0, errNoPeriod
		}
		days = time.Duration(count) * day
		text = cmp.Or(rest, "0")
	}
	rest, err := time.ParseDuration(text)
	total := days + rest
	switch {
	case err != nil, days > 0 && total < days: // a rest below zero, or too much
		return 0, errNoPeriod
	case total <= 0:
		return 0, errors.New("must be above zero")
	}
	return total, nil
}

var errNoPeriod = errors.New("want a number and a unit, such as 720h or 30d, of at most 292 years")

// String is the value in the help and in messages: in days where those are whole.
func (p *period) String() string {
	if *p == 0 {
		return ""
	}
	return formatPeriod(time.Duration(*p))
}

func formatPeriod(d time.Duration) string {
	if d >= 2*day && d%day == 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	text := d.String()
	if shorter, ok := strings.CutSuffix(text, "m0s"); ok {
		text = shorter + "m"
	}
	if shorter, ok := strings.CutSuffix(text, "h0m"); ok {
		text = shorter + "h"
	}
	return text
}

// Type is what the help calls a value of the flag.
func (*period) Type() string { return "AGE" }

// sourceFlag collects the sources that have a retention of their own.
type sourceFlag map[string]idempotency.SourceConfig

// Set reads NAME=AGE[/HORIZON]. The name may contain anything, so that the last equals sign ends it.
func (s *sourceFlag) Set(text string) error {
	at := strings.LastIndexByte(text, '=')
	if at < 1 {
		return errors.New("want NAME=AGE or NAME=AGE/HORIZON, such as stripe=30d/72h")
	}
	name := text[:at]
	if _, twice := (*s)[name]; twice {
		return fmt.Errorf("%q was given before", name)
	}
	age, horizon, hasHorizon := strings.Cut(text[at+1:], "/")
	var source idempotency.SourceConfig
	var err error
	if source.Retention, err = parsePeriod(age); err != nil {
		return fmt.Errorf("the retention of %q: %w", name, err)
	}
	if hasHorizon {
		if source.RetryHorizon, err = parsePeriod(horizon); err != nil {
			return fmt.Errorf("the horizon of %q: %w", name, err)
		}
		if source.Retention <= source.RetryHorizon {
			return fmt.Errorf("the retention of %q is %s, and must exceed its sender's retry horizon of %s: a later redelivery would take effect again",
				name, formatPeriod(source.Retention), formatPeriod(source.RetryHorizon))
		}
	}
	if *s == nil {
		*s = make(sourceFlag)
	}
	(*s)[name] = source
	return nil
}

// String is empty, since there is no default to show in the help.
func (*sourceFlag) String() string { return "" }

// Type is what the help calls a value of the flag.
func (*sourceFlag) Type() string { return "NAME=AGE[/HORIZON]" }
