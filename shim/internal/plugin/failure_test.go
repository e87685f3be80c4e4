package plugin

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	fwk "k8s.io/kube-scheduler/framework"

	"muster.dev/shim/internal/musterv1"
)

func TestDenyReleasesAll(t *testing.T) {
	h := newHarness(t, node("n", "16"))
	h.service.plan(spread(3, "n")...)
	h.service.permit = func(*musterv1.PermitRequest) (*musterv1.PermitResponse, error) {
		return &musterv1.PermitResponse{Reason: "a node went away"}, nil
	}
	names := members(3)
	h.runPlanned(names...)
	for range names {
		if report := next(t, "report", h.service.reports); report.Fate != fateNeverSent || !strings.Contains(report.Message, "a node went away") {
			t.Errorf("report: %v", report)
		}
	}
	h.until("gated", func() bool { return h.gated(names...) && h.waiting() == 0 })
	if len(h.bound) != 0 {
		t.Error("bound")
	}
}

func TestLateAllowIsCaughtAtTheBarrier(t *testing.T) {
	h := newHarness(t, node("n", "16"))
	h.service.plan(spread(3, "n")...)
	allow := h.service.permit
	h.service.permit = func(r *musterv1.PermitRequest) (*musterv1.PermitResponse, error) {
		// A waiting member is removed during the service's Permit call. Its Allow will be dropped.
		reserved := false
		h.plugin.handle.IterateOverWaitingPods(func(w fwk.WaitingPod) {
			if !reserved {
				reserved = w.Reject("someone", "preempted")
			}
		})
		return allow(r)
	}
	names := members(3)
	h.runPlanned(names...)
	for range names {
		next(t, "report", h.service.reports)
	}
	h.until("nothing waits", func() bool { return h.waiting() == 0 && len(h.plugin.store.InFlight()) == 0 })
	if len(h.bound) != 0 {
		t.Errorf("%d bound", len(h.bound))
	}
}

func TestServiceDiesWhileMembersWait(t *testing.T) {
	h := newHarness(t, node("n", "16"))
	h.service.plan(spread(3, "n")...)
	h.run("")
	names := members(3)
	h.pods("1", names[:2]...)
	h.service.push(verdict(plannedOutcome, 1, names...))
	h.until("two wait", func() bool { return h.waiting() == 2 })
	h.service.kill()
	h.until("released and gated", func() bool { return h.waiting() == 0 && h.gated(names[:2]...) && h.nominated("n") == 0 })
	h.pods("", "foreign")
	h.until("the foreign pod is bound without the service", h.foreignBound)
	h.service.start()
	if watch := next(t, "Watch", h.service.watches); len(watch.InFlight) != 0 {
		t.Errorf("in flight: %v", watch.InFlight)
	}
	h.pods("1", names[2])
	h.service.push(verdict(plannedOutcome, 1, names...))
	h.waitForBindings(len(names))
}

func TestWithdrawnReleasesWaiters(t *testing.T) {
	h := newHarness(t, node("n", "16"))
	h.service.plan(spread(2, "n")...)
	h.run("")
	h.pods("1", "m0")
	h.service.push(verdict(plannedOutcome, 1, "m0", "m1"))
	h.until("one waits", func() bool { return h.waiting() == 1 })
	h.service.push(verdict(withdrawn, 1))
	h.until("released and gated", func() bool { return h.waiting() == 0 && h.gated("m0") })
	if len(h.service.reports) != 0 {
		t.Error("the service was told what it said itself")
	}
}

func TestWatchdogEndsTheWait(t *testing.T) {
	h := newHarness(t, node("n", "16"))
	h.service.plan(spread(2, "n")...)
	h.run("permitTimeout: 300ms")
	h.pods("1", "m0")
	h.service.push(verdict(plannedOutcome, 1, "m0", "m1"))
	if report := next(t, "report", h.service.reports); report.Fate != fateNeverSent {
		t.Errorf("report: %v", report)
	}
	h.until("released and gated", func() bool { return h.waiting() == 0 && h.gated("m0") })
}

func TestUnknownFateIsReportedAndInFlight(t *testing.T) {
	h := newHarness(t, node("n", "16"))
	h.service.plan(spread(2, "n")...)
	h.bind = func(b *v1.Binding) error {
		if b.Name == "m1" {
			return context.DeadlineExceeded
		}
		return nil
	}
	h.runPlanned("m0", "m1")
	next(t, "binding", h.bound)
	report := next(t, "report", h.service.reports)
	if report.Fate != fateUnknown || report.Member != 1 || report.Node != "n" {
		t.Errorf("report: %v", report)
	}
	h.service.kill()
	h.service.start()
	watch := next(t, "Watch", h.service.watches)
	if len(watch.InFlight) != 1 || watch.InFlight[0].Uid != "uid-m1" || watch.InFlight[0].Annotations["gpu.topology/allocation"] != "gpus of 1" {
		t.Errorf("in flight: %v", watch.InFlight)
	}
}

func TestHungServiceStallsNoForeignPod(t *testing.T) {
	h := newHarness(t, node("n", "16"))
	h.service.plan(spread(1, "n")...)
	requested := make(chan struct{})
	h.service.reserve = func(ctx context.Context, _ *musterv1.ReserveRequest) (*musterv1.ReserveResponse, error) {
		close(requested)
		<-ctx.Done()
		return nil, errors.New("late")
	}
	h.run("callTimeout: 5s")
	h.pods("1", "m0")
	h.service.push(verdict(plannedOutcome, 1, "m0"))
	next(t, "Reserve", requested)
	h.pods("", "foreign")
	h.until("the foreign pod is bound", h.foreignBound)
	if h.waiting() != 1 {
		t.Error("the member does not wait: its call had ended before")
	}
	next(t, "report", h.service.reports)
	h.until("released and gated", func() bool { return h.waiting() == 0 && h.gated("m0") })
}

func TestDeniedClaimReleasesAll(t *testing.T) {
	h := newHarness(t, node("n", "16"))
	h.service.plan(spread(2, "n")...)
	h.service.reserve = func(context.Context, *musterv1.ReserveRequest) (*musterv1.ReserveResponse, error) {
		return &musterv1.ReserveResponse{Reason: "its GPUs are taken"}, nil
	}
	h.runPlanned("m0", "m1")
	if report := next(t, "report", h.service.reports); report.Fate != fateNeverSent || !strings.Contains(report.Message, "its GPUs are taken") {
		t.Errorf("report: %v", report)
	}
	h.until("released and gated", func() bool { return h.waiting() == 0 && h.gated("m0", "m1") })
	if got := h.service.called(); got != "Filter 1 Score 1 Reserve 1 Permit 0" {
		t.Errorf("calls: %s", got)
	}
}

func TestBindingIsTriedAgainWhenItWasTurnedAway(t *testing.T) {
	h := newHarness(t, node("n", "16"))
	h.service.plan(spread(1, "n")...)
	var tries atomic.Int32
	h.bind = func(*v1.Binding) error {
		if tries.Add(1) == 1 {
			return apierrors.NewTooManyRequests("busy", 1)
		}
		return nil
	}
	h.runPlanned("m0")
	next(t, "binding", h.bound)
}
