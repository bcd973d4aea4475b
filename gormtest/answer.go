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

// answerOf is all of a result that its sender sees. Whether it is a replay is not a part of that, nor when the key was
// claimed.
func answerOf(v any) answer {
	switch v := v.(type) {
	case nil:
		return "nothing"
	case *idempotency.Result:
		if v == nil {
			return "nothing"
		}
		return resultAnswer(v)
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

func resultAnswer(r *idempotency.Result) answer {
	var text strings.Builder
	fmt.Fprintf(&text, "%d ", r.Status)
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		fmt.Fprintf(&text, "%s: %q ", name, r.Header[name])
	}
	text.Write(r.Body)
	return answer(text.String())
}

// against shows where two answers differ.
func (a answer) against(b answer) string {
	const around = 40
	at := 0
	for at < min(len(a), len(b)) && a[at] == b[at] {
		at++
	}
	from := max(at-around, 0)
	part := func(whole answer) string {
		to := min(at+around, len(whole))
		return strings.ToValidUTF8(string(whole[from:to]), "?")
	}
	return fmt.Sprintf("%q and %q differ from byte %d on", part(a), part(b), at)
}
