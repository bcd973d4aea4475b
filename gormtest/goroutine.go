package gormtest

import (
	"bytes"
	"context"
	"regexp"
	"runtime/pprof"
	"strings"
	"time"
)

// goroutineLabel marks the goroutine of a delivery. Goroutines inherit the labels of the one that starts them, so those that
// the code under test leaves behind can be told from those of other tests.
const goroutineLabel = "gormtest"

// labelled runs fn with a label of the trial's own.
func labelled(ctx context.Context, id string, fn func(context.Context)) {
	pprof.Do(ctx, pprof.Labels(goroutineLabel, id), fn)
}

// running are the places at which goroutines with this label are, each the innermost line of the user's code.
func running(id string) (places []string) {
	var profile bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		return nil
	}
	for group := range strings.SplitSeq(profile.String(), "\n\n") {
		if strings.Contains(group, `"`+goroutineLabel+`":"`+id+`"`) {
			if place, theirs := placeOf(group); theirs {
				places = append(places, place)
			}
		}
	}
	return places
}

// profileFrame is a line of the profile's text: an address, a function with an offset, a file and a line.
var profileFrame = regexp.MustCompile(`(?m)^#\s+0x[0-9a-f]+\s+(\S+)\+0x[0-9a-f]+\s+(.+:\d+)$`)

// placeOf finds where a goroutine is. One that a driver or a client of HTTP keeps for its connections is none of the
// user's: it began in their code.
func placeOf(group string) (place string, theirs bool) {
	frames := profileFrame.FindAllStringSubmatch(group, -1)
	if len(frames) == 0 {
		return "", false
	}
	outermost := frames[len(frames)-1]
	for _, keeper := range []string{"net/http.", "database/sql.", "github.com/jackc/"} {
		if strings.HasPrefix(outermost[1], keeper) {
			return "", false
		}
	}
	for _, frame := range frames {
		function, file := frame[1], frame[2]
		if isTheirs(function, file[:strings.LastIndexByte(file, ':')]) && !isStandard(function) {
			return file, true
		}
	}
	return outermost[2], true
}

// isStandard reports whether a function is in the standard library, as far as its name tells.
func isStandard(function string) bool {
	for _, prefix := range []string{"internal/", "sync.", "time.", "io.", "net.", "os.", "syscall.", "context.", "testing."} {
		if strings.HasPrefix(function, prefix) {
			return true
		}
	}
	return false
}

// lingering waits until no goroutine with this label is left, and returns where those are that don't end.
func lingering(id string, limit time.Duration) []string {
	for deadline := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
		places := running(id)
		if len(places) == 0 || time.Now().After(deadline) {
			return places
		}
	}
}
