package gormtest

import (
	"reflect"
	"regexp"

	"github.com/DATA-DOG/go-sqlmock"
)

// text is a statement as the mock's matcher wants it: as it is, or as a regular expression that matches nothing else.
func (e Expectations) text(statement string) string {
	if comparesText(e.mock) {
		return statement
	}
	return "^" + regexp.QuoteMeta(statement) + "$"
}

// comparesText reports whether a mock has another matcher than go-sqlmock's default. No method tells, and asking by a
// trial would leave expectations in the queue, so the field is looked at. A mock may be wrapped, as [Mock] wraps its own.
func comparesText(mock any) bool {
	fields := reflect.Indirect(reflect.ValueOf(mock))
	if fields.Kind() != reflect.Struct {
		return false
	}
	if matcher := fields.FieldByName("queryMatcher"); matcher.IsValid() {
		return !isRegexp(matcher)
	}
	wrapped := fields.FieldByName("Sqlmock")
	return wrapped.IsValid() && wrapped.CanInterface() && comparesText(wrapped.Interface())
}

func isRegexp(matcher reflect.Value) bool {
	for matcher.Kind() == reflect.Interface {
		matcher = matcher.Elem()
	}
	return matcher.Kind() == reflect.Func && matcher.Pointer() == reflect.ValueOf(sqlmock.QueryMatcherRegexp).Pointer()
}
