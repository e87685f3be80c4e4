package plugin

import (
	"context"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"muster.dev/shim/internal/devices"
	"muster.dev/shim/internal/gangs"
)

const (
	// maxKept bounds the pods that are noted because devices were kept from them. Kubernetes tries every pod again after
	// some minutes, so a further one only waits longer.
	maxKept = 1024
	// keptPause is the least time between two tries of such a pod that the ends of plans cause. Activate skips the
	// queue's back-off, so any number of pods that can never run would otherwise cost a cycle with each plan.
	keptPause = 10 * time.Second
)

// kept notes the pods from which the allocator kept devices of live plans. No event of the cluster tells that such a plan
// has ended without an allocation.
type kept struct {
	mu    sync.Mutex
	pods  map[string]*keptPod
	ended int // plans
}

// keptPod is a pod that was refused, or nil if it was not refused since it was tried again.
type keptPod struct {
	pod   *v1.Pod
	tried time.Time
}

// plannedForOthers returns the devices of these drivers that live plans have for other pods. It notes in the cycle if
// there are any.
func (c *coreData) plannedForOthers(pod *v1.Pod, drivers sets.Set[string]) []string {
	ended := c.kept.hasEnded()
	found := c.store.PlannedForOthers(pod.UID, drivers)
	if len(found) > 0 && !c.keeps {
		c.keeps, c.ended = true, ended
	}
	return found
}

// noteKept notes a pod from which devices were kept, if a node was refused for its devices. Ours are planned again by the
// service.
func (p *Plugin) noteKept(ctx context.Context, state fwk.CycleState, pod *v1.Pod, statuses fwk.NodeToStatusReader) {
	data, err := state.Read(coreKey)
	if err != nil || p.args.concerns(pod) {
		return
	}
	if cycle := data.(*coreData); cycle.keeps && p.refusedByDevices(statuses) {
		p.kept.note(pod)
		if p.kept.hasEnded() != cycle.ended { // a plan ended during this cycle, and did not find the pod
			p.activateKept(ctx)
		}
	}
}

func (p *Plugin) refusedByDevices(statuses fwk.NodeToStatusReader) bool {
	for _, code := range []fwk.Code{fwk.Unschedulable, fwk.UnschedulableAndUnresolvable} {
		nodes, err := statuses.NodesForStatusCode(p.handle.SnapshotSharedLister().NodeInfos(), code)
		if err != nil {
			return true
		}
		if slices.ContainsFunc(nodes, func(n fwk.NodeInfo) bool { return statuses.Get(n.Node().Name).Plugin() == devices.Name }) {
			return true
		}
	}
	return false
}

func (k *kept) hasEnded() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ended
}

func (k *kept) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended++
}

func (k *kept) note(pod *v1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pods == nil {
		k.pods = map[string]*keptPod{}
	}
	key := pod.Namespace + "/" + pod.Name
	if known := k.pods[key]; known != nil {
		known.pod = pod
	} else if len(k.pods) < maxKept {
		k.pods[key] = &keptPod{pod: pod}
	}
}

// take returns the pods to try now. Those that were tried a short time ago stay noted.
func (k *kept) take(now time.Time) map[string]*v1.Pod {
	k.mu.Lock()
	defer k.mu.Unlock()
	found := map[string]*v1.Pod{}
	for key, of := range k.pods {
		switch {
		case now.Sub(of.tried) < keptPause:
		case of.pod == nil:
			delete(k.pods, key)
		default:
			found[key] = of.pod
			of.pod, of.tried = nil, now
		}
	}
	return found
}

// tryKept puts pods back into the scheduling queue from which devices of plans were kept, when a plan has ended and its
// last member has given back what it had reserved. It does nothing for pods that have a node by now.
func (c *core) tryKept(ctx context.Context, g *gangs.Gang) {
	if g.Holds() {
		return
	}
	c.kept.end()
	c.activateKept(ctx)
}

func (c *core) activateKept(ctx context.Context) {
	if pods := c.kept.take(time.Now()); len(pods) > 0 {
		c.handle.Activate(klog.FromContext(ctx), pods)
	}
}
