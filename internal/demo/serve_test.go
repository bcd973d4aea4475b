package demo

import (
	"bytes"
	"context"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorm-idempotency/idempotency/gormtest"
)

// screenBuffer is written by the demo and read by the test.
type screenBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *screenBuffer) Write(text []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(text)
}

func (b *screenBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// await polls until the screen shows a text.
func (b *screenBuffer) await(t *testing.T, text string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if strings.Contains(b.String(), text) {
			return
		}
	}
	t.Fatalf("no %q on\n%s", text, b)
}

// The printed commands are run as a reader would.
func TestServe_CommandsWork(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed: the commands cannot be tried here")
	}
	var screen screenBuffer
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	ended, dsn := make(chan error, 1), gormtest.DSN(t)
	go func() {
		ended <- Run(ctx, Options{
			DSN: dsn, Payloads: writeFiles(t, map[string]string{"a.json": `{}`}), Serve: true, Screen: Screen{Out: &screen},
		})
	}()
	screen.await(t, "Ctrl-C ends the demo.")
	requireNarrow(t, screen.String())

	commands := printedCommands(screen.String())
	if len(commands) != 5 {
		t.Fatalf("%d commands on\n%s", len(commands), &screen)
	}
	first, second := shell(t, commands[0]), shell(t, commands[0])
	if !strings.HasPrefix(first, "HTTP/1.1 201") || answerBody(first) != answerBody(second) {
		t.Errorf("the same delivery twice:\n%s\n%s", first, second)
	}
	if out := shell(t, commands[1]); !strings.HasPrefix(out, "HTTP/1.1 422") {
		t.Errorf("another body:\n%s", out)
	}
	if out := shell(t, commands[2]); !strings.HasPrefix(out, "HTTP/1.1 400") {
		t.Errorf("no id:\n%s", out)
	}
	ten := shell(t, commands[3]) // the lines of ten processes, which may break anywhere but within an answer
	one, _, _ := strings.Cut(ten, "}")
	if strings.Count(ten, one+"}") != 10 || strings.Count(ten, "}") != 10 {
		t.Errorf("ten at once:\n%s", ten)
	}
	if !strings.HasPrefix(commands[4], "psql ") || !strings.Contains(commands[4], "idempotency_keys'") {
		t.Errorf("psql: %s", commands[4])
	}
	screen.await(t, "others msg-1: claimed, ran the handler, committed")
	screen.await(t, "others msg-1: refused: the body has changed")

	interrupt()
	if err := <-ended; err != nil {
		t.Errorf("the interrupt ended it with %v", err)
	}
	requireNothingLeft(t, dsn)
}

// printedCommands are the lines after each comment.
func printedCommands(screen string) []string {
	var commands []string
	for _, part := range strings.Split(screen, "\n  # ")[1:] {
		_, command, _ := strings.Cut(part, "\n")
		command, _, _ = strings.Cut(command, "\n\n")
		commands = append(commands, strings.TrimSpace(command))
	}
	return commands
}

func shell(t *testing.T, command string) string {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), "sh", "-c", command).Output()
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return string(output)
}

func answerBody(answer string) string {
	_, body, _ := strings.Cut(answer, "\r\n\r\n")
	return body
}
