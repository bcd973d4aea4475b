package gormtest

import (
	"context"
	"io"
)

// testingT is what the kit's assertions need of a test. [testing.TB] has a method that nobody else can have, so it is this
// that the kit's own tests stand in for, to look at how an assertion fails.
type testingT interface {
	Helper()
	Name() string
	Context() context.Context
	Cleanup(fn func())
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
	Output() io.Writer
	Fail()
}
