package plugin

import (
	"cmp"
	"time"

	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"muster.dev/shim/internal/gangs"
)

// Less orders pods like PrioritySort, by priority and then age. But the members of a planned gang are next to each
// other, at the place of the oldest, in the order of the verdict. Otherwise the first members would hold nodes, in
// Permit and as nominations, until the last one is scheduled.
//
// The queues are heaps that call Less whenever a pod is added or removed. So a pod's key must not change while the
// pod is in one. Priority and timestamp do not change. The gang's part is fixed when the pod enters
// (gangs.Store.Enter), whatever happens to its verdict.
func (p *Plugin) Less(a, b fwk.QueuedEntityInfo) bool {
	if first, second := a.GetPriority(), b.GetPriority(); first != second {
		return first > second
	}
	first, second := p.sortKey(a), p.sortKey(b)
	return cmp.Or(
		first.Since.Compare(second.Since),
		cmp.Compare(first.Gang, second.Gang),
		cmp.Compare(first.Member, second.Member),
		first.queued.Compare(second.queued),
	) < 0
}

// sortKey orders entities of one priority. A creationTimestamp has a resolution of one second. So gangs of the same
// second are ordered by name, one after the other. All times are wall-clock times, because creationTimestamp is.
type sortKey struct {
	gangs.Place
	queued time.Time
}

// sortKey returns the key of an entity. An entity that is no gang pod sorts by the time when it was queued.
func (p *Plugin) sortKey(entity fwk.QueuedEntityInfo) sortKey {
	queued := entity.GetTimestamp().Round(0)
	if pod, single := entity.(*framework.QueuedPodInfo); single {
		if place, ok := p.store.Place(pod.Pod.UID); ok {
			return sortKey{place, queued}
		}
	}
	return sortKey{gangs.Place{Since: queued}, queued}
}

// oldestCreation returns when the gang's oldest member was created, or the current time if the informer has no member.
func (c *core) oldestCreation(g *gangs.Gang) time.Time {
	oldest := time.Now().Round(0)
	for i := range g.UIDs {
		if pod := c.memberPod(g, i); pod != nil && pod.CreationTimestamp.Time.Before(oldest) {
			oldest = pod.CreationTimestamp.Time
		}
	}
	return oldest
}
