package plugin

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func waiterOf(namespace string, i int) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("p%04d", i)}}
}

// Plans end all the time, and the pods are refused each time.
func TestAWaiterIsTriedOnceInAPauseAndNoneIsForgotten(t *testing.T) {
	waiters, now := &deviceWaiters{}, time.Unix(1000, 0)
	for i := range 2 * retriesAtOnce {
		waiters.recordRefusal(waiterOf("ns", i), waiters.ended, now)
	}
	if pods, pause := waiters.takeDue(now); len(pods) > 0 || pause > 0 {
		t.Errorf("%d pods are tried before a plan ends", len(pods))
	}
	tried := map[string]int{}
	for range 100 { // of a second
		waiters.recordEnd()
		pods, _ := waiters.takeDue(now)
		for key, pod := range pods {
			tried[key]++
			waiters.recordRefusal(pod, waiters.ended, now)
		}
		now = now.Add(time.Second)
	}
	for key, times := range tried {
		if times > 10 {
			t.Errorf("%s is tried %d times in 100 s", key, times)
		}
	}
	if len(tried) != 2*retriesAtOnce {
		t.Errorf("%d pods are tried", len(tried))
	}
}

// The last plan ends a moment after the pod was tried for the plan before.
func TestAWaiterIsTriedAfterItsPauseWithoutAnotherPlan(t *testing.T) {
	waiters, now := &deviceWaiters{}, time.Unix(1000, 0)
	waiters.recordRefusal(waiterOf("ns", 0), waiters.ended, now)
	waiters.recordEnd()
	if pods, _ := waiters.takeDue(now); len(pods) != 1 {
		t.Fatal("not tried")
	}
	waiters.recordRefusal(waiterOf("ns", 0), waiters.ended, now)
	waiters.recordEnd()
	now = now.Add(retryPause / 2)
	if pods, pause := waiters.takeDue(now); len(pods) != 0 || pause != retryPause/2 {
		t.Errorf("%d pods now, again in %v", len(pods), pause)
	}
	if pods, pause := waiters.takeDue(now.Add(retryPause / 2)); len(pods) != 1 || pause != 0 {
		t.Errorf("%d pods, again in %v", len(pods), pause)
	}
	waiters.recordRefusal(waiterOf("ns", 0), waiters.ended-1, now) // a plan ended during its cycle
	if _, pause := waiters.takeDue(now.Add(retryPause / 2)); pause != retryBreak {
		t.Errorf("again in %v", pause)
	}
}

func TestPodsOfOneNamespaceLeaveRoomForWaitersOfOthers(t *testing.T) {
	waiters, now := &deviceWaiters{}, time.Unix(1000, 0)
	for i := range 2 * maxWaitersOfNamespace {
		waiters.recordRefusal(waiterOf("many", i), waiters.ended, now)
	}
	waiters.recordRefusal(waiterOf("one", 0), waiters.ended, now)
	if len(waiters.pods) != maxWaitersOfNamespace+1 {
		t.Errorf("%d pods are noted", len(waiters.pods))
	}
	for range maxWaitersOfNamespace/retriesAtOnce + 1 {
		waiters.recordEnd()
		pods, _ := waiters.takeDue(now)
		now = now.Add(retryBreak)
		if pods["one/p0000"] != nil {
			return
		}
	}
	t.Error("the pod of the other namespace is not tried")
}

// Users may make pods all the time, in several namespaces. A pod that was tried once comes before pods that were noted
// later.
func TestNewPodsDoNotKeepAnOlderOneFromItsTry(t *testing.T) {
	waiters, now := &deviceWaiters{}, time.Unix(1000, 0)
	waiters.recordRefusal(waiterOf("one", 0), waiters.ended, now)
	waiters.recordEnd()
	waiters.takeDue(now)
	waiters.recordRefusal(waiterOf("one", 0), waiters.ended, now)
	for second := range 60 {
		now = now.Add(time.Second)
		for i := range 2 * retriesAtOnce {
			waiters.recordRefusal(waiterOf(fmt.Sprintf("many%d", i%8), second*2*retriesAtOnce+i), waiters.ended, now)
		}
		waiters.recordEnd()
		if pods, _ := waiters.takeDue(now); pods["one/p0000"] != nil {
			return
		}
	}
	t.Error("the older pod is not tried in a minute")
}

// No plan has ended since they were tried and found a node.
func TestPodsThatFoundANodeLeaveTheirPlaces(t *testing.T) {
	waiters, now := &deviceWaiters{}, time.Unix(1000, 0)
	for i := range maxWaitersOfNamespace {
		waiters.recordRefusal(waiterOf("ns", i), waiters.ended, now)
	}
	waiters.recordEnd()
	for range maxWaitersOfNamespace / retriesAtOnce {
		waiters.takeDue(now)
		now = now.Add(retryBreak)
	}
	waiters.recordRefusal(waiterOf("ns", maxWaitersOfNamespace), waiters.ended, now)
	if len(waiters.pods) != maxWaitersOfNamespace {
		t.Errorf("%d pods are noted while the others may be refused again", len(waiters.pods))
	}
	waiters.recordRefusal(waiterOf("ns", maxWaitersOfNamespace), waiters.ended, now.Add(retryPause))
	if len(waiters.pods) != 1 {
		t.Errorf("%d pods are noted", len(waiters.pods))
	}
}

// Neither pod waits for devices of the plan. The first pod asks for devices of another driver, and the second is not
// refused for its devices.
func TestOnlyPodsThatDevicesRefuseAreWaiters(t *testing.T) {
	h := divided(t)
	h.planDevices([]int{0, 1}, []int{3})
	h.add(driverClass("card", "card.example.com", ""))
	h.run("")
	h.pods("2", "m0")
	h.until("gated", func() bool { return h.gated("m0") })
	h.service.push(verdict(plannedOutcome, 1, members(2)...))
	h.until("m0 waits", func() bool { return h.waiting() == 1 })
	h.podsWith(h.claiming(claimFor(asks("r", "mig", 9))), "", "waiter")
	h.podsWith(h.claiming(claimFor(asks("r", "card", 1))), "", "other")
	h.podsWith(func(pod *v1.Pod) {
		h.claiming(claimFor(asks("r", "mig", 1)))(pod)
		pod.Spec.NodeSelector = map[string]string{"no": "node"}
	}, "", "large")
	for _, name := range []string{"waiter", "other", "large"} {
		h.until(name+" is refused", func() bool { return strings.Contains(h.condition(name), "0/1 nodes") })
	}
	h.plugin.deviceWaiters.mu.Lock()
	defer h.plugin.deviceWaiters.mu.Unlock()
	for key := range h.plugin.deviceWaiters.pods {
		if key != "ns/waiter" {
			t.Errorf("noted: %s", key)
		}
	}
	if len(h.plugin.deviceWaiters.pods) != 1 {
		t.Errorf("%d pods are noted", len(h.plugin.deviceWaiters.pods))
	}
}
