package demo

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// maxFiles keeps a demo a demo.
const maxFiles = 100

// maxEventID is the library's limit, in bytes.
const maxEventID = 1024

// readFolder makes an event of each .json file in a folder.
func readFolder(folder string, seed uint64) ([]*event, error) {
	names, err := jsonFiles(folder)
	if err != nil {
		return nil, err
	}
	var events []*event
	seen := map[eventKey]string{}
	for i, name := range names {
		e, err := readFile(folder, name, seed)
		if err != nil {
			return nil, err
		}
		if other, twice := seen[e.key()]; twice {
			return nil, fmt.Errorf("%s and %s have the same event id, %q: an id names one event, so remove one of the files",
				other, name, e.id)
		}
		seen[e.key()] = name
		e.scenario = scenarios[i%len(scenarios)]
		events = append(events, e)
	}
	return events, nil
}

func jsonFiles(folder string) ([]string, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, fmt.Errorf("--payloads must name a folder that can be read: %w", err)
	}
	var names []string
	for _, entry := range entries {
		if strings.EqualFold(filepath.Ext(entry.Name()), ".json") && !entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	switch {
	case len(names) == 0:
		return nil, fmt.Errorf("there is no .json file in %s: put one webhook's body in each file, or leave out --payloads", folder)
	case len(names) > maxFiles:
		return nil, fmt.Errorf("there are %d .json files in %s, and the demo takes at most %d: name a smaller folder with --payloads",
			len(names), folder, maxFiles)
	}
	return names, nil
}

func readFile(folder, name string, seed uint64) (*event, error) {
	path := filepath.Join(folder, name)
	body, err := readBody(path)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(body, new(any)); err != nil {
		return nil, fmt.Errorf("%s is not JSON (%w): correct it, or take it out of the folder", path, err)
	}
	e := newEvent(name, body, func(s *sender) string {
		if s.idInBody != nil { // and has none: the file's name is as good, where a header can hold it
			return url.PathEscape(strings.TrimSuffix(name, filepath.Ext(name)))
		}
		return s.newID(randomFor(seed, name))
	})
	if len(e.id) > maxEventID || strings.Contains(e.id, "\x00") {
		return nil, fmt.Errorf("%s has an event id that cannot be a key, of %d bytes: an id has at most %d, and no NUL",
			path, len(e.id), maxEventID)
	}
	return e, nil
}

func readBody(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = errors.New("it is not a regular file")
	case info.Size() > maxBody/2: // a changed body is longer
		err = fmt.Errorf("it has %d bytes, and the demo takes at most %d", info.Size(), maxBody/2)
	default:
		var body []byte
		if body, err = os.ReadFile(path); err == nil { //nolint:gosec // the user names the folder
			return body, nil
		}
	}
	var failed *fs.PathError
	if errors.As(err, &failed) {
		err = failed.Err
	}
	return nil, fmt.Errorf("%s cannot be used: %w; correct it, or take it out of the folder", path, err)
}

func (e *event) httpHeader() http.Header {
	header := http.Header{"Content-Type": {"application/json"}}
	for name, value := range e.header {
		header.Set(name, value)
	}
	return header
}
