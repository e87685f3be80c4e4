package gangs

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"muster.dev/shim/internal/musterv1"
)

const (
	neverSent = musterv1.BindingFate_BINDING_FATE_NEVER_SENT
	unknown   = musterv1.BindingFate_BINDING_FATE_UNKNOWN
)

func verdict(outcome musterv1.Outcome, generation uint64, members, required int) *musterv1.Verdict {
	v := &musterv1.Verdict{Gang: "ns/g", Generation: generation, Outcome: outcome, Namespace: "ns", Required: uint32(required)}
	for i := range members {
		v.Names = append(v.Names, fmt.Sprintf("p%d", i))
		v.Uids = append(v.Uids, fmt.Sprintf("u%d", i))
	}
	return v
}

// answer plans member i for node n<i>, with one spare node as the other candidate.
func answer(members int) *Answer {
	filter, score := &musterv1.FilterResponse{Nodes: []string{"spare"}, Offsets: []uint32{0}}, &musterv1.ScoreResponse{}
	for i := range members {
		filter.Nodes = append(filter.Nodes, fmt.Sprintf("n%d", i))
		filter.Candidates = append(filter.Candidates, uint32(i+1), 0)
		filter.Offsets = append(filter.Offsets, uint32(len(filter.Candidates)))
		score.Scores = append(score.Scores, 100, 50)
	}
	a, err := NewAnswer(members, filter, score)
	if err != nil {
		panic(err)
	}
	return a
}

func planned(t *testing.T, s *Store, generation uint64, members, required int) *Gang {
	t.Helper()
	s.BeginSession(7)
	g, _, err := s.Apply(verdict(musterv1.Outcome_OUTCOME_PLANNED, generation, members, required))
	if err != nil || g == nil {
		t.Fatalf("Apply: %v %v", g, err)
	}
	if !g.Open(answer(members), time.Time{}) {
		t.Fatal("Open refused")
	}
	return g
}

func arrive(t *testing.T, s *Store, g *Gang, i int, want Arrival) {
	t.Helper()
	if _, ok := s.Admit(g.UIDs[i]); !ok {
		t.Fatalf("member %d not admitted", i)
	}
	claim, err := g.Reserve(i, fmt.Sprintf("n%d", i))
	if err != nil {
		t.Fatal(err)
	}
	if claim {
		g.RecordReserveAnswer()
	}
	if got, err := g.Arrive(i, "1"); err != nil || got != want {
		t.Fatalf("member %d: Arrive = %v, %v; want %v", i, got, err, want)
	}
}

// arrived returns a planned gang that needs two of its members, which have arrived.
func arrived(t *testing.T, members int) (*Store, *Gang) {
	t.Helper()
	s := NewStore()
	g := planned(t, s, 1, members, 2)
	arrive(t, s, g, 0, Wait)
	arrive(t, s, g, 1, Ask)
	return s, g
}

func permit(t *testing.T, g *Gang) []types.UID {
	t.Helper()
	response := &musterv1.PermitResponse{Allowed: true, AnnotationKeys: []string{"k"}}
	for i := range g.UIDs {
		response.AnnotationValues = append(response.AnnotationValues, fmt.Sprint(i))
	}
	release, err := g.Allow(response, make([]string, len(g.UIDs)), time.Now().Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	return release
}

func TestMayEnterQueue(t *testing.T) {
	const plan, refuse, withdraw = musterv1.Outcome_OUTCOME_PLANNED, musterv1.Outcome_OUTCOME_REFUSED, musterv1.Outcome_OUTCOME_WITHDRAWN
	type step struct {
		outcome        musterv1.Outcome
		generation     uint64
		open, cycleRan bool
		sessionLost    bool
	}
	cases := map[string]struct {
		steps []step
		want  bool
	}{
		"no verdict":                                {nil, false},
		"planned, not answered yet":                 {[]step{{outcome: plan, generation: 1}}, false},
		"planned and answered":                      {[]step{{outcome: plan, generation: 1, open: true}}, true},
		"planned, seen: an error may bring it back": {[]step{{outcome: plan, generation: 1, open: true, cycleRan: true}}, true},
		"refused, not answered yet":                 {[]step{{outcome: refuse, generation: 1}}, false},
		"refused":                                   {[]step{{outcome: refuse, generation: 1, open: true}}, true},
		"refused, seen":                             {[]step{{outcome: refuse, generation: 1, open: true, cycleRan: true}}, false},
		"refused, seen, the same again":             {[]step{{outcome: refuse, generation: 1, open: true, cycleRan: true}, {outcome: refuse, generation: 1}}, false},
		"refused, seen, next generation":            {[]step{{outcome: refuse, generation: 1, open: true, cycleRan: true}, {outcome: refuse, generation: 2, open: true}}, true},
		"withdrawn":                                 {[]step{{outcome: plan, generation: 1, open: true}, {outcome: withdraw, generation: 1}}, false},
		"session lost":                              {[]step{{outcome: plan, generation: 1, open: true, sessionLost: true}}, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := NewStore()
			s.BeginSession(1)
			for _, step := range c.steps {
				g, _, err := s.Apply(verdict(step.outcome, step.generation, 2, 2))
				if err != nil {
					t.Fatal(err)
				}
				if step.open && step.outcome == plan {
					g.Open(answer(2), time.Time{})
				} else if step.open {
					g.Open(NewRefusal("no"), time.Time{})
				}
				if step.cycleRan {
					s.Admit("u0")
				}
				if step.sessionLost {
					s.EndSession()
				}
			}
			if got := s.MayEnterQueue("u0"); got != c.want {
				t.Errorf("MayEnterQueue = %v, want %v", got, c.want)
			}
			if s.MayEnterQueue("stranger") {
				t.Error("a pod in no verdict went through")
			}
		})
	}
}

func TestARefusalThatComesAgainWithMoreMembersLetsTheseThrough(t *testing.T) {
	const refuse = musterv1.Outcome_OUTCOME_REFUSED
	s := NewStore()
	s.BeginSession(1)
	first, _, err := s.Apply(verdict(refuse, 1, 3, 1))
	if err != nil {
		t.Fatal(err)
	}
	first.Open(NewRefusal("no"), time.Time{})
	s.Admit("u0") // u2 was not met yet
	s.Admit("u1")
	again, _, err := s.Apply(verdict(refuse, 1, 4, 1))
	if err != nil || again == nil {
		t.Fatalf("Apply: %v %v", again, err)
	}
	again.Open(NewRefusal("no"), time.Time{})
	if got := again.MembersWithoutCycle(); len(got) != 2 || got[0] != 2 || got[1] != 3 {
		t.Errorf("to be activated: %v", got)
	}
	for uid, want := range map[types.UID]bool{"u0": false, "u1": false, "u2": true, "u3": true} {
		if got := s.MayEnterQueue(uid); got != want {
			t.Errorf("MayEnterQueue(%s) = %v", uid, got)
		}
	}
	if g, _, _ := s.Apply(verdict(refuse, 1, 4, 1)); g != nil {
		t.Error("the same again is asked about again")
	}
}

func TestBadAnswersAndVerdicts(t *testing.T) {
	good := func() (*musterv1.FilterResponse, *musterv1.ScoreResponse) {
		return &musterv1.FilterResponse{Nodes: []string{"a"}, Offsets: []uint32{0, 1}, Candidates: []uint32{0}},
			&musterv1.ScoreResponse{Scores: []uint32{100}}
	}
	for name, spoil := range map[string]func(*musterv1.FilterResponse, *musterv1.ScoreResponse){
		"offsets":   func(f *musterv1.FilterResponse, _ *musterv1.ScoreResponse) { f.Offsets = []uint32{0} },
		"end":       func(f *musterv1.FilterResponse, _ *musterv1.ScoreResponse) { f.Offsets = []uint32{0, 2} },
		"candidate": func(f *musterv1.FilterResponse, _ *musterv1.ScoreResponse) { f.Candidates = []uint32{1} },
		"none":      func(f *musterv1.FilterResponse, _ *musterv1.ScoreResponse) { f.Offsets = []uint32{1, 1} },
		"scores":    func(_ *musterv1.FilterResponse, s *musterv1.ScoreResponse) { s.Scores = nil },
	} {
		filter, score := good()
		spoil(filter, score)
		if _, err := NewAnswer(1, filter, score); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	for _, required := range []int{0, 3} {
		if _, _, err := NewStore().Apply(verdict(musterv1.Outcome_OUTCOME_PLANNED, 1, 2, required)); err == nil {
			t.Errorf("%d of 2 required: accepted", required)
		}
	}
}

func TestForget(t *testing.T) {
	s := NewStore()
	planned(t, s, 1, 2, 2)
	s.Forget("u0")
	s.Forget("u1")
	if len(s.gangs)+len(s.byUID) != 0 {
		t.Errorf("kept: %v %v", s.gangs, s.byUID)
	}
}

// TestRace is meant for -race: it runs hooks, verdicts and a lost session concurrently.
func TestRace(t *testing.T) {
	s := NewStore()
	var all sync.WaitGroup
	for worker := range 4 {
		all.Go(func() {
			for n := range 200 {
				if worker == 0 && n%20 == 0 {
					s.EndSession()
				}
				s.BeginSession(uint64(n))
				g, _, _ := s.Apply(verdict(musterv1.Outcome_OUTCOME_PLANNED, uint64(n), 2, 2))
				s.MayEnterQueue("u0")
				if g == nil || !g.Open(answer(2), time.Time{}) {
					continue
				}
				for i := range 2 {
					s.Admit(g.UIDs[i])
					if claim, _ := g.Reserve(i, "n0"); claim {
						g.RecordReserveAnswer()
					}
					if at, err := g.Arrive(i, "1"); err == nil && at == Ask {
						_, _ = g.Allow(&musterv1.PermitResponse{}, make([]string, 2), time.Now().Add(time.Minute))
					}
				}
				_, _ = g.ReachBind(0)
				g.Fail(1, "n1", neverSent, "", "")
				s.InFlight()
			}
		})
	}
	all.Wait()
}

func TestDevicesAreDealtToMembers(t *testing.T) {
	nodes := func(offsets ...uint32) *musterv1.FilterResponse {
		answer := &musterv1.FilterResponse{Nodes: []string{"a", "b"}, Offsets: offsets}
		for i := range offsets[len(offsets)-1] {
			answer.Candidates = append(answer.Candidates, i%2)
		}
		return answer
	}
	for name, c := range map[string]struct {
		offsets []uint32
		devices []string
		counts  []uint32
		want    [][]string // nil: refused
		numbers []uint32
	}{
		"each its own":                {[]uint32{0, 1, 2}, []string{"x", "y", "z"}, []uint32{2, 1}, [][]string{{"x", "y"}, {"z"}}, nil},
		"one has none":                {[]uint32{0, 2, 3}, []string{"x"}, []uint32{0, 1}, [][]string{{}, {"x"}}, []uint32{0, 3}},
		"no member has any":           {[]uint32{0, 1, 2}, nil, nil, [][]string{{}, {}}, nil},
		"a member is left out":        {[]uint32{0, 1, 2}, []string{"x"}, []uint32{1}, nil, nil},
		"too few":                     {[]uint32{0, 1, 2}, []string{"x"}, []uint32{1, 1}, nil, nil},
		"too many":                    {[]uint32{0, 1, 2}, []string{"x", "y", "z"}, []uint32{1, 1}, nil, nil},
		"subrequests of some members": {[]uint32{0, 1, 2}, []string{"x", "y"}, []uint32{1, 1}, nil, []uint32{2}},
		"devices, but several nodes":  {[]uint32{0, 2, 3}, []string{"x", "y"}, []uint32{1, 1}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			filter := nodes(c.offsets...)
			filter.Devices, filter.DeviceCounts, filter.Subrequests = c.devices, c.counts, c.numbers
			answer, err := NewAnswer(2, filter, &musterv1.ScoreResponse{Scores: make([]uint32, len(filter.Candidates))})
			if c.want == nil {
				if err == nil {
					t.Error("accepted")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range c.want {
				if !slices.Equal(answer.Devices(i), want) {
					t.Errorf("member %d has %v", i, answer.Devices(i))
				}
				if number := answer.Subrequest(i); c.numbers == nil && number != 0 || c.numbers != nil && number != int(c.numbers[i]) {
					t.Errorf("member %d has subrequest %d", i, number)
				}
			}
		})
	}
}

func TestMemoryOfSharedDevicesIsThatOfEachMember(t *testing.T) {
	filter := &musterv1.FilterResponse{Nodes: []string{"a"}, Offsets: []uint32{0, 1, 2}, Candidates: []uint32{0, 0}}
	filter.Devices, filter.DeviceCounts = []string{"x", "y"}, []uint32{1, 1}
	for _, c := range []struct{ memory, want []uint32 }{{nil, []uint32{0, 0}}, {[]uint32{0, 30}, []uint32{0, 30}}, {[]uint32{30}, nil}} {
		filter.DeviceMemory = c.memory
		answer, err := NewAnswer(2, filter, &musterv1.ScoreResponse{Scores: []uint32{0, 0}})
		if (err == nil) != (c.want != nil) {
			t.Fatalf("%v: %v", c.memory, err)
		}
		for i, want := range c.want {
			if answer.DeviceMemory(i) != want {
				t.Errorf("%v: member %d shares %d GiB", c.memory, i, answer.DeviceMemory(i))
			}
		}
	}
}

func TestWhatLivePlansHaveForOtherPods(t *testing.T) {
	s := NewStore()
	s.BeginSession(7)
	g, _, err := s.Apply(verdict(musterv1.Outcome_OUTCOME_PLANNED, 1, 3, 2))
	if err != nil {
		t.Fatal(err)
	}
	a := answer(3)
	a.devices = [][]string{{"gpu/a/d0", "gpu/a/d1"}, nil, {"gpu/a/d2"}}
	has := func(when string, uid types.UID, want ...string) {
		t.Helper()
		if got := s.PlannedForOthers(uid, nil); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	has("without an answer", "x")
	g.StorePending(a)
	has("pending", "x", "gpu/a/d0", "gpu/a/d1", "gpu/a/d2")
	if _, admitted := s.Admit("u0"); admitted {
		t.Error("a member of a pending verdict is admitted")
	}
	if !g.Open(a, time.Time{}) {
		t.Fatal("Open refused")
	}
	has("to a member", "u0", "gpu/a/d2")
	arrive(t, s, g, 0, Wait)
	has("while a member waits", "x", "gpu/a/d0", "gpu/a/d1", "gpu/a/d2")
	arrive(t, s, g, 1, Ask)
	permit(t, g)
	for i := range 2 {
		if _, err := g.ReachBind(i); err != nil {
			t.Fatal(err)
		}
	}
	g.Bound(0)
	has("bound, so its claim is allocated", "x", "gpu/a/d2")
	g.Fail(2, "n2", neverSent, "", "gone")
	has("failed", "x")

	g = planned(t, s, 2, 1, 1)
	g.answer.devices = [][]string{{"gpu/a/d3"}}
	has("a later plan", "x", "gpu/a/d3")
	g.Abort("over")
	has("closed", "x")
	g.StorePending(a)
	has("an answer that comes late", "x")
}

func TestAGangHoldsUntilItsLastMemberHasGivenBack(t *testing.T) {
	s := NewStore()
	g := planned(t, s, 1, 2, 2)
	arrive(t, s, g, 0, Wait)
	if !g.HoldsNodes() {
		t.Error("a valid verdict holds nothing")
	}
	g.Abort("over")
	if !g.HoldsNodes() {
		t.Error("nothing is held while a member has its node")
	}
	g.Fail(0, "n0", neverSent, "", "over")
	if g.HoldsNodes() {
		t.Error("something is held by no member")
	}
}

func TestOnlyPlansForTheseDriversAreRead(t *testing.T) {
	filter := &musterv1.FilterResponse{Nodes: []string{"a"}, Offsets: []uint32{0, 1, 2, 3}, Candidates: []uint32{0, 0, 0}}
	filter.Devices, filter.DeviceCounts = []string{"gpu/a/d0", "nic/a/d0", "gpu/a/d1"}, []uint32{2, 0, 1}
	a, err := NewAnswer(3, filter, &musterv1.ScoreResponse{Scores: []uint32{0, 0, 0}})
	if err != nil {
		t.Fatal(err)
	}
	s := NewStore()
	s.BeginSession(7)
	g, _, err := s.Apply(verdict(musterv1.Outcome_OUTCOME_PLANNED, 1, 3, 2))
	if err != nil {
		t.Fatal(err)
	}
	g.StorePending(a)
	for _, c := range []struct {
		drivers sets.Set[string]
		want    []string
	}{
		{nil, filter.Devices},
		{sets.New[string](), nil},
		{sets.New("card"), nil},
		{sets.New("nic", "card"), []string{"nic/a/d0"}},
		{sets.New("gpu"), []string{"gpu/a/d0", "gpu/a/d1"}},
	} {
		if got := s.PlannedForOthers("x", c.drivers); !slices.Equal(got, c.want) {
			t.Errorf("%v: %v", c.drivers, got)
		}
	}
	clear(a.devices) // what is in a plan for other drivers is not read
	a.devices[0] = []string{"card/a/d0"}
	if got := s.PlannedForOthers("x", sets.New("card")); len(got) > 0 {
		t.Errorf("read: %v", got)
	}
}
