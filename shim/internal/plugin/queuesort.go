package plugin

import (
	"cmp"
	"time"

	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"muster.dev/shim/internal/gangs"
)

// Less is PrioritySort's, priority and then age, but that the members of a gang stand together, where its
// oldest one belongs. Scattered over a backlog they would hold nodes for each other until the last one's turn,
// in Permit and as nominations.
func (p *Plugin) Less(a, b fwk.QueuedEntityInfo) bool {
	if one, other := a.GetPriority(), b.GetPriority(); one != other {
		return one > other
	}
	one, other := p.turn(a), p.turn(b)
	return cmp.Or(one.since.Compare(other.since), cmp.Compare(one.gang, other.gang), a.GetTimestamp().Compare(b.GetTimestamp())) < 0
}

// turn is when an entity of its priority is scheduled. Gangs of one second, which is all that a
// creationTimestamp tells, go one after the other.
type turn struct {
	since time.Time
	gang  string
}

func (p *Plugin) turn(entity fwk.QueuedEntityInfo) turn {
	if queued, single := entity.(*framework.QueuedPodInfo); single {
		if since, gang, found := p.store.Place(queued.Pod.UID); found {
			return turn{since, gang}
		}
	}
	return turn{since: entity.GetTimestamp()}
}

// oldest is when the first of the gang's members was created; now, where none is known.
func (c *core) oldest(g *gangs.Gang) time.Time {
	oldest := time.Now()
	for i := range g.UIDs {
		if pod := c.pod(g, i); pod != nil && pod.CreationTimestamp.Time.Before(oldest) {
			oldest = pod.CreationTimestamp.Time
		}
	}
	return oldest
}
