package plugin

import (
	"context"
	"fmt"
	"math/rand"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/backend/heap"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"muster.dev/shim/internal/gangs"
	"muster.dev/shim/internal/musterv1"
)

// queueWorld is the scheduling queue's heap with the plugin's Less, while verdicts change.
type queueWorld struct {
	t      *testing.T
	random *rand.Rand
	p      *Plugin
	began  time.Time
	queue  *heap.Heap[*framework.QueuedPodInfo]
	pods   []*framework.QueuedPodInfo
	opened map[string]*gangs.Gang
	number uint64
}

const (
	heapGangs   = 5
	heapMembers = 4
)

func newQueueWorld(t *testing.T, seed int64) *queueWorld {
	w := &queueWorld{
		t: t, random: rand.New(rand.NewSource(seed)), began: time.Now().Add(-time.Hour), opened: map[string]*gangs.Gang{},
		p: &Plugin{core: &core{store: gangs.NewStore(), pods: noPods(), args: Args{Resources: []string{"nvidia.com/gpu"}}}},
	}
	w.p.store.BeginSession(1)
	w.queue = heap.New(
		func(info *framework.QueuedPodInfo) string { return string(info.Pod.UID) },
		func(a, b *framework.QueuedPodInfo) bool { return w.p.Less(a, b) },
	)
	for gang := range heapGangs {
		for member := range heapMembers {
			w.pods = append(w.pods, w.pod(memberName(gang, member), int32(w.random.Intn(2))))
		}
	}
	for i := range 10 {
		w.pods = append(w.pods, w.pod(fmt.Sprintf("foreign-%d", i), int32(w.random.Intn(2))))
	}
	return w
}

// noPods returns the lister of an informer that has received nothing.
func noPods() corelisters.PodLister {
	return corelisters.NewPodLister(cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}))
}

func memberName(gang, member int) string { return fmt.Sprintf("g%d-m%d", gang, member) }

func (w *queueWorld) pod(name string, priority int32) *framework.QueuedPodInfo {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Spec:       v1.PodSpec{Priority: &priority},
	}
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		w.t.Fatal(err)
	}
	return &framework.QueuedPodInfo{PodInfo: info, QueueingParams: framework.QueueingParams{Timestamp: w.time()}}
}

func (w *queueWorld) time() time.Time {
	return w.began.Add(time.Duration(w.random.Intn(100)) * time.Second)
}

// enter does the same as moveToActiveQ: PreEnqueue, then the heap. A pod that is in the heap already does not enter
// again.
func (w *queueWorld) enter(info *framework.QueuedPodInfo) {
	if w.queue.Has(info) {
		return
	}
	if w.isMember(info) && !w.p.store.Enter(info.Pod.UID) {
		return
	}
	info.Timestamp = w.time()
	w.queue.AddOrUpdate(info)
}

func (w *queueWorld) isMember(info *framework.QueuedPodInfo) bool { return info.Pod.Name[0] == 'g' }

// change is an event that concerns the verdict of one gang.
func (w *queueWorld) change() {
	gang := w.random.Intn(heapGangs)
	name := fmt.Sprintf("ns/g%d", gang)
	var names []string
	for member := range heapMembers {
		names = append(names, memberName(gang, member))
	}
	w.number++
	outcome := []musterv1.Outcome{plannedOutcome, plannedOutcome, refusedOutcome, musterv1.Outcome_OUTCOME_WITHDRAWN}[w.random.Intn(4)]
	switch w.random.Intn(6) {
	case 0:
		w.p.store.EndSession()
		w.p.store.BeginSession(w.number)
	case 1:
		if g := w.opened[name]; g != nil {
			g.Abort("denied")
		}
	case 2:
		w.p.store.Forget(types.UID("uid-" + names[w.random.Intn(heapMembers)]))
	default:
		v := verdict(outcome, w.number, names...)
		v.Gang = name
		g, _, err := w.p.store.Apply(v)
		if err != nil {
			w.t.Fatal(err)
		}
		if g != nil {
			g.Open(gangs.NewRefusal("no room"), w.time())
			w.opened[name] = g
		}
	}
}

// The heap pops its pods in Less's order although verdicts change meanwhile. At any moment Less is a strict weak
// order.
func TestTheQueueIsAHeapWhileVerdictsChange(t *testing.T) {
	for seed := range int64(300) {
		w := newQueueWorld(t, seed)
		for range 60 {
			switch w.random.Intn(4) {
			case 0, 1:
				w.enter(w.pods[w.random.Intn(len(w.pods))])
			case 2:
				w.change()
			case 3:
				if w.random.Intn(4) == 0 {
					w.pop()
				}
			}
		}
		w.isStrictWeakOrder()
		var last *framework.QueuedPodInfo
		for w.queue.Len() > 0 {
			w.change() // also while the heap is emptied
			next := w.pop()
			if last != nil && w.p.Less(next, last) {
				t.Fatalf("seed %d: %s came after %s, which stands behind it", seed, next.Pod.Name, last.Pod.Name)
			}
			last = next
		}
	}
}

// pop removes the first pod and checks that no pod in the heap sorts before it.
func (w *queueWorld) pop() *framework.QueuedPodInfo {
	if w.queue.Len() == 0 {
		return nil
	}
	first, err := w.queue.Pop()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, queued := range w.queue.List() {
		if w.p.Less(queued, first) {
			w.t.Fatalf("%s was popped before %s, which stands before it", first.Pod.Name, queued.Pod.Name)
		}
	}
	return first
}

func (w *queueWorld) isStrictWeakOrder() {
	in := w.queue.List()
	less := func(a, b *framework.QueuedPodInfo) bool { return w.p.Less(fwk.QueuedEntityInfo(a), b) }
	for _, a := range in {
		if less(a, a) {
			w.t.Fatalf("%s stands before itself", a.Pod.Name)
		}
		for _, b := range in {
			if less(a, b) && less(b, a) {
				w.t.Fatalf("%s and %s stand before each other", a.Pod.Name, b.Pod.Name)
			}
			for _, c := range in {
				if less(a, b) && less(b, c) && !less(a, c) {
					w.t.Fatalf("%s, %s, %s: not transitive", a.Pod.Name, b.Pod.Name, c.Pod.Name)
				}
				alike := !less(a, b) && !less(b, a) && !less(b, c) && !less(c, b)
				if alike && (less(a, c) || less(c, a)) {
					w.t.Fatalf("%s, %s, %s: alike is not transitive", a.Pod.Name, b.Pod.Name, c.Pod.Name)
				}
			}
		}
	}
}

// PreEnqueue must fix a pod's place, because the test of the queue's heap relies on it.
func TestPreEnqueueFixesThePlace(t *testing.T) {
	p := &Plugin{core: &core{store: gangs.NewStore(), pods: noPods(), args: Args{Resources: []string{"nvidia.com/gpu"}}}}
	p.store.BeginSession(1)
	g, _, err := p.store.Apply(verdict(plannedOutcome, 1, "a", "b"))
	if err != nil {
		t.Fatal(err)
	}
	since := time.Now()
	g.Open(gangs.NewRefusal(""), since)
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "b", UID: "uid-b"}}
	pod.Spec.Containers = []v1.Container{{Resources: v1.ResourceRequirements{Limits: v1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}}}}
	if status := p.PreEnqueue(context.Background(), pod); !status.IsSuccess() {
		t.Fatal(status)
	}
	turn, _ := p.store.Place("uid-b")
	if want := (gangs.Place{Since: since, Gang: "ns/g", Member: 1}); !p.isOurs(pod) || turn != want {
		t.Errorf("place %+v, want %+v", turn, want)
	}
}
