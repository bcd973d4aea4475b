package gormtest

import "testing"

func TestCrashPointsPassCorrectHandlers(t *testing.T) {
	t.Parallel()
	for name, deliver := range correct {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			CrashPoints(t, openShop(t), deliver(t))
		})
	}
}

func TestCrashPointsFindFaults(t *testing.T) {
	t.Parallel()
	for name, fault := range wrong {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test := newFakeTest()
			test.run(func() { CrashPoints(test, openShop(t), fault.deliver(t)) })
			requireFound(t, test, fault.crash)
		})
	}
}
