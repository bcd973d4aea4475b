package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"
)

// Results are what a run measured, as results.json has them.
type Results struct {
	Began       time.Time `json:"began"`
	Seconds     float64   `json:"seconds"`
	Size        string    `json:"size"`
	Interrupted bool      `json:"interrupted"`
	Machine     Machine   `json:"machine"`
	Groups      []Group   `json:"groups"`
	Figures     []Figure  `json:"figures"`
}

// Machine is what it was measured on. It has no names of hosts or folders.
type Machine struct {
	System     string            `json:"system"`
	Cores      int               `json:"cores"`
	Go         string            `json:"go"`
	PostgreSQL string            `json:"postgresql"`
	Settings   map[string]string `json:"settings,omitempty"` // of the server, if it is the benchmark's own
}

func thisMachine(s *server) Machine {
	m := Machine{System: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.NumCPU(), Go: runtime.Version(), PostgreSQL: s.version}
	if s.local != nil {
		m.Settings = s.settings
	}
	return m
}

// Group is one measurement of several arms, which can be compared with each other: a table, and a plot.
type Group struct {
	Name      string   `json:"name"`
	Title     string   `json:"title"`
	Unit      string   `json:"unit"`                // of its values
	Axis      string   `json:"axis,omitempty"`      // what the settings are; empty if there is one alone
	Reference string   `json:"reference,omitempty"` // the arm that the others are divided by
	Series    []Series `json:"series"`
	Notes     []string `json:"notes,omitempty"`
}

// Series is an arm's values at one setting, one a round.
type Series struct {
	Arm     string  `json:"arm"`
	Setting string  `json:"setting,omitempty"`
	At      float64 `json:"at"` // the setting as a number
	Spread
	Rounds []float64 `json:"rounds"`
}

// add takes an arm's values. Without any, where a run was interrupted, there is nothing to take.
func (g *Group) add(arm, setting string, at float64, rounds []float64) {
	if len(rounds) == 0 {
		return
	}
	g.Series = append(g.Series, Series{Arm: arm, Setting: setting, At: at, Spread: spreadOf(rounds), Rounds: rounds})
}

func (g *Group) find(arm, setting string) (Series, bool) {
	i := slices.IndexFunc(g.Series, func(s Series) bool { return s.Arm == arm && s.Setting == setting })
	if i < 0 {
		return Series{}, false
	}
	return g.Series[i], true
}

// ratio divides an arm by another one at the same setting, round by round.
func (g *Group) ratio(of, to, setting string) (Spread, bool) {
	a, found := g.find(of, setting)
	b, also := g.find(to, setting)
	if !found || !also {
		return Spread{}, false
	}
	return spreadOf(ratios(a.Rounds, b.Rounds)), true
}

// arms and settings are in the order in which they were measured.
func (g *Group) arms() []string {
	return distinct(g.Series, func(s Series) string { return s.Arm })
}

func (g *Group) settings() []string {
	return distinct(g.Series, func(s Series) string { return s.Setting })
}

func distinct(series []Series, of func(Series) string) []string {
	var found []string
	for _, s := range series {
		if !slices.Contains(found, of(s)) {
			found = append(found, of(s))
		}
	}
	return found
}

func (r *Results) group(name string) *Group {
	i := slices.IndexFunc(r.Groups, func(g Group) bool { return g.Name == name })
	if i < 0 {
		return &Group{}
	}
	return &r.Groups[i]
}

const resultsFile = "results.json"

// write puts the results and their plots into a folder.
func (r *Results) write(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil { //nolint:gosec // it is for everyone
		return fmt.Errorf("write the results: %w", err)
	}
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	if err := os.WriteFile(filepath.Join(folder, resultsFile), append(text, '\n'), 0o644); err != nil { //nolint:gosec // they are for everyone
		return fmt.Errorf("write the results: %w", err)
	}
	for i := range r.Groups {
		if err := drawGroup(&r.Groups[i], filepath.Join(folder, r.Groups[i].Name+".svg")); err != nil {
			return fmt.Errorf("draw %s: %w", r.Groups[i].Name, err)
		}
	}
	return nil
}

func readResults(folder string) (*Results, error) {
	text, err := os.ReadFile(filepath.Join(folder, resultsFile)) //nolint:gosec // the user's own folder
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	r := &Results{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	return r, nil
}
