package plugin

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"muster.dev/shim/internal/fair"
	"muster.dev/shim/internal/musterv1"
)

// A user can create any number of pods whose volumes are never made. They wait in PreBind for minutes.
func TestGangsThatHangInPreBindDoNotHoldUpOthers(t *testing.T) {
	const crowd = 6
	h := newHarness(t, node("n", "640"))
	h.service.plan([]string{"n"})
	stand := newGate(t)
	h.later = &laterPlugin{preBind: func(pod *v1.Pod) *fwk.Status {
		if pod.Namespace == "crowd" {
			<-stand.stand
		}
		return nil
	}}
	var verdicts []*musterv1.Verdict
	for i := range crowd {
		v := inCrowd(verdict(plannedOutcome, uint64(i+1), fmt.Sprint("crowd-", i)))
		v.Gang = "crowd/" + v.Names[0]
		h.addPods(v)
		verdicts = append(verdicts, v)
	}
	h.run("")
	h.plugin.limits.inFlight = fair.NewRoom(8, 4)
	for _, v := range verdicts {
		h.service.push(v)
	}
	h.until("as many hang as may", func() bool { return len(h.plugin.store.InFlight()) == 4 })
	h.pods("1", "other")
	h.service.push(verdict(plannedOutcome, crowd+1, "other"))
	if b := next(t, "binding", h.bound); b.Name != "other" {
		t.Errorf("bound: %s", b.Name)
	}
	h.until("those that hang do not hold up their own namespace", func() bool { return len(h.plugin.store.InFlight()) == crowd })
	stand.open()
	h.waitForBindings(crowd)
	h.until("no one is in flight", func() bool { return h.plugin.limits.inFlight.MemberCount() == 0 })
}

func TestGangsWaitWhileTheAPIServerIsBehind(t *testing.T) {
	h := newHarness(t, node("n", "64"))
	h.service.plan(spread(2, "n")...)
	answer := make(chan struct{})
	h.bind = func(*v1.Binding) error { <-answer; return nil }
	h.run("")
	h.plugin.limits.inFlight = fair.NewRoom(2, 1)
	var names []string
	for g := range 3 {
		pair := []string{fmt.Sprintf("g%d-a", g), fmt.Sprintf("g%d-b", g)}
		h.pods("1", pair...)
		h.until("the informer has them", func() bool { return h.gated(pair...) })
		v := verdict(plannedOutcome, uint64(g+1), pair...)
		v.Gang = fmt.Sprintf("ns/g%d", g)
		h.service.push(v)
		names = append(names, pair...)
	}
	h.until("the first gang's Bindings are under way", func() bool { return h.plugin.limits.bindings.MemberCount() == 2 })
	h.until("the others are nominated", func() bool { return h.nominated("n") == 4 })
	if got := h.service.called(); got != "Filter 3 Score 3 Reserve 1 Permit 1" {
		t.Errorf("calls while the API server is behind: %s", got)
	}
	if !h.gated(names[2:4]...) && !h.gated(names[4:]...) {
		t.Error("gangs were let through though there is no room")
	}
	close(answer)
	h.waitForBindings(len(names))
	h.until("nothing is under way", func() bool { return len(h.plugin.store.InFlight()) == 0 })
}
