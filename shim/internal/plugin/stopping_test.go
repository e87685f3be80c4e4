package plugin

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// A process that is to stop ends the Bindings of the gang that it has committed, and commits no other gang.
func TestAStopFinishesTheBindingsOfAGang(t *testing.T) {
	h := newHarness(t, node("n", "16"))
	h.service.plan(spread(2, "n")...)
	answer := make(chan struct{})
	h.bind = func(b *v1.Binding) error {
		if b.Name == "m1" {
			<-answer
		}
		return nil
	}
	h.runPlanned("m0", "m1")
	if b := next(t, "binding", h.bound); b.Name != "m0" {
		t.Errorf("bound: %s", b.Name)
	}
	if h.plugin.store.Stop() == 0 {
		t.Error("the stop sees no Binding under way")
	}
	stopped := make(chan struct{})
	go func() {
		h.plugin.finishBindings(h.ctx, time.Minute)
		close(stopped)
	}()
	h.pods("1", "late0", "late1")
	late := verdict(plannedOutcome, 2, "late0", "late1")
	late.Gang = "ns/late"
	h.service.push(late)
	next(t, "report", h.service.reports)
	select {
	case <-stopped:
		t.Error("stopped though a Binding of the gang has no answer")
	default:
	}
	close(answer)
	if b := next(t, "binding", h.bound); b.Name != "m1" {
		t.Errorf("bound: %s", b.Name)
	}
	next(t, "end of the stop", stopped)
	if got := len(h.bound); got != 0 {
		t.Errorf("%d members of a gang were bound that came after the stop", got)
	}
}

// A Binding that has no answer does not hold up the stop for ever.
func TestAStopWaitsForBindingsForATime(t *testing.T) {
	h := newHarness(t, node("n", "16"))
	h.service.plan(spread(1, "n")...)
	begun, answer := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(answer) })
	h.bind = func(*v1.Binding) error {
		close(begun)
		<-answer
		return nil
	}
	h.runPlanned("m0")
	next(t, "Binding", begun)
	h.plugin.finishBindings(h.ctx, 50*time.Millisecond)
	if got := h.plugin.store.Stop(); got != 1 {
		t.Errorf("%d Bindings are under way, not 1", got)
	}
}

// A gang that is not committed holds up no stop: a member may be in PreBind for a minute.
func TestAStopDoesNotWaitForMembersInPreBind(t *testing.T) {
	h := newHarness(t, node("n", "16"))
	h.service.plan(spread(2, "n")...)
	inPreBind, goOn := make(chan string, 2), make(chan struct{})
	h.later = &laterPlugin{preBind: func(pod *v1.Pod) *fwk.Status {
		inPreBind <- pod.Name
		if pod.Name == "m1" {
			<-goOn
		}
		return nil
	}}
	h.runPlanned("m0", "m1")
	next(t, "PreBind", inPreBind)
	next(t, "PreBind", inPreBind)
	h.plugin.finishBindings(h.ctx, time.Minute)
	close(goOn)
	next(t, "report", h.service.reports)
	if got := len(h.bound); got != 0 {
		t.Errorf("%d members were bound after the stop", got)
	}
}
