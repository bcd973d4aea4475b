package pgsql

import (
	"errors"
	"strings"
)

// State is err's SQLSTATE, or "". It is read through an interface, so that pgx, lib/pq and errors that wrap theirs all
// classify alike.
func State(err error) string {
	var coded interface{ SQLState() string }
	if errors.As(err, &coded) {
		return coded.SQLState()
	}
	return ""
}

// Restartable reports whether err asks for the transaction to be started over: a serialization failure or a deadlock.
func Restartable(err error) bool {
	switch State(err) {
	case "40001", "40P01":
		return true
	}
	return false
}

// NotOneRow reports whether Statements.CompleteOne failed by itself, since it did not change exactly one row.
func NotOneRow(err error) bool { return State(err) == "22012" } // division_by_zero

// WrongSchema reports whether a statement of ours failed because the table is missing or is not the one that the
// migrations create.
func WrongSchema(err error) bool {
	switch State(err) {
	case "42P01", // undefined_table
		"42703", // undefined_column
		"42804", // datatype_mismatch
		"42P10", // no unique constraint matches ON CONFLICT
		"42809", // wrong_object_type
		"3F000", // invalid_schema_name
		"55000": // ON CONFLICT with a deferrable constraint
		return true
	}
	return false
}

// failedTransaction are the texts of the drivers' own errors for a COMMIT that the server answered with ROLLBACK. They
// have no SQLSTATE, and are certain: pgx's ErrTxCommitRollback and lib/pq's errInFailedTransaction.
var failedTransaction = []string{
	"commit unexpectedly resulted in rollback",
	"could not complete operation in a failed transaction",
}

// CertainlyRolledBack reports whether an error of COMMIT proves that nothing was committed. Anything else may mean that
// the server committed and its answer was lost: a connection that broke, a server that was going down, a context that
// ended while COMMIT was on its way.
func CertainlyRolledBack(err error) bool {
	if state := State(err); state != "" {
		return !leavesOutcomeOpen(state)
	}
	text := strings.ToLower(err.Error())
	for _, certain := range failedTransaction {
		if strings.Contains(text, certain) {
			return true
		}
	}
	return false
}

// leavesOutcomeOpen is true for connection exceptions, operator intervention, system and internal errors, and for
// statement_completion_unknown.
func leavesOutcomeOpen(state string) bool {
	if state == "40003" {
		return true
	}
	for _, class := range []string{"08", "57P", "58", "XX"} {
		if strings.HasPrefix(state, class) {
			return true
		}
	}
	return false
}
