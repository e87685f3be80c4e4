package gangs

import (
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"muster.dev/shim/internal/musterv1"
)

// Store holds the verdicts of one process: kept by gang, looked up by pod UID. A name may come
// again, a UID never does.
type Store struct {
	mu       sync.Mutex
	epoch    uint64 // 0: no session
	gangs    map[string]*Gang
	byUID    map[types.UID]slot
	inFlight map[types.UID]*InFlight
	turns    turns
}

type slot struct {
	gang  *Gang
	index int
}

// NewStore is empty: everything that concerns us is gated until the service speaks.
func NewStore() *Store {
	return &Store{
		gangs:    map[string]*Gang{},
		byUID:    map[types.UID]slot{},
		inFlight: map[types.UID]*InFlight{},
		turns:    newTurns(),
	}
}

// Begin opens a session. Verdicts that come belong to its epoch.
func (s *Store) Begin(epoch uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch = epoch
}

// Epoch is the present session's, 0 without one.
func (s *Store) Epoch() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epoch
}

// Lost ends the session: every verdict goes, save that members past Permit bind on.
func (s *Store) Lost() Instructions {
	s.mu.Lock()
	defer s.mu.Unlock()
	var do Instructions
	for _, g := range s.gangs {
		do.add(g.void("the session with the service was lost"))
	}
	s.epoch = 0
	clear(s.gangs)
	clear(s.byUID)
	return do
}

// Apply takes a verdict in. It returns the gang to ask about and to activate, or nil. A refusal may come
// again in its generation, with members that joined the gang since.
func (s *Store) Apply(verdict *musterv1.Verdict) (*Gang, Instructions, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.gangs[verdict.Gang]
	if verdict.Outcome == musterv1.Outcome_OUTCOME_WITHDRAWN {
		if old == nil {
			return nil, Instructions{}, nil
		}
		s.drop(old)
		if old.phase == Open {
			s.turns.fail(old, time.Now())
		}
		return nil, old.void("withdrawn: " + verdict.Reason), nil
	}
	if err := check(verdict); err != nil {
		return nil, Instructions{}, err
	}
	g := newGang(s, s.epoch, verdict)
	if old != nil && old.phase != Closed && old.Refused == g.Refused && old.Plan.Generation == g.Plan.Generation {
		if !g.Refused || !s.joined(old, g) {
			return nil, Instructions{}, nil // sent again: once per generation
		}
	}
	var do Instructions
	if old != nil {
		s.drop(old)
		do = old.void("replaced by a later verdict")
	}
	s.gangs[verdict.Gang] = g
	for i, uid := range g.UIDs {
		s.byUID[uid] = slot{gang: g, index: i}
	}
	return g, do, nil
}

func check(v *musterv1.Verdict) error {
	switch v.Outcome {
	case musterv1.Outcome_OUTCOME_PLANNED, musterv1.Outcome_OUTCOME_REFUSED:
	default:
		return fmt.Errorf("gang %q: unknown outcome %v", v.Gang, v.Outcome)
	}
	if len(v.Names) != len(v.Uids) || len(v.Names) == 0 {
		return fmt.Errorf("gang %q: %d names, %d UIDs", v.Gang, len(v.Names), len(v.Uids))
	}
	if planned := v.Outcome == musterv1.Outcome_OUTCOME_PLANNED; planned && (v.Required == 0 || int(v.Required) > len(v.Names)) {
		return fmt.Errorf("gang %q: %d of %d members required", v.Gang, v.Required, len(v.Names))
	}
	return nil
}

// Through says whether this pod of ours may go to the active queue now.
func (s *Store) Through(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.through(uid)
}

// through is Through; the lock is held.
func (s *Store) through(uid types.UID) bool {
	at, found := s.byUID[uid]
	if !found {
		return false
	}
	g, m := at.gang, &at.gang.members[at.index]
	switch {
	case g.phase == Pending || g.phase == Closed || g.barred:
		return false
	case g.Refused:
		// Seen in PreFilter, not in PreEnqueue: another PreEnqueue plugin may hold it after us.
		return !m.seen
	default:
		return m.state != failed
	}
}

// joined: the refusal in g names members that the same one in old did not. Those that have failed with
// it already are not let through again. The lock is held.
func (s *Store) joined(old, g *Gang) bool {
	added := false
	for i, uid := range g.UIDs {
		if at := s.byUID[uid]; at.gang == old {
			g.members[i].seen = old.members[at.index].seen
		} else {
			added = true
		}
	}
	return added
}

// Admission is what PreFilter needs to know of a pod.
type Admission struct {
	Gang   *Gang
	Member int
	// Reason is the sentence of a refused gang.
	Reason  string
	Planned string
	Scores  map[string]int64
}

// Admit answers PreFilter and marks the member as seen. False: no verdict lets this pod pass now;
// it was popped out of the back-off queue, where PreEnqueue is not asked (scheduling_queue.go,
// moveToActiveQ), or the verdict went while it was queued.
func (s *Store) Admit(uid types.UID) (Admission, bool) {
	at, answer, only := s.meet(uid)
	if answer == nil {
		return Admission{}, false
	}
	a := Admission{Gang: at.gang, Member: at.index}
	if at.gang.Refused {
		a.Reason = answer.reason
		return a, true
	}
	// An answer never changes: what takes time is done without the lock that PreEnqueue needs.
	a.Planned, a.Scores = answer.Planned(at.index), answer.Scores(at.index, only)
	return a, true
}

// meet marks a member as seen. Only its planned node is open to it until one of the gang's has refused: each
// further one costs the cycle another look at all that is nominated there. And again after Permit was asked.
// A member that comes back by itself is no progress.
func (s *Store) meet(uid types.UID) (at slot, answer *Answer, only bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, found := s.byUID[uid]
	if !found {
		return slot{}, nil, false
	}
	g, m := at.gang, &at.gang.members[at.index]
	if g.phase == Pending || g.phase == Closed || g.barred || m.state == failed {
		return slot{}, nil, false
	}
	if !m.seen {
		g.progress++
	}
	m.seen, m.wide = true, g.wide && !g.asked
	return at, g.answer, !m.wide
}

// Forget drops a deleted pod, and its gang with the last one.
func (s *Store) Forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turns.depart(uid, time.Now())
	at, found := s.byUID[uid]
	if !found {
		return
	}
	delete(s.byUID, uid)
	for _, other := range at.gang.UIDs {
		if s.byUID[other].gang == at.gang {
			return
		}
	}
	if s.gangs[at.gang.Plan.Gang] == at.gang {
		delete(s.gangs, at.gang.Plan.Gang)
	}
}

// drop removes a gang from the indices; cycles that hold it go on with it. The lock is held.
func (s *Store) drop(g *Gang) {
	delete(s.gangs, g.Plan.Gang)
	for _, uid := range g.UIDs {
		if s.byUID[uid].gang == g {
			delete(s.byUID, uid)
		}
	}
}
