package gormtest

import (
	osexec "os/exec"
	"strings"
	"testing"
)

// A user's tests assert with whatever they like: the kit brings no library for it into their binaries.
func TestKitBringsNoAssertionLibrary(t *testing.T) {
	t.Parallel()
	output, err := osexec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for path := range strings.FieldsSeq(string(output)) {
		for _, unwanted := range []string{"testify", "gomega", "ginkgo", "gocheck", "assert", "quicktest", "go-cmp"} {
			if strings.Contains(path, unwanted) {
				t.Errorf("the kit depends on %s", path)
			}
		}
	}
}
