package plugin

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	clienttesting "k8s.io/client-go/testing"
)

// Foreign pods in one batch do not use the capacity of a node that is nominated for a gang's member.
func TestABatchKeepsOffTheNominated(t *testing.T) {
	h := newHarness(t, node("n0", "1"), node("n1", "1"), node("n2", "1"), node("n3", "1"))
	h.service.plan([]string{"n1"})
	h.plain = true
	h.run("")
	foreign := &v1.Pod{Spec: v1.PodSpec{SchedulerName: "muster"}}
	if signature := h.sched.Profiles["muster"].SignPod(h.ctx, foreign); signature == nil {
		t.Error("not signed: no batches in this profile")
	}
	full, _ := h.plugin.limits.inFlight.Take(h.ctx, "ns", maxInFlight) // the member stays nominated and waits
	h.pods("1", "m0")
	h.until("gated", func() bool { return h.gated("m0") }) // the informer knows the pod; otherwise it would not be nominated
	h.service.push(verdict(plannedOutcome, 1, "m0"))
	h.until("nominated", func() bool { return h.nominated("n1") == 1 })
	for i := range 4 {
		h.pods("", fmt.Sprintf("f%d", i))
	}
	h.until("one finds no room", func() bool { return h.condition("f3") != "" })
	var nodes []string
	h.until("three are bound", func() bool {
		nodes = nil
		for _, a := range h.fake.Actions() {
			if a.Matches("create", "pods/binding") {
				nodes = append(nodes, a.(clienttesting.CreateAction).GetObject().(*v1.Binding).Target.Name)
			}
		}
		return len(nodes) == 3
	})
	for _, n := range nodes {
		if n == "n1" {
			t.Errorf("a foreign pod on the nominated node: %v", nodes)
		}
	}
	h.plugin.limits.inFlight.LeaveAll(full)
	if b := next(t, "binding", h.bound); b.Target.Name != "n1" {
		t.Errorf("bound to %s", b.Target.Name)
	}
}
