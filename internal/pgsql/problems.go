package pgsql

import "errors"

// Problems are what CheckSchema found wrong, a sentence each; none in any other error.
func Problems(err error) []string {
	var wrong *schemaError
	if !errors.As(err, &wrong) {
		return nil
	}
	return wrong.problems
}
