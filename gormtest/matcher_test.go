package gormtest

import (
	"errors"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"
	"gorm.io/gorm"

	"github.com/gorm-idempotency/idempotency"
)

// wrapped is a mock in a type of the application's.
type wrapped struct {
	sqlmock.Sqlmock
}

// A mock is asked for its matcher, wherever it is. One of the application's own gets text.
func TestMatcherOfAMockIsFound(t *testing.T) {
	t.Parallel()
	own := sqlmock.QueryMatcherFunc(func(expected, actual string) error {
		if expected != actual {
			return errors.New("they differ")
		}
		return nil
	})
	for _, test := range []struct {
		name    string
		matcher sqlmock.QueryMatcher
		text    bool
	}{
		{"the default", nil, false},
		{"regexp", sqlmock.QueryMatcherRegexp, false},
		{"equal", sqlmock.QueryMatcherEqual, true},
		{"a function of the application's", own, true},
		{"a type of the application's", ownMatcher{}, true},
	} {
		db, mock := scripted(t, test.matcher, gorm.Config{}, notWaiting)
		for name, given := range map[string]sqlmock.Sqlmock{
			"bare": mock, "wrapped": wrapped{mock}, "by pointer": &wrapped{&wrapped{mock}}, "a Mock": &Mock{Sqlmock: mock},
		} {
			if got := comparesText(given); got != test.text {
				t.Errorf("%s, %s: compares text: %t, want %t", test.name, name, got, test.text)
			}
			Expect(given).Claim("stripe", "evt_1").Won().Answers(200, 1).Commits()
			_, _, err := idempotency.DoValue(db, "stripe", "evt_1", nil, func(*gorm.DB) (int, error) { return 1, nil })
			if err != nil {
				t.Errorf("%s, %s: %v", test.name, name, err)
			}
			requireMet(t, mock)
		}
	}
}

// ownMatcher is not a function, as sqlmock's are.
type ownMatcher struct{}

func (ownMatcher) Match(expected, actual string) error {
	return sqlmock.QueryMatcherEqual.Match(expected, actual)
}

// What is no mock of go-sqlmock's is taken to match as that does by default.
func TestUnknownMockComparesAsUsual(t *testing.T) {
	t.Parallel()
	var none *wrapped
	number := 1
	for _, mock := range []any{nil, none, &number, wrapped{}, struct{ Sqlmock int }{1}} {
		if comparesText(mock) {
			t.Errorf("%T: compares text", mock)
		}
	}
}
