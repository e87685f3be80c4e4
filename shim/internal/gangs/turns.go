package gangs

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// turnsKept is how long a turn outlives its pod's deletion: the scheduling queue learns of it by a handler of
// its own, and until then it compares the pod with others.
const turnsKept = 10 * time.Minute

// Turn is a pod's place in the scheduling queue, among pods of its priority.
type Turn struct {
	// Since is when the oldest member of the gang was created, or when the gang failed last; of a member of a
	// refused gang, when it was let through.
	Since time.Time
	// Gang orders gangs of one time, one after the other.
	Gang string
	// Member is the pod's index in the verdict.
	Member int
}

// turns holds the place of each pod of ours that stands in the scheduling queue, and when its gang failed last.
// The Store's mutex guards it. A place never changes while the pod is queued, because a heap is no longer ordered when
// its keys change. So the place is written in PreEnqueue alone, before the pod enters a heap, and outlives verdict and pod.
type turns struct {
	fixed    map[types.UID]Turn
	failed   map[types.UID]time.Time
	departed []departure // in the order of time
}

type departure struct {
	uid types.UID
	at  time.Time
}

func newTurns() turns {
	return turns{fixed: map[types.UID]Turn{}, failed: map[types.UID]time.Time{}}
}

// Enter answers PreEnqueue, and fixes the place of a pod that it lets through. kube-scheduler calls PreEnqueue
// before a pod enters activeQ or backoffQ, never while it is in one of them (backend/queue/scheduling_queue.go,
// moveToActiveQ and moveToBackoffQ). From backoffQ to activeQ a pod keeps its place.
func (s *Store) Enter(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.through(uid) {
		return false
	}
	at := s.byUID[uid]
	since := at.gang.since
	if at.gang.Refused {
		since = time.Now().Round(0) // behind all that wait: nothing is held for it
	}
	s.turns.fixed[uid] = Turn{Since: since, Gang: at.gang.Plan.Gang, Member: at.index}
	return true
}

// Turn is the place that was fixed when the pod last entered the queue; none for a pod that is not of a gang.
func (s *Store) Turn(uid types.UID) (Turn, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	turn, found := s.turns.fixed[uid]
	return turn, found
}

// fail notes that the gang had its turn and came to nothing: its next turn counts from now, as that of any pod
// that fails does.
func (t *turns) fail(g *Gang, now time.Time) {
	for i := range g.members {
		if g.members[i].seen {
			for _, uid := range g.UIDs {
				t.failed[uid] = now
			}
			return
		}
	}
}

// since is where a gang stands: at the given time, or where it failed last.
func (t *turns) since(g *Gang, oldest time.Time) time.Time {
	for _, uid := range g.UIDs {
		if at := t.failed[uid]; at.After(oldest) {
			oldest = at
		}
	}
	return oldest
}

// leave forgets a pod that is bound: it is in no queue and never will be.
func (t *turns) leave(uid types.UID) {
	delete(t.fixed, uid)
	delete(t.failed, uid)
}

// depart forgets the pod some time later, and those now whose time has come.
func (t *turns) depart(uid types.UID, now time.Time) {
	_, queued := t.fixed[uid]
	_, failed := t.failed[uid]
	if queued || failed {
		t.departed = append(t.departed, departure{uid, now})
	}
	old := 0
	for ; old < len(t.departed) && now.Sub(t.departed[old].at) > turnsKept; old++ {
		t.leave(t.departed[old].uid)
	}
	t.departed = t.departed[old:]
}
