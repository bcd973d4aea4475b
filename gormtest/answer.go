package gormtest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gorm-idempotency/idempotency"
)

// answer is what a sender was told, in a form that can be compared.
type answer string

// answerOf is all of a result that its sender sees, but for the exempt headers. Whether it is a replay is not a part of that,
// nor when the key was claimed.
func answerOf(v any, exempt ...string) answer {
	switch v := v.(type) {
	case nil:
		return "nothing"
	case *idempotency.Result:
		if v == nil {
			return "nothing"
		}
		return resultAnswer(v, exempt)
	case []byte:
		return answer(v)
	case string:
		return answer(v)
	}
	if text, err := json.Marshal(v); err == nil {
		return answer(text)
	}
	return answer(fmt.Sprintf("%+v", v))
}

func resultAnswer(r *idempotency.Result, exempt []string) answer {
	var text strings.Builder
	fmt.Fprintf(&text, "%d ", r.Status)
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		if slices.ContainsFunc(exempt, func(other string) bool { return strings.EqualFold(other, name) }) {
			continue
		}
		fmt.Fprintf(&text, "%s: %q ", name, r.Header[name])
	}
	text.Write(r.Body)
	return answer(text.String())
}

// against shows where two answers differ.
func (a answer) against(b answer) string {
	at := 0
	for at < min(len(a), len(b)) && a[at] == b[at] {
		at++
	}
	return fmt.Sprintf("%q and %q differ from byte %d on", a.near(at), b.near(at), at)
}

// near is the part of an answer around a byte. It begins with a word, and says by dots what it leaves out.
func (a answer) near(at int) string {
	const around = 40
	from, to := max(at-around, 0), min(at+around, len(a))
	before, after := "", ""
	if from > 0 {
		before = "… "
		from += strings.IndexByte(string(a[from:at]), ' ') + 1
	}
	if to < len(a) {
		after = " …"
	}
	return before + strings.ToValidUTF8(string(a[from:to]), "?") + after
}
