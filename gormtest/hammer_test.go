package gormtest

import (
	"strings"
	"testing"
)

func TestHammerPassesCorrectHandlers(t *testing.T) {
	t.Parallel()
	for name, deliver := range correct {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report := Hammer(t, openShop(t), deliver(t), WithDeliveries(5))
			if report.Deliveries < 122 || report.Ran < 20 || report.Keys < 20 {
				t.Errorf("report %+v", report)
			}
		})
	}
}

func TestHammerFindsFaults(t *testing.T) {
	t.Parallel()
	for name, fault := range wrong {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test := newFakeTest()
			test.run(func() { Hammer(test, openShop(t), fault.deliver(t), WithEvents(8)) })
			requireFound(t, test, fault.hammer)
		})
	}
}

// requireFound checks a failure's text. No words mean no failure.
func requireFound(t *testing.T, test *fakeTest, words []string) {
	t.Helper()
	text := strings.Join(test.errors, "\n")
	t.Log(text)
	if words == nil && text != "" {
		t.Error("found what it cannot see")
	}
	if words != nil && text == "" {
		t.Error("found nothing")
	}
	for _, want := range words {
		if !strings.Contains(text, want) {
			t.Errorf("the failure does not say %q", want)
		}
	}
}

// BenchmarkHammer measures what is to be at most 3 s on a quiet machine, the database apart.
func BenchmarkHammer(b *testing.B) {
	deliver := correct["Do"](b)
	for range b.N {
		b.StopTimer()
		test := newFakeTest()
		db := openShop(test)
		b.StartTimer()
		Hammer(test, db, deliver)
		b.StopTimer()
		test.finish()
	}
}
