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

// slot is a member: its gang and its index in the verdict.
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

// Stop prevents further commits of gangs. It returns the number of members of committed gangs that are at Bind without an
// answer. Other gangs have no bound members.
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

// BeginSession opens a session. Verdicts that arrive later belong to its epoch.
func (s *Store) BeginSession(epoch uint64) {
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

// EndSession ends the session and makes every verdict void. Members that were allowed continue to bind.
func (s *Store) EndSession() Instructions {
	s.mu.Lock()
	defer s.mu.Unlock()
	var do Instructions
	for _, g := range s.gangs {
		do.append(g.voidByService("the session with the service was lost"))
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
			s.places.recordFailure(old, time.Now())
		}
		return nil, old.voidByService("withdrawn: " + verdict.Reason), nil
	}
	if err := checkVerdict(verdict); err != nil {
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
		do = old.voidByService("replaced by a later verdict")
	}
	s.gangs[verdict.Gang] = g
	for i, uid := range g.UIDs {
		s.byUID[uid] = slot{gang: g, index: i}
	}
	return g, do, nil
}

func checkVerdict(v *musterv1.Verdict) error {
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

// MayEnterQueue returns whether this gang pod may enter the active queue now.
func (s *Store) MayEnterQueue(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mayEnterQueue(uid)
}

// mayEnterQueue does the same as MayEnterQueue. The caller holds the lock.
func (s *Store) mayEnterQueue(uid types.UID) bool {
	slot, ok := s.byUID[uid]
	if !ok {
		return false
	}
	g, m := slot.gang, &slot.gang.members[slot.index]
	switch {
	case g.phase == Pending || g.phase == Closed || g.closedAfterPermit:
		return false
	case g.Refused:
		// Use cycleRan, which PreFilter sets: after our PreEnqueue another PreEnqueue plugin may still hold the pod.
		return !m.cycleRan
	default:
		return m.state != failed
	}
}

// HoldWhileRefused keeps the pod out of the queue while its gang is refused. It has no effect on other pods.
func (s *Store) HoldWhileRefused(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slot, ok := s.byUID[uid]; ok && slot.gang.Refused {
		slot.gang.members[slot.index].cycleRan = true
	}
}

// joined returns whether the refusal in g contains members that old did not contain. Members that already failed with
// the refusal are not let through again, because each costs a write to the API server. The caller holds the lock.
func (s *Store) joined(old, g *Gang) bool {
	hasNew := false
	for i, uid := range g.UIDs {
		if slot := s.byUID[uid]; slot.gang == old {
			g.members[i].cycleRan = old.members[slot.index].cycleRan
		} else {
			hasNew = true
		}
	}
	return hasNew
}

// Admission holds the parts of a verdict that a pod's cycle needs.
type Admission struct {
	Gang   *Gang
	Member int
	// Reason is the sentence of a refused gang.
	Reason  string
	Planned string
	Scores  map[string]int64
	// Devices are the devices that the member gets on its planned node, if a DRA driver serves its GPUs.
	Devices []string
	// Subrequest is the number of the subrequest by which the member gets its devices, from 1. It is 0 if the member's
	// claims leave no choice.
	Subrequest int
	// DeviceMemory is the GiB that the member gets of each device if it shares the devices, or 0 if it gets whole devices.
	DeviceMemory uint32
}

// Admit returns the admission of a pod for PreFilter and records that a cycle of the member has run. It returns false if
// no verdict admits this pod now. That happens in two cases. The pod came out of the back-off queue, where PreEnqueue is
// not called (scheduling_queue.go, moveToActiveQ). Or the verdict became void while the pod was queued.
func (s *Store) Admit(uid types.UID) (Admission, bool) {
	slot, answer, only := s.markCycleRan(uid)
	if answer == nil {
		return Admission{}, false
	}
	a := Admission{Gang: slot.gang, Member: slot.index}
	if slot.gang.Refused {
		a.Reason = answer.reason
		return a, true
	}
	// An answer never changes. So build the result without the lock that PreEnqueue needs.
	a.Planned, a.Scores = answer.Planned(slot.index), answer.Scores(slot.index, only)
	a.Devices, a.Subrequest = answer.Devices(slot.index), answer.Subrequest(slot.index)
	a.DeviceMemory = answer.DeviceMemory(slot.index)
	return a, true
}

// PlannedForOthers returns the devices that live plans have for members that are not bound yet, as driver/pool/name.
// Devices planned for this pod are excluded. If drivers is not nil, only devices of these drivers are returned, and plans
// without such devices are not read.
func (s *Store) PlannedForOthers(uid types.UID, drivers sets.Set[string]) (planned []string) {
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
						planned = append(planned, name)
					}
				}
			}
		}
	}
	return planned
}

// markCycleRan records that a cycle of the member has run, and returns the gang's answer. If only is true, the member
// may use only its planned node: no planned node has refused a member yet, or Permit has been called. The reason is
// that each further node costs the cycle a check of all pods nominated there. A second cycle of a member is no
// progress.
func (s *Store) markCycleRan(uid types.UID) (entry slot, answer *Answer, only bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	entry, ok := s.byUID[uid]
	if !ok {
		return slot{}, nil, false
	}
	g, m := entry.gang, &entry.gang.members[entry.index]
	if g.phase == Pending || g.phase == Closed || g.closedAfterPermit || m.state == failed {
		return slot{}, nil, false
	}
	if !m.cycleRan {
		g.progress++
	}
	m.cycleRan, m.offeredCandidates = true, g.allowCandidates && !g.permitRequested
	return entry, g.answer, !m.offeredCandidates
}

// Forget removes a deleted pod. It removes the gang with its last pod.
func (s *Store) Forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.places.removeLater(uid, time.Now())
	slot, ok := s.byUID[uid]
	if !ok {
		return
	}
	delete(s.byUID, uid)
	for _, sibling := range slot.gang.UIDs {
		if s.byUID[sibling].gang == slot.gang {
			return
		}
	}
	if s.gangs[slot.gang.Plan.Gang] == slot.gang {
		delete(s.gangs, slot.gang.Plan.Gang)
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
