package plugin

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func keptPodOf(namespace string, i int) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("p%04d", i)}}
}

// Plans end all the time, and its pods are refused each time.
func TestAKeptPodIsTriedOnceInAPauseAndNoneIsForgotten(t *testing.T) {
	k, now := &kept{}, time.Unix(1000, 0)
	for i := range 2 * keptAtOnce {
		k.note(keptPodOf("ns", i), k.ended, now)
	}
	if found, again := k.take(now); len(found) > 0 || again > 0 {
		t.Errorf("%d pods are tried before a plan ends", len(found))
	}
	tried := map[string]int{}
	for range 100 { // of a second
		k.end()
		found, _ := k.take(now)
		for key, pod := range found {
			tried[key]++
			k.note(pod, k.ended, now)
		}
		now = now.Add(time.Second)
	}
	for key, times := range tried {
		if times > 10 {
			t.Errorf("%s is tried %d times in 100 s", key, times)
		}
	}
	if len(tried) != 2*keptAtOnce {
		t.Errorf("%d pods are tried", len(tried))
	}
}

// The last plan ends a moment after the pod was tried for the one before.
func TestAKeptPodIsTriedAfterItsPauseWithoutAnotherPlan(t *testing.T) {
	k, now := &kept{}, time.Unix(1000, 0)
	k.note(keptPodOf("ns", 0), k.ended, now)
	k.end()
	if found, _ := k.take(now); len(found) != 1 {
		t.Fatal("not tried")
	}
	k.note(keptPodOf("ns", 0), k.ended, now)
	k.end()
	now = now.Add(keptPause / 2)
	if found, again := k.take(now); len(found) != 0 || again != keptPause/2 {
		t.Errorf("%d pods now, again in %v", len(found), again)
	}
	if found, again := k.take(now.Add(keptPause / 2)); len(found) != 1 || again != 0 {
		t.Errorf("%d pods, again in %v", len(found), again)
	}
	k.note(keptPodOf("ns", 0), k.ended-1, now) // a plan ended during its cycle
	if _, again := k.take(now.Add(keptPause / 2)); again != keptBreak {
		t.Errorf("again in %v", again)
	}
}

func TestPodsOfOneNamespaceLeaveRoomForKeptPodsOfOthers(t *testing.T) {
	k, now := &kept{}, time.Unix(1000, 0)
	for i := range 2 * maxKeptOf {
		k.note(keptPodOf("many", i), k.ended, now)
	}
	k.note(keptPodOf("one", 0), k.ended, now)
	if len(k.pods) != maxKeptOf+1 {
		t.Errorf("%d pods are noted", len(k.pods))
	}
	for range maxKeptOf/keptAtOnce + 1 {
		k.end()
		found, _ := k.take(now)
		now = now.Add(keptBreak)
		if found["one/p0000"] != nil {
			return
		}
	}
	t.Error("the pod of the other namespace is not tried")
}

// Users may make pods all the time, in several namespaces. A pod that was tried once comes before pods that were noted later.
func TestNewPodsDoNotKeepAnOlderOneFromItsTry(t *testing.T) {
	k, now := &kept{}, time.Unix(1000, 0)
	k.note(keptPodOf("one", 0), k.ended, now)
	k.end()
	k.take(now)
	k.note(keptPodOf("one", 0), k.ended, now)
	for second := range 60 {
		now = now.Add(time.Second)
		for i := range 2 * keptAtOnce {
			k.note(keptPodOf(fmt.Sprintf("many%d", i%8), second*2*keptAtOnce+i), k.ended, now)
		}
		k.end()
		if found, _ := k.take(now); found["one/p0000"] != nil {
			return
		}
	}
	t.Error("the older pod is not tried in a minute")
}

// No plan has ended since they were tried and found a node.
func TestPodsThatFoundANodeLeaveTheirPlaces(t *testing.T) {
	k, now := &kept{}, time.Unix(1000, 0)
	for i := range maxKeptOf {
		k.note(keptPodOf("ns", i), k.ended, now)
	}
	k.end()
	for range maxKeptOf / keptAtOnce {
		k.take(now)
		now = now.Add(keptBreak)
	}
	k.note(keptPodOf("ns", maxKeptOf), k.ended, now)
	if len(k.pods) != maxKeptOf {
		t.Errorf("%d pods are noted while the others may be refused again", len(k.pods))
	}
	k.note(keptPodOf("ns", maxKeptOf), k.ended, now.Add(keptPause))
	if len(k.pods) != 1 {
		t.Errorf("%d pods are noted", len(k.pods))
	}
}

// Neither of them waits for devices of the plan: one asks for those of another driver, and no device refuses the other.
func TestOnlyPodsThatDevicesRefuseAreKept(t *testing.T) {
	h := divided(t)
	h.planDevices([]int{0, 1}, []int{3})
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "card"}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "device.driver == 'card.example.com'"}}},
	}}
	if err := h.fake.Tracker().Add(class); err != nil {
		t.Fatal(err)
	}
	h.claimOf("kept", map[string]int64{"mig": 9})
	h.claimOf("large", map[string]int64{"mig": 1})
	h.claimOf("other", map[string]int64{"card": 1})
	h.run("")
	h.pods("2", "m0")
	h.until("gated", func() bool { return h.gated("m0") })
	h.service.push(verdict(plannedOutcome, 1, members(2)...))
	h.until("m0 waits", func() bool { return h.waiting() == 1 })
	h.podsWith(named, "", "kept", "other")
	h.podsWith(func(pod *v1.Pod) {
		named(pod)
		pod.Spec.NodeSelector = map[string]string{"no": "node"}
	}, "", "large")
	for _, name := range []string{"kept", "other", "large"} {
		h.until(name+" is refused", func() bool { return strings.Contains(h.condition(name), "0/1 nodes") })
	}
	h.plugin.kept.mu.Lock()
	defer h.plugin.kept.mu.Unlock()
	for key := range h.plugin.kept.pods {
		if key != "ns/kept" {
			t.Errorf("noted: %s", key)
		}
	}
	if len(h.plugin.kept.pods) != 1 {
		t.Errorf("%d pods are noted", len(h.plugin.kept.pods))
	}
}
