package plugin

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// laterPlugin runs after ours at Filter, Permit and PreBind. At Permit, ours has just returned Wait.
type laterPlugin struct {
	filter  func(*v1.Pod) *fwk.Status
	permit  func(*v1.Pod) *fwk.Status
	preBind func(*v1.Pod) *fwk.Status
}

func (l *laterPlugin) Name() string { return "Later" }

func (l *laterPlugin) Filter(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ fwk.NodeInfo) *fwk.Status {
	if l.filter == nil {
		return nil
	}
	return l.filter(pod)
}

func (l *laterPlugin) Permit(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) (*fwk.Status, time.Duration) {
	if l.permit == nil {
		return nil, 0
	}
	return l.permit(pod), 0
}

func (l *laterPlugin) PreBindPreFlight(
	context.Context, fwk.CycleState, *v1.Pod, string,
) (*fwk.PreBindPreFlightResult, *fwk.Status) {
	return nil, nil
}

func (l *laterPlugin) PreBind(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) *fwk.Status {
	if l.preBind == nil {
		return nil
	}
	return l.preBind(pod)
}

// The last member is between Permit and the waiting map when the gang is allowed, and then a sibling's failure closes
// the gang. The member must not wait for the framework's ten minutes.
func TestClosedWhileTheLastIsOnItsWayToTheWaitingMap(t *testing.T) {
	h := newHarness(t, node("n", "16"))
	h.service.plan(spread(2, "n")...)
	var first atomic.Pointer[string]
	failed := make(chan struct{})
	h.later = &laterPlugin{
		permit: func(pod *v1.Pod) *fwk.Status {
			name := pod.Name
			if first.CompareAndSwap(nil, &name) {
				return nil
			}
			next(t, "the sibling's failure", failed)
			h.until("the gang is closed", func() bool { return !h.plugin.store.MayEnterQueue(pod.UID) })
			return nil
		},
		preBind: func(pod *v1.Pod) *fwk.Status {
			if pod.Name == *first.Load() {
				close(failed)
				return fwk.AsStatus(errors.New("its volume is not to be had"))
			}
			return nil
		},
	}
	h.run("permitTimeout: 500ms\ncommitTimeout: 2s")
	h.pods("1", "m0", "m1")
	h.service.push(verdict(plannedOutcome, 1, "m0", "m1"))
	next(t, "report", h.service.reports)
	next(t, "report of the other", h.service.reports)
	h.until("released and gated", func() bool { return h.waiting() == 0 && h.gated("m0", "m1") })
}

// The last member enters the waiting map long after Allow, and is released all the same.
func TestAllowedBeforeItIsInTheWaitingMap(t *testing.T) {
	h := newHarness(t, node("n", "16"))
	h.service.plan(spread(2, "n")...)
	var seen atomic.Int32
	h.later = &laterPlugin{permit: func(*v1.Pod) *fwk.Status {
		if seen.Add(1) == 2 {
			h.until("allowed", func() bool { return len(h.plugin.store.InFlight()) == 2 })
			time.Sleep(10 * allowInterval) // several tries fail
		}
		return nil
	}}
	h.runPlanned("m0", "m1")
	h.waitForBindings(2)
}

// withSurplusDuringPermit runs a gang with two required members. The third arrives during the Permit call.
func (h *harness) withSurplusDuringPermit() *gate {
	h.t.Helper()
	question := h.service.holdPermit()
	h.run("")
	h.pods("1", "m0", "m1")
	v := verdict(plannedOutcome, 1, "m0", "m1", "m2")
	v.Required = 2
	h.service.push(v)
	next(h.t, "Permit", question.requested)
	h.pods("1", "m2")
	return question
}

// A member that is not required arrives during the Permit call, and its node refuses it. The others continue.
func TestSurplusThatFailsDuringTheQuestionEndsNoGang(t *testing.T) {
	h := newHarness(t, node("n", "16"), node("small", "0"))
	h.service.plan([]string{"n"}, []string{"n"}, []string{"small"})
	question := h.withSurplusDuringPermit()
	if report := next(t, "report", h.service.reports); report.Member != 2 || report.Plugin != "NodeResourcesFit" {
		t.Errorf("report: %v", report)
	}
	question.open()
	h.waitForBindings(2)
	if got := h.service.called(); !strings.HasSuffix(got, "Permit 1") {
		t.Errorf("calls: %s", got)
	}
}

// A member that arrives during the Permit call, on its planned node, is bound with the others. There are no more
// calls.
func TestSurplusThatComesDuringTheQuestionGoesWithTheOthers(t *testing.T) {
	h := newHarness(t, node("n", "16"), node("spare", "16"))
	h.service.plan([]string{"n"}, []string{"n"}, []string{"n", "spare"})
	question := h.withSurplusDuringPermit()
	h.until("all wait", func() bool { return h.waiting() == 3 })
	question.open()
	for range 3 {
		if b := next(t, "binding", h.bound); b.Target.Name != "n" {
			t.Errorf("%s on %s", b.Name, b.Target.Name)
		}
	}
	if got := h.service.called(); got != "Filter 1 Score 1 Reserve 1 Permit 1" {
		t.Errorf("calls: %s", got)
	}
}

// A verdict is withdrawn or replaced, or its session is lost, during a Reserve or Permit call.
func TestVoidedDuringACall(t *testing.T) {
	for _, call := range []string{"Reserve", "Permit"} {
		for how, end := range map[string]func(*harness){
			"withdrawn": func(h *harness) { h.service.push(verdict(withdrawn, 1)) },
			"replaced":  func(h *harness) { h.service.push(verdict(plannedOutcome, 2, "m0", "m1", "m2")) },
			"deleted": func(h *harness) {
				if err := h.client.CoreV1().Pods("ns").Delete(h.ctx, "m0", metav1.DeleteOptions{}); err != nil {
					h.t.Error(err)
				}
			},
		} {
			t.Run(call+" "+how, func(t *testing.T) {
				h := newHarness(t, node("n", "16"))
				h.service.plan(spread(2, "n")...)
				hold := map[string]func() *gate{"Reserve": h.service.holdReserve, "Permit": h.service.holdPermit}[call]
				question := hold()
				h.runPlanned("m0", "m1")
				next(t, call, question.requested)
				h.until("both wait", func() bool { return h.waiting() == 2 })
				end(h)
				h.until("released", func() bool { return h.waiting() == 0 })
				question.open()
				h.until("gated", func() bool { return h.gated("m1") })
				time.Sleep(10 * allowInterval) // a wrong Binding would have arrived by now
				if len(h.bound) != 0 || len(h.plugin.store.InFlight()) != 0 || h.waiting() != 0 {
					t.Errorf("bound %d, in flight %v", len(h.bound), h.plugin.store.InFlight())
				}
				if call == "Reserve" {
					if got := h.service.called(); !strings.HasSuffix(got, "Permit 0") {
						t.Errorf("calls: %s", got)
					}
				}
			})
		}
	}
}

// All cycles of a member end in an error that calls none of our hooks. Its repeated cycles are no progress, so the
// gang is closed.
func TestWatchdogEndsAGangWhoseMemberOnlyFails(t *testing.T) {
	h := newHarness(t, node("n", "16"))
	h.service.plan(spread(2, "n")...)
	h.later = &laterPlugin{filter: func(pod *v1.Pod) *fwk.Status {
		if pod.Name == "m0" {
			return fwk.AsStatus(errors.New("its claim can't be read"))
		}
		return nil
	}}
	h.run("permitTimeout: 3s")
	h.pods("1", "m0", "m1")
	h.service.push(verdict(plannedOutcome, 1, "m0", "m1"))
	if report := next(t, "report", h.service.reports); !strings.Contains(report.Message, "members did not come") {
		t.Errorf("report: %v", report)
	}
	h.until("the sibling is released", func() bool { return h.waiting() == 0 })
}
