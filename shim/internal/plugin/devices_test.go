package plugin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"muster.dev/shim/internal/devices"
	"muster.dev/shim/internal/musterv1"
)

// planDevices gives each member these devices of the node n.
func (h *harness) planDevices(members ...[]int) {
	h.service.plan(spread(len(members), "n")...)
	planned, _ := h.service.filter(nil)
	for _, numbers := range members {
		for _, number := range numbers {
			planned.Devices = append(planned.Devices, fmt.Sprintf("%s/n/gpu-%d", gpuDriver, number))
		}
		planned.DeviceCounts = append(planned.DeviceCounts, uint32(len(numbers)))
	}
}

// bySubrequests gives the members their devices by these subrequests.
func (h *harness) bySubrequests(numbers ...uint32) {
	planned, _ := h.service.filter(nil)
	planned.Subrequests = numbers
}

func TestMembersGetThePlannedDevices(t *testing.T) {
	h := dra(t)
	h.planDevices([]int{7, 0}, []int{3, 5}, []int{1, 2}, []int{6, 4})
	h.run("")
	names := members(4)
	h.pods("2", names...)
	h.place(names...)
	h.waitForBindings(len(names))
	want := map[string]string{"m0": "gpu-7 gpu-0", "m1": "gpu-3 gpu-5", "m2": "gpu-1 gpu-2", "m3": "gpu-6 gpu-4"}
	if got := h.allocated(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v", got)
	}
}

func TestNothingIsWrittenWhileMembersWait(t *testing.T) {
	h := dra(t)
	h.planDevices([]int{0}, []int{1})
	h.run("")
	h.pods("1", "m0")
	h.until("gated", func() bool { return h.gated("m0") })
	h.service.push(verdict(plannedOutcome, 1, members(2)...))
	h.until("m0 waits", func() bool { return h.waiting() == 1 })
	if got := h.allocated(); len(got) > 0 {
		t.Errorf("allocated: %v", got)
	}
	v := verdict(withdrawn, 1, members(2)...)
	h.service.push(v)
	h.until("gated again", func() bool { return h.gated("m0") })
	if h.fakeDid("create", "resourceclaims") {
		t.Error("a claim was made")
	}
}

func TestTheInTreeAllocatorKeepsTheLastWord(t *testing.T) {
	for name, planned := range map[string][]int{"a device that another claim has": {0, 1}, "a device that is gone": {1, 9}} {
		t.Run(name, func(t *testing.T) {
			h := dra(t)
			h.planDevices(planned)
			h.add(otherClaim(gpuDriver, "gpu-0"))
			h.run("")
			h.pods("2", "m0")
			h.place("m0")
			report := next(t, "report", h.service.reports)
			if report.Plugin != devices.Name || report.Node != "n" {
				t.Errorf("reported: %v", report)
			}
			isNamed := strings.Contains(report.Message, "the planned device "+gpuDriver+"/n/gpu-9 is in no ResourceSlice")
			if isNamed != slices.Contains(planned, 9) {
				t.Errorf("said: %s", report.Message)
			}
			if h.fakeDid("create", "resourceclaims") {
				t.Error("a claim was made")
			}
		})
	}
}

// A plan without devices comes from a node whose GPUs a device plugin served a moment ago.
func TestNoDeviceIsGivenWithoutAPlan(t *testing.T) {
	h := dra(t)
	h.service.plan([]string{"n"})
	h.run("")
	h.pods("1", "m0")
	h.place("m0")
	report := next(t, "report", h.service.reports)
	if report.Fate != fateNeverSent || h.fakeDid("create", "resourceclaims") {
		t.Errorf("reported: %v", report)
	}
}

// leftByAnEarlierProcess adds the claim of the pod m0 for gpu-0.
func (h *harness) leftByAnEarlierProcess() {
	leaked := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "left", UID: "left", Finalizers: []string{resourceapi.Finalizer},
			Annotations: map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"}, OwnerReferences: ownedBy("m0"),
		},
		Spec: resourceapi.ResourceClaimSpec{Devices: claimFor(resourceapi.DeviceRequest{Name: "r"})},
	}
	leaked.Status.Allocation = allocation(gpuDriver, "gpu-0")
	h.add(leaked)
}

func TestAClaimOfAnEarlierProcessIsFreed(t *testing.T) {
	h := dra(t)
	h.planDevices([]int{4})
	h.leftByAnEarlierProcess()
	h.pods("1", "m0")
	h.run("")
	h.place("m0")
	next(t, "binding", h.bound)
	if got := h.allocated(); fmt.Sprint(got) != fmt.Sprint(map[string]string{"m0": "gpu-4"}) {
		t.Errorf("allocated: %v", got)
	}
	fenced, deleted := h.firstAction("patch", "pods/status"), h.firstAction("delete", "resourceclaims")
	if fenced < 0 || deleted < fenced {
		t.Errorf("the pod was changed by action %d, and the claim deleted by %d", fenced, deleted)
	}
}

// While it is unknown whether a member is bound, its devices must stay its own.
func TestAClaimStaysWhileTheFateOfTheBindingIsUnknown(t *testing.T) {
	h := dra(t)
	h.planDevices([]int{4})
	var isLost atomic.Bool
	h.bind = func(*v1.Binding) error {
		if isLost.CompareAndSwap(false, true) {
			return context.DeadlineExceeded
		}
		return nil
	}
	h.run("")
	h.pods("1", "m0")
	h.place("m0")
	if report := next(t, "report", h.service.reports); report.Fate != fateUnknown {
		t.Fatalf("reported: %v", report)
	}
	if got := h.allocated(); got["m0"] != "gpu-4" || h.fakeDid("delete", "resourceclaims") {
		t.Errorf("allocated: %v", got)
	}
	h.planDevices([]int{6}) // the service has seen that the pod is not bound
	h.service.push(verdict(plannedOutcome, 2, "m0"))
	next(t, "binding", h.bound)
	if got := h.allocated(); got["m0"] != "gpu-6" {
		t.Errorf("allocated: %v", got)
	}
}

func TestARefusedBindingFreesTheDevices(t *testing.T) {
	h := dra(t)
	h.planDevices([]int{4})
	h.bind = func(*v1.Binding) error { return apierrors.NewForbidden(v1.Resource("pods"), "m0", nil) }
	h.run("")
	h.pods("1", "m0")
	h.place("m0")
	if report := next(t, "report", h.service.reports); report.Fate != musterv1.BindingFate_BINDING_FATE_REFUSED {
		t.Fatalf("reported: %v", report)
	}
	h.until("the claim is gone", func() bool { return len(h.allocated()) == 0 })
}

// The refusal is reported once. Devices that could not be freed then must not stay allocated until the next verdict.
func TestDevicesOfARefusedGangAreFreedWhenTheServerIsBack(t *testing.T) {
	h := dra(t)
	h.leftByAnEarlierProcess()
	var refusals atomic.Int32
	h.fake.PrependReactor("delete", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
		if refusals.Add(1) > 2 { // one for what an earlier process has left, and one for the gang
			return false, nil, nil
		}
		return true, nil, apierrors.NewInternalError(errFirst)
	})
	h.pods("1", "m0")
	h.run("")
	h.until("gated", func() bool { return h.gated("m0") })
	h.until("refused once", func() bool { return refusals.Load() == 1 })
	h.service.refuse("no room")
	h.service.push(verdict(refusedOutcome, 1, "m0"))
	h.until("the claim is gone", func() bool { return len(h.allocated()) == 0 })
}
