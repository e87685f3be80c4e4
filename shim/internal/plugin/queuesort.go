package plugin

import (
	"cmp"
	"time"

	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"muster.dev/shim/internal/gangs"
)

// Less is PrioritySort's, priority and then age, but that the members of a planned gang stand together, where
// its oldest one belongs, in the order of the verdict. Scattered over a backlog they would hold nodes for each
// other until the last one's turn, in Permit and as nominations.
//
// The queues are heaps that call Less whenever a pod comes or goes, so a pod's key must not change while it is
// in one. Priority and timestamp do not. The gang's part is fixed when the pod enters (gangs.Store.Enter),
// whatever becomes of its verdict.
func (p *Plugin) Less(a, b fwk.QueuedEntityInfo) bool {
	if one, other := a.GetPriority(), b.GetPriority(); one != other {
		return one > other
	}
	one, other := p.turn(a), p.turn(b)
	return cmp.Or(
		one.Since.Compare(other.Since),
		cmp.Compare(one.Gang, other.Gang),
		cmp.Compare(one.Member, other.Member),
		one.queued.Compare(other.queued),
	) < 0
}

// turn is when an entity of its priority is scheduled. Gangs of one second, which is all that a
// creationTimestamp tells, go one after the other. All is by the wall clock, as that is.
type turn struct {
	gangs.Turn
	queued time.Time
}

func (p *Plugin) turn(entity fwk.QueuedEntityInfo) turn {
	queued := entity.GetTimestamp().Round(0)
	if pod, single := entity.(*framework.QueuedPodInfo); single {
		if of, found := p.store.Turn(pod.Pod.UID); found {
			return turn{of, queued}
		}
	}
	return turn{gangs.Turn{Since: queued}, queued}
}

// oldest is when the first of the gang's members was created; now, where none is known.
func (c *core) oldest(g *gangs.Gang) time.Time {
	oldest := time.Now().Round(0)
	for i := range g.UIDs {
		if pod := c.pod(g, i); pod != nil && pod.CreationTimestamp.Time.Before(oldest) {
			oldest = pod.CreationTimestamp.Time
		}
	}
	return oldest
}
