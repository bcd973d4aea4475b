package main

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"strings"
)

// A document has places for what was measured: what is between these two lines is replaced by the table of that name.
var places = regexp.MustCompile(`(?s)(<!-- measured: ([a-z-]+) -->\n).*?(<!-- end -->)`)

// figuresName is the place of the figures that the project has set itself, and machineName of what it was measured on.
const (
	figuresName = "figures"
	machineName = "machine"
)

// document puts the tables into a document's places, and leaves those of which nothing was measured as they are.
func (r *Results) document(text string) string {
	return places.ReplaceAllStringFunc(text, func(found string) string {
		parts := places.FindStringSubmatch(found)
		measured := r.markdown(parts[2])
		if measured == "" {
			return found
		}
		return parts[1] + "\n" + measured + "\n" + parts[3]
	})
}

func (r *Results) markdown(name string) string {
	switch name {
	case figuresName:
		return figuresTable(r.Figures).markdown()
	case machineName:
		return r.Machine.sentence(r)
	}
	g := r.group(name)
	if len(g.Series) == 0 {
		return ""
	}
	return g.table().markdown()
}

func (m Machine) sentence(r *Results) string {
	text := fmt.Sprintf("Measured in one run of %s (size: %s) on %s, %s, PostgreSQL %s on the loopback interface, %s.\n",
		count(max(1, int(math.Round(r.Seconds/60))), "minute"), r.Size, count(m.Cores, "core"), m.System, m.PostgreSQL, m.Go) // seconds
	if strings.HasPrefix(r.Size, short.name) {
		text += "**A short run shows that everything works, and its figures mean nothing else.**\n"
	}
	return text
}

// updateDocument rewrites a document in place.
func (r *Results) updateDocument(path string) error {
	text, err := os.ReadFile(path) //nolint:gosec // the user's own file
	if err != nil {
		return fmt.Errorf("update the document: %w", err)
	}
	if err := os.WriteFile(path, []byte(r.document(string(text))), 0o600); err != nil { //nolint:gosec // it exists, and keeps its mode
		return fmt.Errorf("update the document: %w", err)
	}
	return nil
}
