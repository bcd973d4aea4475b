package pipeline

import (
	"database/sql/driver"
	"io"

	"github.com/jackc/pgx/v5"
)

// rows are those of a statement that travelled with others: all of them have been read, since the connection is not free
// for anything else before.
type rows struct {
	columns []string
	left    [][]any
}

func readAll(answer pgx.Rows) (*rows, error) {
	defer answer.Close()
	read := &rows{}
	for _, field := range answer.FieldDescriptions() {
		read.columns = append(read.columns, field.Name)
	}
	for answer.Next() {
		values, err := answer.Values()
		if err != nil {
			return nil, err
		}
		read.left = append(read.left, values)
	}
	return read, answer.Err()
}

// Columns implements driver.Rows.
func (r *rows) Columns() []string { return r.columns }

// Close implements driver.Rows.
func (r *rows) Close() error { return nil }

// Next implements driver.Rows.
func (r *rows) Next(into []driver.Value) error {
	if len(r.left) == 0 {
		return io.EOF
	}
	for i, value := range r.left[0] {
		into[i] = value
	}
	r.left = r.left[1:]
	return nil
}
