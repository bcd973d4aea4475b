package gormtest

import (
	"fmt"
	"runtime"
	"strings"
)

// notTheirs are the packages whose frames stand between a request and the line of the user's code that asked for it.
var notTheirs = []string{
	"runtime.", "runtime/pprof.", "database/sql.", "net/http.", "net/http/httptest.",
	"gorm.io/gorm.", "gorm.io/gorm/", "gorm.io/driver/", "github.com/jackc/pgx/",
	"github.com/gorm-idempotency/idempotency.", "github.com/gorm-idempotency/idempotency/gormtest.",
}

// isTheirs reports whether a frame is of the user's code.
func isTheirs(function, file string) bool {
	if strings.HasSuffix(file, "_test.go") {
		return true
	}
	for _, prefix := range notTheirs {
		if strings.HasPrefix(function, prefix) {
			return false
		}
	}
	return file != ""
}

// caller is the innermost line of the user's code, "" if there is none.
func caller() string {
	counters := make([]uintptr, 96)
	frames := runtime.CallersFrames(counters[:runtime.Callers(2, counters)])
	for {
		frame, more := frames.Next()
		if isTheirs(frame.Function, frame.File) {
			return fmt.Sprintf("%s:%d", frame.File, frame.Line)
		}
		if !more {
			return ""
		}
	}
}
