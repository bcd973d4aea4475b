package main

import (
	"strings"
	"testing"
	"time"
)

func TestParsePeriod(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"720h": 720 * time.Hour, "30d": 720 * time.Hour, "1d12h": 36 * time.Hour, "90m": 90 * time.Minute, "1d0h": day,
		"106751d23h": 106751*day + 23*time.Hour, "0d1s": time.Second,
	} {
		if got, err := parsePeriod(text); err != nil || got != want {
			t.Errorf("%q: got %v, %v; want %v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"0": "above zero", "0h": "above zero", "0d": "above zero", "-1h": "above zero",
		"": "a number and a unit", "30": "a number and a unit", "d": "a number and a unit", "-1d": "a number and a unit",
		"1d-1h": "a number and a unit", "1.5d": "a number and a unit", "1d1d": "a number and a unit", "30 d": "a number and a unit",
		"300000d": "at most 292 years", "106751d24h": "at most 292 years", "9999999999h": "at most 292 years",
		"18446744073709551616d": "at most 292 years", "99999999999999999999h": "at most 292 years",
	} {
		if got, err := parsePeriod(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, %v; want %q", text, got, err, want)
		}
	}
}

func TestFormatPeriod(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]time.Duration{
		"30d": 30 * day, "24h": day, "36h": 36 * time.Hour, "1h30m": 90 * time.Minute, "1h0m1s": time.Hour + time.Second, "10s": 10 * time.Second,
		"10m": 10 * time.Minute, "20h": 20 * time.Hour,
	} {
		if got := formatPeriod(d); got != want {
			t.Errorf("%v is shown as %q, want %q", d, got, want)
		}
	}
}

func TestSourceFlag(t *testing.T) {
	t.Parallel()
	var sources sourceFlag
	for _, text := range []string{"stripe=45d/30d", "a=b/c=1h"} {
		if err := sources.Set(text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	if s := sources["stripe"]; s.Retention != 45*day || s.RetryHorizon != 30*day {
		t.Errorf("stripe: %+v", s)
	}
	if s := sources["a=b/c"]; s.Retention != time.Hour || s.RetryHorizon != 0 {
		t.Errorf("a=b/c: %+v", s)
	}
	for text, want := range map[string]string{
		"": "NAME=AGE", "stripe": "NAME=AGE", "=1h": "NAME=AGE", "stripe=1h": "was given before",
		"x=": "retention of \"x\"", "x=0": "above zero", "x=1h/": "horizon of \"x\"", "x=1h/0": "horizon of \"x\"", "x=1h/2h/3h": "horizon of \"x\"",
	} {
		if err := sources.Set(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
