package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/gorm-idempotency/idempotency/internal/pgsql"
)

// pgbench is PostgreSQL's own benchmark. It runs the library's statements with nothing around them, and so it tells what
// the server can do on this machine.
type pgbench struct {
	program  string
	database *database
	folder   string // of the script
}

var errNoPgbench = errors.New("pgbench, which comes with PostgreSQL's programs, was not found: its figures are missing")

// newPgbench writes the script. The arguments of the statements are variables, so that they are prepared once.
func newPgbench(d *database) (_ *pgbench, err error) {
	p := &pgbench{database: d}
	if p.program = findPgbench(); p.program == "" {
		return nil, errNoPgbench
	}
	if p.folder, err = os.MkdirTemp("", "idempotency-bench-"); err != nil {
		return nil, fmt.Errorf("write pgbench's script: %w", err)
	}
	if err := os.WriteFile(p.script(), []byte(pgbenchScript()), 0o600); err != nil {
		p.close()
		return nil, fmt.Errorf("write pgbench's script: %w", err)
	}
	return p, nil
}

func (p *pgbench) close() { _ = os.RemoveAll(p.folder) }

func (p *pgbench) script() string { return filepath.Join(p.folder, "delivery.sql") }

// findPgbench looks beside the other programs first: what PATH has may be a wrapper.
func findPgbench() string {
	if folder, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		program := filepath.Join(strings.TrimSpace(string(folder)), "pgbench")
		if _, err := os.Stat(program); err == nil {
			return program
		}
	}
	program, _ := exec.LookPath("pgbench")
	return program
}

const pgbenchName = "pgbench, the same statements"

// pgbenchScript is a delivery with an answer: a transaction of the claim, the business write and the completion.
func pgbenchScript() string {
	statements := pgsql.Render(pgsql.Table{Name: pgsql.DefaultTable})
	claim := strings.NewReplacer("$1", ":source", "$2", ":event", "$3", ":digest", "$4", ":lock").Replace(statements.Claim)
	complete := strings.NewReplacer("$1", ":source", "$2", ":event", "$3", ":status", "$4", "NULL", "$5", ":body", "$6", ":json").
		Replace(statements.Complete)
	return `\set event random(1, 9000000000000000000)
\set lock hash(:event)
BEGIN ISOLATION LEVEL READ COMMITTED;
` + claim + `;
INSERT INTO "orders" ("arm","event") VALUES (:arm,:event) RETURNING "id";
` + complete + `;
COMMIT;
`
}

// arm runs the deliveries in pgbench. Of each of them it tells no latency.
func (p *pgbench) arm() arm { return arm{name: pgbenchName, effects: onceEach, elsewhere: p.run} }

// pgbenchTimes is how many times as many deliveries it runs as the other arms: their connections and statements are there,
// and it begins with new ones.
const pgbenchTimes = 10

func (p *pgbench) run(ctx context.Context, workers, deliveries int) (batch, error) {
	each := max(1, deliveries/workers) * pgbenchTimes
	digest := sha256.Sum256(payload)
	command := exec.CommandContext(ctx, p.program, //nolint:gosec // found beside the server's programs
		"--no-vacuum", "--protocol=prepared", "--file="+p.script(),
		"--client="+strconv.Itoa(workers), "--jobs="+strconv.Itoa(min(workers, runtime.NumCPU())), "--transactions="+strconv.Itoa(each),
		"--define=source="+source, "--define=arm="+pgbenchName, "--define=digest="+fmt.Sprintf(`\x%x`, digest),
		"--define=status="+strconv.Itoa(answerStatus), "--define=body="+string(answer), "--define=json=true")
	config := p.database.server.config
	command.Env = append(os.Environ(), "PGHOST="+config.Host, "PGPORT="+strconv.Itoa(int(config.Port)),
		"PGUSER="+config.User, "PGPASSWORD="+config.Password, "PGDATABASE="+p.database.name, "PGSSLMODE=disable", "LC_ALL=C")
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	command.WaitDelay = connectTimeout
	output, err := command.CombinedOutput()
	if ctx.Err() != nil {
		return batch{}, ctx.Err()
	}
	if err != nil {
		return batch{}, fmt.Errorf("pgbench: %w: %s", err, output)
	}
	return readPgbench(string(output), int64(workers*each))
}

// Both are the rate without the time that connecting takes: of version 14 and later, and of those before.
var pgbenchRate = regexp.MustCompile(`tps = ([0-9.]+) \((?:without initial connection time|excluding connections establishing)\)`)

func readPgbench(output string, deliveries int64) (batch, error) {
	found := pgbenchRate.FindStringSubmatch(output)
	if found == nil {
		return batch{}, fmt.Errorf("pgbench says nothing of its rate: %s", output)
	}
	rate, err := strconv.ParseFloat(found[1], 64)
	if err != nil || rate <= 0 {
		return batch{}, fmt.Errorf("pgbench's rate is %q", found[1])
	}
	return batch{deliveries: deliveries, elapsed: time.Duration(float64(deliveries) / rate * float64(time.Second))}, nil
}
