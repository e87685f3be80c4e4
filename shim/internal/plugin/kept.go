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
	// maxKept bounds the pods that are noted because devices were kept from them, and maxKeptOf those of one namespace.
	// Kubernetes tries every pod again after some minutes, so a further one only waits longer.
	maxKept, maxKeptOf = 1024, 64
	// keptPause is the least time between two tries of such a pod that the ends of plans cause. Activate skips the
	// queue's back-off, so any number of pods that can never run would otherwise cost a cycle with each plan.
	keptPause = 10 * time.Second
	// keptAtOnce bounds the pods that are tried at once, and keptBreak is the time before the next ones: each costs the
	// scheduling thread milliseconds.
	keptAtOnce, keptBreak = 16, time.Second
)

// kept notes the pods from which the allocator kept devices of live plans. No event of the cluster tells that such a plan
// has ended without an allocation.
type kept struct {
	mu    sync.Mutex
	pods  map[string]*keptPod
	ended int       // plans
	last  time.Time // when pods were tried
	armed bool      // further pods are tried by a timer
}

// keptPod is a place in the line of refused pods. `pod` is nil between a retry and the next refusal. `due` means: a plan
// ended after the refusal, so a retry may succeed.
type keptPod struct {
	pod       *v1.Pod
	namespace string
	tried     time.Time
	due       bool
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
func (p *Plugin) noteKept(state fwk.CycleState, pod *v1.Pod, statuses fwk.NodeToStatusReader) {
	data, err := state.Read(coreKey)
	if err != nil {
		return
	}
	if cycle := data.(*coreData); cycle.keeps && p.refusedByDevices(statuses) {
		if p.kept.note(pod, cycle.ended, time.Now()) { // a plan ended during this cycle, and did not find the pod
			p.activateKept()
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

// end notes that a plan has ended.
func (k *kept) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended++
	for _, of := range k.pods {
		of.due = of.due || of.pod != nil
	}
}

// note notes a pod. `ended` is how many plans had ended when its cycle began. It returns whether the pod is due: more have by now.
// A pod that was not known counts as tried a pause ago. So new ones do not come before those that have waited longer.
func (k *kept) note(pod *v1.Pod, ended int, now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pods == nil {
		k.pods = map[string]*keptPod{}
	}
	key := pod.Namespace + "/" + pod.Name
	known := k.pods[key]
	if known == nil {
		k.leave(now)
		if len(k.pods) >= maxKept || k.of(pod.Namespace) >= maxKeptOf {
			return false
		}
		known = &keptPod{namespace: pod.Namespace, tried: now.Add(-keptPause)}
		k.pods[key] = known
	}
	known.pod, known.due = pod, known.due || k.ended != ended
	return known.due
}

// of returns how many pods of a namespace are noted.
func (k *kept) of(namespace string) (count int) {
	for _, of := range k.pods {
		if of.namespace == namespace {
			count++
		}
	}
	return count
}

// leave gives up the places of pods that were tried a pause ago and not refused since.
func (k *kept) leave(now time.Time) {
	maps.DeleteFunc(k.pods, func(_ string, of *keptPod) bool { return of.pod == nil && now.Sub(of.tried) >= keptPause })
}

// take returns the pods to try now: those that are due, the longest untried first. It also returns when to ask again
// because others are due, or 0.
func (k *kept) take(now time.Time) (found map[string]*v1.Pod, again time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.leave(now)
	var due []string
	for key, of := range k.pods {
		if of.due {
			due = append(due, key)
		}
	}
	slices.SortFunc(due, func(a, b string) int {
		return cmp.Or(k.pods[a].tried.Compare(k.pods[b].tried), cmp.Compare(a, b))
	})
	if wait := keptBreak - now.Sub(k.last); wait > 0 && len(due) > 0 {
		return nil, wait
	}
	found = map[string]*v1.Pod{}
	for _, key := range due {
		of := k.pods[key]
		if wait := keptPause - now.Sub(of.tried); wait > 0 { // so have all that follow
			return found, wait
		}
		if len(found) == keptAtOnce {
			return found, keptBreak
		}
		found[key] = of.pod
		of.pod, of.tried, of.due, k.last = nil, now, false, now
	}
	return found, 0
}

// tryKept puts pods back into the scheduling queue from which devices of plans were kept, when a plan has ended and its
// last member has given back what it had reserved. It does nothing for pods that have a node by now.
func (c *core) tryKept(g *gangs.Gang) {
	if g.Holds() {
		return
	}
	c.kept.end()
	c.activateKept()
}

func (c *core) activateKept() {
	pods, again := c.kept.take(time.Now())
	if again > 0 && c.kept.arm() {
		time.AfterFunc(again, func() {
			c.kept.disarm()
			c.activateKept()
		})
	}
	if len(pods) > 0 {
		c.handle.Activate(klog.Background(), pods)
	}
}

// arm returns whether a timer must be started, because there is none.
func (k *kept) arm() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := k.armed
	k.armed = true
	return !before
}

func (k *kept) disarm() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.armed = false
}
