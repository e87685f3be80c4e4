package plugin

import (
	"cmp"
	"time"

	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"muster.dev/shim/internal/gangs"
)

// Less is PrioritySort's, priority and then age, but that the members of a planned gang stand together, where
// its oldest one belongs. Scattered over a backlog they would hold nodes for each other until the last one's
// turn, in Permit and as nominations.
func (p *Plugin) Less(a, b fwk.QueuedEntityInfo) bool {
	if one, other := a.GetPriority(), b.GetPriority(); one != other {
		return one > other
	}
	one, other := p.turn(a), p.turn(b)
	return cmp.Or(one.since.Compare(other.since), cmp.Compare(one.gang, other.gang), one.queued.Compare(other.queued)) < 0
}

// turn is when an entity of its priority is scheduled. Gangs of one second, which is all that a
// creationTimestamp tells, go one after the other. All is by the wall clock, as that is.
type turn struct {
	since  time.Time
	gang   string
	queued time.Time
}

func (p *Plugin) turn(entity fwk.QueuedEntityInfo) turn {
	queued := entity.GetTimestamp().Round(0)
	if pod, single := entity.(*framework.QueuedPodInfo); single {
		if since, gang, found := p.store.Place(pod.Pod.UID); found {
			return turn{since, gang, queued}
		}
	}
	return turn{since: queued, queued: queued}
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
