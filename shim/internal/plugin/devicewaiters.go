package plugin

import (
	"cmp"
	"maps"
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
	// maxWaiters bounds the pods in the list, and maxWaitersOfNamespace bounds those of one namespace. Kubernetes tries
	// every pod again after some minutes, so a pod that is not in the list only waits longer.
	maxWaiters, maxWaitersOfNamespace = 1024, 64
	// retryPause is the least time between two tries of a pod. Activate skips the queue's back-off. So without a pause,
	// each end of a plan would cost a cycle for every pod that can never run.
	retryPause = 10 * time.Second
	// retriesAtOnce bounds the pods that are tried at once, and retryBreak is the time before the next pods are tried.
	// Each try costs the scheduling thread milliseconds.
	retriesAtOnce, retryBreak = 16, time.Second
)

// deviceWaiters is the list of pods that the allocator refused because live plans hold the devices. They are tried
// again when a plan ends. No cluster event retries them, because a plan that ends without an allocation changes no
// object.
type deviceWaiters struct {
	mu    sync.Mutex
	pods  map[string]*waitingPod
	ended int       // number of ended plans
	last  time.Time // when pods were last tried
	armed bool      // a timer runs, after which further pods are tried
}

// waitingPod is an entry for a refused pod. `pod` is nil from a retry to the next refusal. `due` means that a plan
// ended after the refusal, so a retry may succeed.
type waitingPod struct {
	pod       *v1.Pod
	namespace string
	tried     time.Time
	due       bool
}

// plannedForOthers returns the devices of these drivers that live plans have for other pods. It records in the cycle
// whether there are any, because addWaiter lists only pods that such plans hinder.
func (c *cycleData) plannedForOthers(pod *v1.Pod, drivers sets.Set[string]) []string {
	endedBefore := c.deviceWaiters.endedCount()
	planned := c.store.PlannedForOthers(pod.UID, drivers)
	if len(planned) > 0 && !c.plansHoldDevices {
		c.plansHoldDevices, c.endedBefore = true, endedBefore
	}
	return planned
}

// addWaiter adds the cycle's pod to the list if plans hold devices that the pod could use, and a node was refused for its
// devices. It is not called for our own pods, because the service plans them again.
func (p *Plugin) addWaiter(state fwk.CycleState, pod *v1.Pod, statuses fwk.NodeToStatusReader) {
	data, err := state.Read(cycleDataKey)
	if err != nil {
		return
	}
	if cycle := data.(*cycleData); cycle.plansHoldDevices && p.isRefusedForDevices(statuses) {
		if p.deviceWaiters.recordRefusal(pod, cycle.endedBefore, time.Now()) { // a plan ended during this cycle, when the pod was not in the list yet
			p.activateWaiters()
		}
	}
}

// isRefusedForDevices returns whether the plugin for devices has refused a node.
func (p *Plugin) isRefusedForDevices(statuses fwk.NodeToStatusReader) bool {
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

func (w *deviceWaiters) endedCount() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ended
}

func (w *deviceWaiters) recordEnd() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended++
	for _, waiting := range w.pods {
		waiting.due = waiting.due || waiting.pod != nil
	}
}

// recordRefusal records a refused pod. endedBefore is the number of plans that had ended when its cycle began. If more
// plans have ended since, they may have freed devices that the cycle saw as taken: the pod is due, and the result is
// true. A new pod gets tried = now − retryPause, so it may be tried at once, but only after pods that have waited
// longer.
func (w *deviceWaiters) recordRefusal(pod *v1.Pod, endedBefore int, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pods == nil {
		w.pods = map[string]*waitingPod{}
	}
	key := pod.Namespace + "/" + pod.Name
	waiting := w.pods[key]
	if waiting == nil {
		w.removeOld(now)
		if len(w.pods) >= maxWaiters || w.countOf(pod.Namespace) >= maxWaitersOfNamespace {
			return false
		}
		waiting = &waitingPod{namespace: pod.Namespace, tried: now.Add(-retryPause)}
		w.pods[key] = waiting
	}
	waiting.pod, waiting.due = pod, waiting.due || w.ended != endedBefore
	return waiting.due
}

// countOf returns the number of waiting pods of a namespace.
func (w *deviceWaiters) countOf(namespace string) (count int) {
	for _, waiting := range w.pods {
		if waiting.namespace == namespace {
			count++
		}
	}
	return count
}

// removeOld removes the entries of pods that were tried again more than retryPause ago and were not refused since.
func (w *deviceWaiters) removeOld(now time.Time) {
	maps.DeleteFunc(w.pods, func(_ string, waiting *waitingPod) bool {
		return waiting.pod == nil && now.Sub(waiting.tried) >= retryPause
	})
}

// takeDue returns the pods to try now: pods that are due, beginning with the pod that has not been tried for the longest
// time. If further pods are due, it also returns the time until they may be tried, otherwise 0.
func (w *deviceWaiters) takeDue(now time.Time) (pods map[string]*v1.Pod, pause time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.removeOld(now)
	var due []string
	for key, waiting := range w.pods {
		if waiting.due {
			due = append(due, key)
		}
	}
	slices.SortFunc(due, func(a, b string) int {
		return cmp.Or(w.pods[a].tried.Compare(w.pods[b].tried), cmp.Compare(a, b))
	})
	if wait := retryBreak - now.Sub(w.last); wait > 0 && len(due) > 0 {
		return nil, wait
	}
	pods = map[string]*v1.Pod{}
	for _, key := range due {
		waiting := w.pods[key]
		if wait := retryPause - now.Sub(waiting.tried); wait > 0 { // the pods after it have to wait even longer
			return pods, wait
		}
		if len(pods) == retriesAtOnce {
			return pods, retryBreak
		}
		pods[key] = waiting.pod
		waiting.pod, waiting.tried, waiting.due, w.last = nil, now, false, now
	}
	return pods, 0
}

// retryWaiters puts waiting pods back into the scheduling queue. It does so when a plan has ended and its last member
// has given back its reserved devices. Activate ignores pods that have a node by now.
func (c *core) retryWaiters(g *gangs.Gang) {
	if g.HoldsNodes() {
		return
	}
	c.deviceWaiters.recordEnd()
	c.activateWaiters()
}

// activateWaiters puts the pods that are due back into the scheduling queue, and starts the timer for further ones.
func (c *core) activateWaiters() {
	pods, pause := c.deviceWaiters.takeDue(time.Now())
	if pause > 0 && c.deviceWaiters.arm() {
		time.AfterFunc(pause, func() {
			c.deviceWaiters.disarm()
			c.activateWaiters()
		})
	}
	if len(pods) > 0 {
		c.handle.Activate(klog.Background(), pods)
	}
}

// arm records that a timer runs. It returns whether the caller must start this timer, because none was running.
func (w *deviceWaiters) arm() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	wasArmed := w.armed
	w.armed = true
	return !wasArmed
}

// disarm records that no timer runs.
func (w *deviceWaiters) disarm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.armed = false
}
