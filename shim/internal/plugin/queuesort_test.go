package plugin

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"muster.dev/shim/internal/gangs"
)

// The members of a gang sort at the place of its oldest pod, whenever each entered the queue. A pod without an open
// plan sorts alone, as a foreign pod does.
func TestMembersOfAGangStandTogether(t *testing.T) {
	began := time.Now().Add(-time.Minute)
	at := func(second int) time.Time { return began.Add(time.Duration(second) * time.Second) }
	p := &Plugin{core: &core{store: gangs.NewStore()}}
	for gang, members := range map[string][]string{"early": {"e0", "e1", "urgent"}, "late": {"l0", "l1"}, "twin": {"t0", "t1"}, "pending": {"p0"}, "refused": {"r0"}} {
		v := verdict(plannedOutcome, 1, members...)
		if v.Gang = gang; gang == "refused" {
			v.Outcome = refusedOutcome
		}
		g, _, err := p.store.Apply(v)
		if err != nil {
			t.Fatal(err)
		}
		since := map[string]int{"early": 2, "late": 5, "twin": 5, "refused": 0}
		if second, open := since[gang]; open {
			g.Open(nil, at(second))
		}
	}
	inOrder := []struct {
		name     string
		priority int32
		queued   int
	}{
		{"urgent", 9, 8}, // of a higher priority than the others of its gang
		{"f1", 0, 1},
		{"e0", 0, 7}, {"e1", 0, 9}, // since 2
		{"f3", 0, 3}, {"p0", 0, 4},
		{"l0", 0, 6}, {"l1", 0, 5}, {"t0", 0, 5}, {"t1", 0, 5}, // since 5, one gang after the other
		{"f6", 0, 6}, {"r0", 0, 6}, // behind all that came before it was let through
		{"low", -1, 0},
	}
	var want []string
	var queue []*framework.QueuedPodInfo
	for i, entity := range inOrder {
		want = append(want, entity.name)
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: entity.name, UID: types.UID("uid-" + entity.name)}, Spec: v1.PodSpec{Priority: &entity.priority}}
		p.store.Enter(pod.UID) // as PreEnqueue does
		info, err := framework.NewPodInfo(pod)
		if err != nil {
			t.Fatal(err)
		}
		queued := at(entity.queued).Add(time.Duration(i) * time.Millisecond)
		queue = append(queue, &framework.QueuedPodInfo{PodInfo: info, QueueingParams: framework.QueueingParams{Timestamp: queued}})
	}
	rand.Shuffle(len(queue), func(i, j int) { queue[i], queue[j] = queue[j], queue[i] })
	slices.SortFunc(queue, func(a, b *framework.QueuedPodInfo) int {
		switch {
		case p.Less(a, b):
			return -1
		case p.Less(b, a):
			return 1
		}
		return 0
	})
	var got []string
	for _, entity := range queue {
		got = append(got, entity.Pod.Name)
	}
	if !slices.Equal(got, want) {
		t.Errorf("order: %v, want %v", got, want)
	}
}

// In the real queue, pods that came between two members of a gang are scheduled after both.
func TestAGangIsNotScatteredOverABacklog(t *testing.T) {
	h := newHarness(t, node("n", "64"))
	h.service.plan(spread(2, "n")...)
	order, plug, plugged := make(chan string, 10), make(chan struct{}), make(chan struct{})
	h.later = &laterPlugin{permit: func(pod *v1.Pod) *fwk.Status {
		if pod.Name == "plug" { // blocks the scheduling thread
			close(plugged)
			<-plug
		}
		order <- pod.Name
		return nil
	}}
	h.run("")
	h.pods("", "plug")
	next(t, "the thread stands", plugged)
	h.pods("1", "m0")
	h.pods("", "f0", "f1", "f2")
	h.pods("1", "m1")
	h.pods("", "f3")
	h.service.push(verdict(plannedOutcome, 1, "m0", "m1"))
	h.until("all are in the queue", func() bool { return len(h.sched.SchedulingQueue.PodsInActiveQ()) == 6 })
	close(plug)
	var got []string
	for range 7 {
		got = append(got, next(t, "a cycle", order))
	}
	if slices.Sort(got[1:3]); !slices.Equal(got, []string{"plug", "m0", "m1", "f0", "f1", "f2", "f3"}) {
		t.Errorf("order: %v", got)
	}
}

// Members of refused gangs are let through a few at a time. The cycle of each ends with a write on the one scheduling
// thread. Pods that can be placed come between them, however many are refused.
func TestAPlannedGangIsNotBehindAllThatAreRefused(t *testing.T) {
	h := newHarness(t, node("n", "64"))
	h.service.plan(spread(2, "n")...)
	refused := make([]string, 4*maxRefused)
	for i := range refused {
		refused[i] = fmt.Sprintf("r%03d", i)
	}
	eventCount := func() (count int) {
		for _, name := range refused {
			if h.condition(name) != "" {
				count++
			}
		}
		return count
	}
	plug, plugged, before := make(chan struct{}), make(chan struct{}), make(chan int, 2)
	h.later = &laterPlugin{permit: func(pod *v1.Pod) *fwk.Status {
		if pod.Name != "plug" {
			before <- eventCount()
			return nil
		}
		close(plugged) // blocks the scheduling thread
		<-plug
		return nil
	}}
	h.run("")
	h.pods("", "plug")
	next(t, "the thread stands", plugged)
	h.pods("1", refused...)
	h.until("the informer has them", func() bool { return h.gated(refused...) })
	for i, name := range refused {
		v := verdict(refusedOutcome, uint64(i+1), name)
		v.Gang = "ns/" + name
		h.service.push(v)
	}
	const first = maxRefused / 2 // the share of one namespace
	h.until("the first are in the queue", func() bool { return len(h.sched.SchedulingQueue.PodsInActiveQ()) == first })
	h.pods("1", "m0", "m1")
	h.until("the informer has the members", func() bool { return h.gated("m0", "m1") })
	h.service.push(verdict(plannedOutcome, 1000, "m0", "m1"))
	h.until("the members are in the queue", func() bool { return len(h.sched.SchedulingQueue.PodsInActiveQ()) == first+2 })
	close(plug)
	for range 2 {
		if count := next(t, "a member's cycle", before); count > maxRefused {
			t.Errorf("%d refused pods came before a member, at most %d may", count, maxRefused)
		}
		next(t, "binding", h.bound)
	}
	h.until("all are told", func() bool { return eventCount() == len(refused) })
}
