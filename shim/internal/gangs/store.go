package gangs

import (
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"muster.dev/shim/internal/musterv1"
)

// Store holds the verdicts of one process, by gang and by pod UID. It uses UIDs because a pod's name may be used
// again, but its UID never is.
type Store struct {
	mu       sync.Mutex
	epoch    uint64 // 0: no session
	gangs    map[string]*Gang
	byUID    map[types.UID]slot
	inFlight map[types.UID]*InFlight
	places   places
	stopping bool // the process ends: no further gang is committed
}

type slot struct {
	gang  *Gang
	index int
}

// NewStore returns an empty store. All pods of gangs are gated until the service sends a verdict.
func NewStore() *Store {
	return &Store{
		gangs:    map[string]*Gang{},
		byUID:    map[types.UID]slot{},
		inFlight: map[types.UID]*InFlight{},
		places:   newPlaces(),
	}
}

// Stop has no further gang committed. It returns the number of members of committed gangs that are at Bind without an
// answer. Until a gang is committed, none of its members is bound.
func (s *Store) Stop() (bindings int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping = true
	for _, flight := range s.inFlight {
		if flight.committed && !flight.Unknown {
			bindings++
		}
	}
	return bindings
}

// Begin opens a session. Verdicts that arrive later belong to its epoch.
func (s *Store) Begin(epoch uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch = epoch
}

// Epoch returns the epoch of the current session, or 0 without a session.
func (s *Store) Epoch() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epoch
}

// Lost ends the session and makes every verdict void. Members that were allowed continue to bind.
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

// Apply stores a verdict. It returns the gang for which Filter must be called and whose members must be activated, or
// nil. The service may repeat a refusal in the same generation, with members that have joined the gang since.
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
			s.places.fail(old, time.Now())
		}
		return nil, old.void("withdrawn: " + verdict.Reason), nil
	}
	if err := check(verdict); err != nil {
		return nil, Instructions{}, err
	}
	g := newGang(s, s.epoch, verdict)
	if old != nil && old.phase != Closed && old.Refused == g.Refused && old.Plan.Generation == g.Plan.Generation {
		if !g.Refused || !s.joined(old, g) {
			return nil, Instructions{}, nil // a repeated verdict of the same generation
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

// Through returns whether this gang pod may enter the active queue now.
func (s *Store) Through(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.through(uid)
}

// through does the same as Through. The caller holds the lock.
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
		// Use seen, which PreFilter sets: after our PreEnqueue another PreEnqueue plugin may still hold the pod.
		return !m.seen
	default:
		return m.state != failed
	}
}

// LeaveUntold keeps the pod out of the queue while its gang is refused. A pod of no refused gang is not affected.
func (s *Store) LeaveUntold(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, found := s.byUID[uid]; found && at.gang.Refused {
		at.gang.members[at.index].seen = true
	}
}

// joined returns whether the refusal in g contains members that old did not contain. Members that already failed with
// the refusal are not let through again. The caller holds the lock.
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

// Admission is what PreFilter needs to know about a pod.
type Admission struct {
	Gang   *Gang
	Member int
	// Reason is the sentence of a refused gang.
	Reason  string
	Planned string
	Scores  map[string]int64
	// Devices are those that the member gets on its planned node, where a DRA driver serves its GPUs.
	Devices []string
	// Subrequest is the number of the subrequest by which it gets them, from 1; 0 if its claims leave no choice.
	Subrequest int
	// DeviceMemory is the GiB of each of them that it shares with others, 0 if it gets them whole.
	DeviceMemory uint32
}

// Admit returns the admission of a pod for PreFilter and marks the member as seen. It returns false if no verdict
// admits this pod now. That happens in two cases. The pod came out of the back-off queue, where PreEnqueue is not
// called (scheduling_queue.go, moveToActiveQ). Or the verdict became void while the pod was queued.
func (s *Store) Admit(uid types.UID) (Admission, bool) {
	at, answer, only := s.markSeen(uid)
	if answer == nil {
		return Admission{}, false
	}
	a := Admission{Gang: at.gang, Member: at.index}
	if at.gang.Refused {
		a.Reason = answer.reason
		return a, true
	}
	// An answer never changes. So build the result without the lock that PreEnqueue needs.
	a.Planned, a.Scores = answer.Planned(at.index), answer.Scores(at.index, only)
	a.Devices, a.Subrequest = answer.Devices(at.index), answer.Subrequest(at.index)
	a.DeviceMemory = answer.DeviceMemory(at.index)
	return a, true
}

// PlannedForOthers returns the devices that live plans have for members that are not bound yet, as driver/pool/name. What
// this pod's own plan has for it is left out, and what is of other drivers than these if any are named. Plans with devices
// of other drivers alone are not read.
func (s *Store) PlannedForOthers(uid types.UID, drivers sets.Set[string]) (found []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.gangs {
		if g.phase == Closed || g.Refused || g.answer == nil || g.answer.devices == nil {
			continue
		}
		if drivers != nil && !drivers.HasAny(g.answer.drivers.UnsortedList()...) {
			continue
		}
		for i := range g.members {
			if state := g.members[i].state; g.UIDs[i] != uid && state != bound && state != failed {
				for _, name := range g.answer.devices[i] {
					if drivers == nil || drivers.Has(driverOf(name)) {
						found = append(found, name)
					}
				}
			}
		}
	}
	return found
}

// markSeen marks a member as seen and returns its answer. If only is true, the member may use only its planned node:
// no planned node has refused a member yet, or Permit has been called. Each further node costs the cycle another
// check of all pods nominated there. A member that comes again does not count as progress.
func (s *Store) markSeen(uid types.UID) (at slot, answer *Answer, only bool) {
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

// Forget removes a deleted pod. It removes the gang with its last pod.
func (s *Store) Forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.places.depart(uid, time.Now())
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

// drop removes a gang from the indices. Running cycles that hold the gang continue to use it. The caller holds the
// lock.
func (s *Store) drop(g *Gang) {
	delete(s.gangs, g.Plan.Gang)
	for _, uid := range g.UIDs {
		if s.byUID[uid].gang == g {
			delete(s.byUID, uid)
		}
	}
}
