package idempotency_test

import (
	osexec "os/exec"
	"strings"
	"testing"
)

// The root package imports the standard library, GORM and what that needs, and our own internal packages: no driver, no
// migration tool, no web server. An application that registers the plugin links nothing else.
func TestRootPackageImportsGormAlone(t *testing.T) {
	t.Parallel()
	const module = "github.com/gorm-idempotency/idempotency"
	command := osexec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{.ImportPath}} {{.Standard}}", module)
	output, err := command.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	allowed := []string{"gorm.io/gorm/", "github.com/jinzhu/inflection/", "github.com/jinzhu/now/", "golang.org/x/text/", module + "/internal/"}
	unwanted := []string{"net/http/", "testing/"} // of the standard library
	seen := 0
	for line := range strings.Lines(string(output)) {
		path, standard, _ := strings.Cut(strings.TrimSpace(line), " ")
		seen++
		switch {
		case path == module:
		case standard == "true" && !hasPrefix(path+"/", unwanted):
		case standard == "false" && hasPrefix(path+"/", allowed) && path != module+"/internal/pglocal":
		default:
			t.Errorf("the root package depends on %s", path)
		}
	}
	if seen < 50 {
		t.Errorf("go list names %d packages: %s", seen, output)
	}
}

func hasPrefix(path string, prefixes []string) bool {
	for _, prefix := range prefixes {
		if strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return false
}
