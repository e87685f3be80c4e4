package gangs

import (
	"errors"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"muster.dev/shim/internal/musterv1"
)

func TestClaims(t *testing.T) {
	s := NewStore()
	g := planned(t, s, 1, 3, 3)
	for _, step := range []struct {
		member int
		node   string
		claim  bool
	}{{0, "n0", true}, {1, "n1", false}, {2, "spare", true}} {
		claim, err := g.Reserve(step.member, step.node)
		if err != nil || claim != step.claim {
			t.Errorf("member %d on %s: claim %v, %v; want %v", step.member, step.node, claim, err, step.claim)
		}
	}
}

func TestPermitIsAskedOnceWhenAllAreHereAndClaimed(t *testing.T) {
	s := NewStore()
	g := planned(t, s, 1, 4, 2)
	for i, node := range []string{"n0", "spare"} {
		if claim, err := g.Reserve(i, node); err != nil || !claim {
			t.Fatalf("member %d: %v, %v", i, claim, err)
		}
	}
	wait := func(i int) {
		t.Helper()
		if got, err := g.Arrive(i, "1"); err != nil || got != Wait {
			t.Fatalf("member %d: Arrive = %v, %v", i, got, err)
		}
	}
	wait(0)
	wait(1)
	if g.RecordReserveAnswer() {
		t.Error("asked with a claim that is not answered")
	}
	if !g.RecordReserveAnswer() {
		t.Error("not asked with the last claim")
	}
	if _, err := g.Reserve(2, "spare"); !errors.Is(err, errElsewhere) {
		t.Errorf("elsewhere, once Permit was asked: %v", err)
	}
	if a, _ := s.Admit("u2"); len(a.Scores) != 1 || a.Scores["n2"] != 100 {
		t.Errorf("late: %v", a.Scores)
	}
	arrive(t, s, g, 2, Wait) // until the answer has arrived
	if release := permit(t, g); len(release) != 3 {
		t.Errorf("released %v", release)
	}
	arrive(t, s, g, 3, Pass)
}

func TestCommitBarrier(t *testing.T) {
	s, g := arrived(t, 3)
	if release := permit(t, g); len(release) != 2 {
		t.Fatalf("released %v", release)
	}
	arrive(t, s, g, 2, Pass) // not required: it must not delay the others
	if got := len(s.InFlight()); got != 3 {
		t.Errorf("%d in flight, want 3", got)
	}
	if last, err := g.ReachBind(0); err != nil || last || g.Phase() != Permitted {
		t.Fatalf("after the first: %v, phase %v", err, g.Phase())
	}
	if last, err := g.ReachBind(1); err != nil || !last || g.Phase() != Committed {
		t.Fatalf("after the last: %v, phase %v", err, g.Phase())
	}
	if do := g.Abort("late"); len(do.Closed) != 0 {
		t.Error("a committed gang was closed")
	}
	g.Bound(0)
	do := g.Fail(1, "n1", unknown, "", "timeout")
	if len(do.Closed) != 0 || len(do.Reports) != 1 || do.Reports[0].Fate != unknown {
		t.Errorf("after an unknown fate: %+v", do)
	}
	flights := map[types.UID]bool{}
	for _, f := range s.InFlight() {
		flights[f.UID] = f.Unknown
	}
	if len(flights) != 2 || !flights["u1"] || flights["u2"] {
		t.Errorf("in flight: %v, want u1 unknown and u2", flights)
	}
	s.Settle("u1")
	s.Settle("u2") // has no answer yet: stays
	if got := s.InFlight(); len(got) != 1 || got[0].UID != "u2" {
		t.Errorf("in flight after settling: %v", got)
	}
}

// Members may use only their planned nodes until one of these refuses its member. Then each member may use all its
// candidates, once. Permit is not called while a member is being scheduled again for them. After the call, members
// may use only their planned nodes again.
func TestOtherCandidatesComeAfterThePlannedNode(t *testing.T) {
	s := NewStore()
	g := planned(t, s, 1, 3, 1)
	offered := func(i, want int) {
		t.Helper()
		a, ok := s.Admit(g.UIDs[i])
		if !ok || len(a.Scores) != want {
			t.Errorf("member %d: %d nodes, want %d", i, len(a.Scores), want)
		}
	}
	offered(0, 1)
	offered(1, 1)
	if !g.AllowCandidates(0) {
		t.Fatal("no other candidates")
	}
	if unseen := g.MembersWithoutCycle(); !slices.Equal(unseen, []int{0, 2}) {
		t.Errorf("to activate: %v", unseen)
	}
	arrive(t, s, g, 1, Wait) // all required members have arrived, but 0 is being scheduled again
	offered(2, 2)
	if g.AllowCandidates(2) {
		t.Error("2 has had them all")
	}
	offered(0, 2)
	arrive(t, s, g, 0, Ask)
	offered(2, 1)
	if g.AllowCandidates(2) {
		t.Error("other candidates though Permit was asked")
	}
}

func TestOneFailureBeforeTheCommitEndsAll(t *testing.T) {
	s, g := arrived(t, 2)
	permit(t, g)
	if _, err := g.ReachBind(0); err != nil {
		t.Fatal(err)
	}
	do := g.Fail(1, "n1", neverSent, "", "preempted") // its Allow came too late
	if len(do.Closed) != 1 || g.Phase() != Closed {
		t.Fatalf("not closed: %+v", do)
	}
	if _, err := g.ReachBind(1); !errors.Is(err, ErrClosed) {
		t.Errorf("Stand = %v", err)
	}
	if g.Fail(0, "n0", neverSent, "", "closed"); len(s.InFlight()) != 0 {
		t.Errorf("in flight: %v", s.InFlight())
	}
	if s.MayEnterQueue("u0") || s.MayEnterQueue("u1") {
		t.Error("members of a closed gang go through")
	}
}

// The service waits for each member of a permitted gang. A member that has not arrived has no cycle that would report
// it.
func TestAGangThatClosesPastPermitReportsMembersThatHaveNotCome(t *testing.T) {
	for name, end := range map[string]func(*Gang) Instructions{
		"a member fails": func(g *Gang) Instructions { return g.Fail(1, "n1", neverSent, "", "preempted") },
		"aborted":        func(g *Gang) Instructions { return g.Abort("not all members came to Bind in time") },
	} {
		t.Run(name, func(t *testing.T) {
			_, g := arrived(t, 4)
			permit(t, g)
			reported := map[uint32]int{}
			do := end(g)
			do.append(g.Fail(0, "n0", neverSent, "", "closed"))
			do.append(g.Fail(1, "n1", neverSent, "", "closed"))
			for _, report := range do.Reports {
				reported[report.Member]++
			}
			if len(reported) != 4 || len(do.Reports) != 4 {
				t.Errorf("reported, by member: %v", reported)
			}
		})
	}
}

func TestPastPermitNothingIsTakenBack(t *testing.T) {
	for name, end := range map[string]func(*Store) Instructions{
		"lost": (*Store).EndSession,
		"withdrawn": func(s *Store) Instructions {
			_, do, _ := s.Apply(verdict(musterv1.Outcome_OUTCOME_WITHDRAWN, 1, 0, 0))
			return do
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, g := arrived(t, 3)
			permit(t, g)
			if do := end(s); len(do.Closed) != 0 {
				t.Fatal("closed past Permit")
			}
			if s.MayEnterQueue("u2") {
				t.Error("a member that was not allowed goes through")
			}
			if _, err := g.Arrive(2, ""); !errors.Is(err, ErrClosed) {
				t.Errorf("Arrive = %v", err)
			}
			for i := range 2 {
				if _, err := g.ReachBind(i); err != nil {
					t.Error(err)
				}
			}
			if g.Phase() != Committed {
				t.Error("not committed")
			}
		})
	}
}

func TestStall(t *testing.T) {
	s := NewStore()
	g := planned(t, s, 1, 3, 3)
	arrive(t, s, g, 0, Wait)
	do := g.Stall("too late")
	if len(do.Closed) != 1 || len(do.Reports) != 1 || do.Reports[0].Member != 1 {
		t.Errorf("%+v", do)
	}
	if got := g.WaitingMembers(); len(got) != 1 || got[0] != "u0" {
		t.Errorf("waiting: %v", got)
	}
}

// The watchdog fails a late member just after PreFilter has seen it. The service may then use its node again, so the
// cycle must not continue to Bind.
func TestAMemberThatWasGivenBackReservesNoMore(t *testing.T) {
	s, g := arrived(t, 3)
	permit(t, g)
	if _, ok := s.Admit("u2"); !ok {
		t.Fatal("not admitted")
	}
	if do := g.Stall("too late"); len(do.Reports) != 1 || do.Reports[0].Member != 2 {
		t.Fatalf("%+v", do)
	}
	if _, err := g.Reserve(2, "n2"); err == nil {
		got, err := g.Arrive(2, "1")
		t.Errorf("reserved, then Arrive = %v, %v: it binds where the service may have put others", got, err)
	}
}

// After Permit is called, the gang does not need members that were not waiting for it.
func TestALateOneThatFailsDuringTheQuestionEndsNoGang(t *testing.T) {
	_, g := arrived(t, 3)
	do := g.Fail(2, "n2", neverSent, "NodeResourcesFit", "no cpu")
	if len(do.Closed) != 0 || len(do.Reports) != 1 {
		t.Errorf("%+v", do)
	}
	permit(t, g)
	if do := g.Fail(1, "n1", neverSent, "", "preempted"); len(do.Closed) != 1 {
		t.Error("one of the quorum is missed")
	}
}

// The gang needs a member that was waiting, because the service may have counted it in its answer.
func TestAWaiterThatFailsDuringTheQuestionEndsTheGang(t *testing.T) {
	_, g := arrived(t, 3)
	if do := g.Fail(1, "n1", neverSent, "", "preempted"); len(do.Closed) != 1 {
		t.Errorf("%+v", do)
	}
	if _, err := g.Allow(&musterv1.PermitResponse{}, make([]string, 3), time.Now()); !errors.Is(err, ErrClosed) {
		t.Errorf("Allow = %v", err)
	}
}

// When a gang is closed after Permit, released members may not have been in the waiting map yet.
func TestTheAllowedOfAClosedGangAreReleased(t *testing.T) {
	_, g := arrived(t, 2)
	permit(t, g)
	g.Fail(0, "n0", neverSent, "", "PreBind failed")
	if got := g.WaitingMembers(); len(got) != 1 || got[0] != "u1" {
		t.Errorf("waiting: %v", got)
	}
}
