package plugin

import (
	"context"
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"muster.dev/shim/internal/musterv1"
)

// enter calls take in a goroutine. It returns once the gang is admitted or queued.
func enter(t *testing.T, ctx context.Context, r *admission, members int) chan func() {
	t.Helper()
	r.mu.Lock()
	queued := len(r.queue)
	r.mu.Unlock()
	in := make(chan func(), 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if leave, ok := r.take(ctx, members); ok {
			in <- leave
		}
	}()
	for {
		r.mu.Lock()
		stands := len(r.queue) > queued
		r.mu.Unlock()
		select {
		case <-done:
			return in
		case <-time.After(time.Millisecond):
			if stands {
				return in
			}
		}
	}
}

func TestRoomLetsInWhatFitsInOrder(t *testing.T) {
	ctx := t.Context()
	r := newAdmission(10)
	leaveSix := next(t, "six of ten", enter(t, ctx, r, 6))
	eight := enter(t, ctx, r, 8)
	two := enter(t, ctx, r, 2) // would fit, but eight came first
	if len(eight)+len(two) != 0 {
		t.Fatal("let in behind six of ten, or before its turn")
	}
	leaveSix()
	leaveEight := next(t, "eight", eight)
	next(t, "two", two)()
	leaveEight()
	if r.left != 10 {
		t.Errorf("%d of 10 left in an empty room", r.left)
	}
}

func TestRoomTakesWhatIsLargerThanItAlone(t *testing.T) {
	ctx := t.Context()
	r := newAdmission(10)
	r.add(1) // a Binding
	large := enter(t, ctx, r, 2048)
	if len(large) != 0 {
		t.Fatal("let in behind a Binding")
	}
	r.add(-1)
	leave := next(t, "the large one", large)
	one := enter(t, ctx, r, 1)
	if len(one) != 0 {
		t.Fatal("let in behind the large one")
	}
	r.add(2) // Bindings count even if the limit is reached
	leave()
	next(t, "one", one)()
	r.add(-2)
	if r.left != 10 {
		t.Errorf("%d of 10 left in an empty room", r.left)
	}
}

func TestRoomForgetsWhoGoesAway(t *testing.T) {
	r := newAdmission(10)
	leave := next(t, "ten", enter(t, t.Context(), r, 10))
	ctx, cancel := context.WithCancel(t.Context())
	gone := enter(t, ctx, r, 10)
	behind := enter(t, t.Context(), r, 1)
	cancel()
	leave()
	next(t, "the one behind", behind)()
	if len(gone) != 0 || r.left != 10 {
		t.Errorf("%d of 10 left in an empty room", r.left)
	}
}

func TestGangsWaitWhileTheAPIServerIsBehind(t *testing.T) {
	h := newHarness(t, node("n", "64"))
	h.service.plan(spread(2, "n")...)
	answer := make(chan struct{})
	h.bind = func(*v1.Binding) error { <-answer; return nil }
	h.run("")
	h.plugin.admission = newAdmission(2)
	var names []string
	for g := range 3 {
		pair := []string{fmt.Sprintf("g%d-a", g), fmt.Sprintf("g%d-b", g)}
		h.pods("1", pair...)
		h.until("the informer has them", func() bool { return h.gated(pair...) })
		v := verdict(musterv1.Outcome_OUTCOME_PLANNED, uint64(g+1), pair...)
		v.Gang = fmt.Sprintf("ns/g%d", g)
		h.service.push(v)
		names = append(names, pair...)
	}
	h.until("the first gang's Bindings are under way", func() bool { return len(h.plugin.bindings) == 2 })
	h.until("the others are nominated", func() bool { return h.nominated("n") == 4 })
	if got := h.service.called(); got != "Filter 3 Score 3 Reserve 1 Permit 1" {
		t.Errorf("calls while the API server is behind: %s", got)
	}
	if !h.gated(names[2:4]...) && !h.gated(names[4:]...) {
		t.Error("gangs were let through though there is no room")
	}
	close(answer)
	for range names {
		next(t, "binding", h.bound)
	}
	h.until("nothing is under way", func() bool { return len(h.plugin.store.InFlight()) == 0 })
}

// Refused gangs wait until the members in flight have left, but not for ever.
func TestIdleReturnsWhenTheLastMemberHasLeft(t *testing.T) {
	r := newAdmission(10)
	leave := next(t, "two of ten", enter(t, t.Context(), r, 2))
	idle := make(chan int, 1)
	go func() {
		r.idle(t.Context(), time.Hour)
		r.mu.Lock()
		defer r.mu.Unlock()
		idle <- r.left
	}()
	leave()
	if left := next(t, "it is idle", idle); left != 10 {
		t.Errorf("idle with %d of 10 left", left)
	}
	next(t, "one of ten", enter(t, t.Context(), r, 1))
	r.idle(t.Context(), time.Millisecond) // returns although one has not left
}
