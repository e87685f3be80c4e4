package plugin

import (
	"context"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"muster.dev/shim/internal/gangs"
)

// maxKept bounds the pods that are noted because devices were kept from them. Kubernetes tries every pod again after some
// minutes, so a further one only waits longer.
const maxKept = 1024

// kept notes the pods from which the allocator kept devices of live plans. No event of the cluster tells that such a plan
// has ended without an allocation.
type kept struct {
	mu   sync.Mutex
	pods map[string]*v1.Pod
}

// plannedForOthers returns the devices that live plans have for other pods, and notes the pod if there are any.
func (c *core) plannedForOthers(pod *v1.Pod) []string {
	found := c.store.PlannedForOthers(pod.UID)
	if len(found) > 0 && !c.args.concerns(pod) { // ours are planned again by the service
		c.kept.note(pod)
	}
	return found
}

func (k *kept) note(pod *v1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pods == nil {
		k.pods = map[string]*v1.Pod{}
	}
	if len(k.pods) < maxKept {
		k.pods[pod.Namespace+"/"+pod.Name] = pod
	}
}

func (k *kept) take() map[string]*v1.Pod {
	k.mu.Lock()
	defer k.mu.Unlock()
	pods := k.pods
	k.pods = nil
	return pods
}

// tryKept puts pods back into the scheduling queue from which devices of plans were kept, when a plan has ended and its
// last member has given back what it had reserved. It does nothing for pods that have a node by now.
func (c *core) tryKept(ctx context.Context, g *gangs.Gang) {
	if g.Holds() {
		return
	}
	if pods := c.kept.take(); len(pods) > 0 {
		c.handle.Activate(klog.FromContext(ctx), pods)
	}
}
