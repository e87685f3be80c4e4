package gangs

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"muster.dev/shim/internal/musterv1"
)

// open applies a planned verdict of two members and opens it.
func open(t *testing.T, s *Store, generation uint64, since time.Time) *Gang {
	t.Helper()
	g, _, err := s.Apply(verdict(musterv1.Outcome_OUTCOME_PLANNED, generation, 2, 2))
	if err != nil || g == nil || !g.Open(answer(2), since) {
		t.Fatalf("Apply, Open: %v %v", g, err)
	}
	return g
}

func enter(t *testing.T, s *Store, uid types.UID) Place {
	t.Helper()
	if !s.Enter(uid) {
		t.Fatalf("%s may not enter", uid)
	}
	place, _ := s.Place(uid)
	return place
}

// A queued pod keeps its place whatever happens to its verdict. When it enters the queue again, it gets the place of
// the new verdict.
func TestAPlaceIsFixedWhileAPodIsQueued(t *testing.T) {
	early := time.Now().Add(-time.Hour)
	for name, change := range map[string]func(*Store, *Gang){
		"withdrawn": func(s *Store, _ *Gang) {
			_, _, _ = s.Apply(verdict(musterv1.Outcome_OUTCOME_WITHDRAWN, 2, 2, 2))
		},
		"refused":          func(s *Store, _ *Gang) { _, _, _ = s.Apply(verdict(musterv1.Outcome_OUTCOME_REFUSED, 2, 2, 2)) },
		"planned anew":     func(s *Store, _ *Gang) { open(t, s, 2, early.Add(time.Minute)) },
		"session lost":     func(s *Store, _ *Gang) { s.EndSession() },
		"a member fails":   func(_ *Store, g *Gang) { g.Fail(1, "n1", neverSent, "", "no") },
		"pod deleted":      func(s *Store, _ *Gang) { s.Forget("u1") },
		"all pods deleted": func(s *Store, _ *Gang) { s.Forget("u0"); s.Forget("u1") },
	} {
		t.Run(name, func(t *testing.T) {
			s := NewStore()
			s.BeginSession(7)
			g := open(t, s, 1, early)
			want := Place{Since: early, Gang: "ns/g", Member: 1}
			if got := enter(t, s, "u1"); got != want {
				t.Fatalf("place %+v, want %+v", got, want)
			}
			change(s, g)
			if got, ok := s.Place("u1"); !ok || got != want {
				t.Errorf("the place became %+v (%v) while the pod was queued", got, ok)
			}
		})
	}
}

// The age of a refused gang does not count. Its members come after all pods that wait when they are let through.
func TestARefusedPodStandsWhereItWasLetThrough(t *testing.T) {
	s := NewStore()
	s.BeginSession(7)
	early := time.Now().Add(-time.Hour)
	open(t, s, 1, early)
	enter(t, s, "u0")
	g, _, _ := s.Apply(verdict(musterv1.Outcome_OUTCOME_REFUSED, 2, 2, 2))
	g.Open(NewRefusal("no room"), early)
	before := time.Now().Round(0)
	place := enter(t, s, "u0")
	if place.Since.Before(before) || place.Since.After(time.Now()) {
		t.Errorf("a refused pod of %v that was let through at %v stands at %v", early, before, place.Since)
	}
}

// A gang that was scheduled and failed comes after the pods that arrived meanwhile, like any pod that fails.
func TestAGangThatFailsGivesWay(t *testing.T) {
	early := time.Now().Add(-time.Hour)
	for name, c := range map[string]struct {
		end      func(*Store, *Gang)
		cycleRan bool
		later    bool
	}{
		"a member fails":                {func(_ *Store, g *Gang) { g.Fail(0, "n0", neverSent, "", "no") }, true, true},
		"aborted":                       {func(_ *Store, g *Gang) { g.Abort("denied") }, true, true},
		"stalled":                       {func(_ *Store, g *Gang) { g.Stall("too slow") }, true, true},
		"withdrawn after it was seen":   {withdraw, true, true},
		"withdrawn before it was seen":  {withdraw, false, false},
		"the session is lost":           {func(s *Store, _ *Gang) { s.EndSession(); s.BeginSession(8) }, true, false},
		"the service has a better plan": {func(*Store, *Gang) {}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewStore()
			s.BeginSession(7)
			g := open(t, s, 1, early)
			if c.cycleRan {
				s.Admit("u0")
			}
			before := time.Now()
			c.end(s, g)
			open(t, s, 2, early)
			for i, uid := range []types.UID{"u0", "u1"} {
				place := enter(t, s, uid)
				if later := !place.Since.Before(before); later != c.later || place.Member != i {
					t.Errorf("%s stands at %v, member %d; failed at %v", uid, place.Since, place.Member, before)
				}
			}
		})
	}
}

func withdraw(s *Store, _ *Gang) {
	_, _, _ = s.Apply(verdict(musterv1.Outcome_OUTCOME_WITHDRAWN, 1, 2, 2))
}

func TestPlacesAreForgottenSomeTimeAfterTheirPods(t *testing.T) {
	s := NewStore()
	s.BeginSession(7)
	g := open(t, s, 1, time.Now())
	s.Admit("u0")
	enter(t, s, "u0")
	enter(t, s, "u1")
	g.Abort("denied")
	s.Forget("u0")
	s.Forget("u1")
	now := time.Now()
	s.places.removeLater("other", now)
	if len(s.places.fixed) != 2 || len(s.places.failed) != 2 {
		t.Errorf("forgotten at once: %v %v", s.places.fixed, s.places.failed)
	}
	s.places.removeLater("other", now.Add(placeKept+time.Minute))
	if entries := len(s.places.fixed) + len(s.places.failed) + len(s.places.departed); entries != 0 {
		t.Errorf("%d are kept for ever", entries)
	}
}

func TestABoundPodHasNoPlace(t *testing.T) {
	s := NewStore()
	s.BeginSession(7)
	g := open(t, s, 1, time.Now())
	enter(t, s, "u0")
	g.Bound(0)
	if place, ok := s.Place("u0"); ok {
		t.Errorf("kept: %+v", place)
	}
}
