package gangs

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// placeKept is how long a place is kept after its pod's deletion. The scheduling queue learns of the deletion through
// its own handler. Until then it still compares the pod with others.
const placeKept = 10 * time.Minute

// Place is a pod's position in the scheduling queue among pods of its priority.
type Place struct {
	// Since is when the gang's oldest member was created, or when the gang last failed. For a member of a refused
	// gang, it is when PreEnqueue let the member through.
	Since time.Time
	// Gang orders gangs with equal times, so that their members do not mix.
	Gang string
	// Member is the pod's index in the verdict.
	Member int
}

// places holds the queue place of each gang pod, and when its gang last failed. The Store's mutex guards it.
//
// A place must not change while its pod is queued, because the queue is a heap and a changed key breaks its order. So
// only PreEnqueue writes a place, before the pod enters a heap. The place outlives the verdict and the pod.
type places struct {
	fixed    map[types.UID]Place
	failed   map[types.UID]time.Time
	departed []departure // sorted by time
}

// departure is a pod whose place is removed some time after the pod was deleted.
type departure struct {
	uid       types.UID
	deletedAt time.Time
}

func newPlaces() places {
	return places{fixed: map[types.UID]Place{}, failed: map[types.UID]time.Time{}}
}

// Enter decides for PreEnqueue whether a pod may enter the queue, and fixes its place if so. kube-scheduler calls
// PreEnqueue before a pod enters activeQ or backoffQ, never while it is in one of them
// (backend/queue/scheduling_queue.go, moveToActiveQ and moveToBackoffQ). A pod that moves from backoffQ to activeQ
// keeps its place.
func (s *Store) Enter(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mayEnterQueue(uid) {
		return false
	}
	slot := s.byUID[uid]
	since := slot.gang.since
	if slot.gang.Refused {
		since = time.Now().Round(0) // behind all waiting pods, because no capacity is held for it
	}
	s.places.fixed[uid] = Place{Since: since, Gang: slot.gang.Plan.Gang, Member: slot.index}
	return true
}

// Place returns the place that was fixed when the pod last entered the queue. It returns false for a pod without a
// gang.
func (s *Store) Place(uid types.UID) (Place, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	place, ok := s.places.fixed[uid]
	return place, ok
}

// recordFailure records that the gang was scheduled and failed. From now on, its place counts from this time, as for any
// pod that fails.
func (p *places) recordFailure(g *Gang, now time.Time) {
	for i := range g.members {
		if g.members[i].cycleRan {
			for _, uid := range g.UIDs {
				p.failed[uid] = now
			}
			return
		}
	}
}

// queueTime returns the time by which the gang is sorted: oldest, or the gang's last failure if that is later.
func (p *places) queueTime(g *Gang, oldest time.Time) time.Time {
	for _, uid := range g.UIDs {
		if failure := p.failed[uid]; failure.After(oldest) {
			oldest = failure
		}
	}
	return oldest
}

// remove removes a pod that is in no queue and will never be, because it is bound or deleted.
func (p *places) remove(uid types.UID) {
	delete(p.fixed, uid)
	delete(p.failed, uid)
}

// removeLater schedules the removal of a deleted pod, and removes the pods that were deleted more than placeKept ago.
func (p *places) removeLater(uid types.UID, now time.Time) {
	_, queued := p.fixed[uid]
	_, failed := p.failed[uid]
	if queued || failed {
		p.departed = append(p.departed, departure{uid, now})
	}
	old := 0
	for ; old < len(p.departed) && now.Sub(p.departed[old].deletedAt) > placeKept; old++ {
		p.remove(p.departed[old].uid)
	}
	p.departed = p.departed[old:]
}
