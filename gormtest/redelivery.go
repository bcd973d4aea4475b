package gormtest

import "time"

// first delivers event 0, which is what every other delivery is compared with.
func (tr *trial) first() (answer, effect) {
	tr.t.Helper()
	given := tr.mustDeliver(0, "delivered for the first time")
	tr.requireNoGoroutines()
	done := tr.effect()
	if len(done.keys) == 0 {
		tr.t.Fatalf("gormtest: the delivery of event 0 was answered, and claimed no key in the table of keys, so nothing makes its "+
			"effect happen once: write inside idempotency.Do, do not drop its error, and use a database where it was not delivered before%s",
			tr.describe(done.outside))
	}
	if tr.tap.claimsWon() == 0 {
		tr.t.Fatalf("gormtest: the delivery of event 0 went past the handle that the Deliver was given, which sees none of it: " +
			"build the code under test on that handle")
	}
	return given, done
}

// ownKey is what code gets wrong whose events claim the same key, or none.
const ownKey = "each event has to claim a key of its own: take source and id from the event itself; a request's body can be read only " +
	"once, and is empty after that"

// again delivers an event that has taken effect already: nothing may change, and the answer is the one that was given.
func (tr *trial) again(event int, given answer) (ok bool) {
	tr.t.Helper()
	repeated := tr.mustDeliver(event, "delivered again")
	tr.requireNoGoroutines()
	return tr.requireNothing(event, tr.effect()) && tr.requireAnswer(event, given, repeated)
}

func (tr *trial) requireNothing(event int, e effect) (ok bool) {
	tr.t.Helper()
	switch {
	case len(e.keys) > 0:
		tr.t.Errorf("gormtest: event %d, delivered again, claimed another key, %q, and took effect again: the source and the id have to be "+
			"the same in each delivery of an event, so take them from what the sender signs, not from a header, clock or counter%s",
			event, e.keys[0].row, tr.describe(e.outside))
	case len(e.outside) > 0:
		tr.t.Errorf("gormtest: event %d, delivered again, changed the database again: write inside the handler, through the handle that it is "+
			"given; a table that is meant to change at each delivery is for WithExempt%s", event, tr.describe(e.outside))
	default:
		return true
	}
	return false
}

func (tr *trial) requireAnswer(event int, given, repeated answer) (ok bool) {
	tr.t.Helper()
	if given == repeated {
		return true
	}
	tr.t.Errorf("gormtest: event %d was answered differently when it was delivered again: %s: answer with what the handler stored by "+
		"Respond or DoValue, and make nothing of it afterwards from a clock, a counter or chance; a header that is meant to differ is "+
		"for WithExemptHeaders", event, given.against(repeated))
	return false
}

// lingerLimit is how long goroutines that were left behind have to end.
const lingerLimit = 5 * time.Second

// requireNoGoroutines waits for what a delivery has left behind, so that what it writes is seen.
func (tr *trial) requireNoGoroutines() {
	tr.t.Helper()
	if places := lingering(tr.id, lingerLimit); len(places) > 0 {
		tr.t.Fatalf("gormtest: a goroutine of the delivery is still running %v after it was answered%s: wait for it before the handler "+
			"returns, or give it a context that ends", lingerLimit, at(places))
	}
}
