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

func TestAKeptPodIsTriedAgainOnceInAPause(t *testing.T) {
	k, now := &kept{}, time.Unix(1000, 0)
	pod := func(i int) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("p", i)}}
	}
	tried := func(after time.Duration, want int) {
		t.Helper()
		if now = now.Add(after); len(k.take(now)) != want {
			t.Errorf("after %v: not %d pods", after, want)
		}
	}
	for i := range maxKept + 1 {
		k.note(pod(i))
	}
	tried(0, maxKept)
	for i := range 2 {
		k.note(pod(i)) // refused again
	}
	for range 20 { // plans end
		tried(0, 0)
	}
	tried(keptPause, 2)
	tried(keptPause, 0)
	if len(k.pods) > 0 {
		t.Errorf("%d pods are remembered", len(k.pods))
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
