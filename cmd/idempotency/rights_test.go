package main

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// role creates a role, and returns its name and a database that it connects to.
func (k *keys) role(t *testing.T) (name string, its *keys) {
	t.Helper()
	name = "rights_" + strconv.FormatInt(time.Now().UnixNano(), 36)
	k.exec(t, "CREATE ROLE "+name)
	t.Cleanup(func() { k.exec(t, "DROP OWNED BY "+name); k.exec(t, "DROP ROLE "+name) })
	return name, &keys{dsn: k.dsn + "&role=" + name}
}

// A service that calls Up as it starts needs no more than what docs/migrations.md grants, where there is nothing to do.
func TestMigrateUp_WithTheDocumentedRights(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/migrations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rights, _ := strings.Cut(string(text), "\n## Rights\n")
	_, rights, _ = strings.Cut(rights, "```sql\n")
	rights, _, _ = strings.Cut(rights, "```")

	k := newKeys(t)
	role, its := k.role(t)
	k.exec(t, strings.ReplaceAll(rights, "app_service", role))
	if status, stdout, stderr := its.call(t, "migrate", "up"); status != 0 || !strings.HasPrefix(stdout, "nothing to do: ") {
		t.Errorf("with the documented rights: status %d\n%s%s", status, stdout, stderr)
	}
	k.exec(t, "REVOKE SELECT ON idempotency_goose_version FROM "+role)
	if status, stdout, _ := its.call(t, "migrate", "up"); status != exitFailed {
		t.Errorf("the right to read the versions is not needed: %s", stdout)
	}
}
