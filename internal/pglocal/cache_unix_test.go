//go:build unix

package pglocal

import (
	"net/url"
	"testing"
)

// An upgrade of embedded-postgres that renames the field must not leave us without a repository.
func TestDefaultRepository(t *testing.T) {
	t.Parallel()
	repository, err := url.Parse(defaultRepository())
	if err != nil || repository.Scheme != "https" || repository.Host == "" {
		t.Errorf("got %q, %v", defaultRepository(), err)
	}
}
