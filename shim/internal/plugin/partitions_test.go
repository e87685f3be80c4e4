package plugin

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// divided makes a harness with one node. A DRA driver serves its four GPUs, and two partitions of each, which share the
// counters of the GPU. The counters are in a slice of their own, which comes first by its name.
func divided(t *testing.T) *harness {
	h := draHarness(t)
	class := func(name, resource string) *resourceapi.DeviceClass {
		class := driverClass(name, gpuDriver, resource)
		class.Spec.Selectors[0].CEL.Expression += fmt.Sprintf(" && device.attributes['%s'].type == '%s'", gpuDriver, name)
		return class
	}
	slice := func(name string) *resourceapi.ResourceSlice {
		slice := sliceOf(name, gpuDriver, "n")
		slice.Spec.Pool.ResourceSliceCount = 3
		return slice
	}
	counters, parts, whole := slice("a"), slice("b"), slice("c")
	device := func(name, kind string, gpu int, halves int64) resourceapi.Device {
		return resourceapi.Device{
			Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"type": {StringValue: &kind}},
			ConsumesCounters: []resourceapi.DeviceCounterConsumption{{
				CounterSet: fmt.Sprint("gpu-", gpu), Counters: map[string]resourceapi.Counter{"halves": {Value: *resource.NewQuantity(halves, resource.DecimalSI)}},
			}},
		}
	}
	for i := range 4 {
		counters.Spec.SharedCounters = append(counters.Spec.SharedCounters, resourceapi.CounterSet{
			Name: fmt.Sprint("gpu-", i), Counters: map[string]resourceapi.Counter{"halves": {Value: resource.MustParse("2")}},
		})
		whole.Spec.Devices = append(whole.Spec.Devices, device(fmt.Sprint("gpu-", i), "gpu", i, 2))
		for half := range 2 {
			parts.Spec.Devices = append(parts.Spec.Devices, device(fmt.Sprintf("mig-%d-%d", i, half), "mig", i, 1))
		}
	}
	h.add(class("gpu", "nvidia.com/gpu"), class("mig", ""), counters, parts, whole)
	return h
}

// gives plans m0, and expects that it gets these devices. With "" it expects that PlannedResources refuses the planned node.
func (h *harness) gives(devices string) {
	h.t.Helper()
	h.place("m0")
	if devices == "" {
		if report := next(h.t, "report", h.service.reports); report.Plugin != "PlannedResources" {
			h.t.Errorf("reported: %v", report)
		}
		return
	}
	next(h.t, "binding", h.bound)
	if got := h.allocated()["m0"]; got != devices {
		h.t.Errorf("allocated: %q", got)
	}
}

func TestAGPUIsGivenNextToPartitionsOfOthersAndNotNextToItsOwn(t *testing.T) {
	for name, c := range map[string]struct {
		allocated []string
		planned   []int
		want      string
	}{
		"nothing is taken":                  {nil, []int{3, 1}, "gpu-3 gpu-1"},
		"a partition of another GPU":        {[]string{"mig-2-0"}, []int{3, 1}, "gpu-3 gpu-1"},
		"another GPU":                       {[]string{"gpu-0"}, []int{3, 1}, "gpu-3 gpu-1"},
		"a partition of the second planned": {[]string{"mig-1-1"}, []int{3, 1}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := divided(t)
			h.add(otherClaim(gpuDriver, c.allocated...))
			h.planDevices(c.planned)
			h.run("")
			h.pods("2", "m0")
			h.gives(c.want)
		})
	}
}

// The plan is not written yet: its first member waits for a second member that does not come. Even then other pods must not
// get its devices. Otherwise a gang with these devices would be planned again and again.
func TestPartitionsOfPlannedGPUsAreKeptForTheGang(t *testing.T) {
	h := divided(t)
	h.planDevices([]int{0, 1}, []int{3})
	h.run("")
	h.pods("2", "m0")
	h.until("gated", func() bool { return h.gated("m0") })
	h.service.push(verdict(plannedOutcome, 1, members(2)...))
	h.until("m0 waits", func() bool { return h.waiting() == 1 })
	h.podsWith(h.claiming(claimFor(asks("r", "mig", 2))), "", "one")
	h.until("one is bound", func() bool { return h.allocated()["one"] == "mig-2-0 mig-2-1" })
	for _, class := range []string{"mig", "gpu"} {
		h.podsWith(h.claiming(claimFor(asks("r", class, 1))), "", class)
		h.until(class+" is refused", func() bool { return strings.Contains(h.condition(class), "cannot allocate all claims") })
	}
	h.service.push(verdict(withdrawn, 1, members(2)...))
	h.until("both get devices when the plan has ended", func() bool {
		got := h.allocated()
		return strings.HasPrefix(got["mig"], "mig-") && strings.HasPrefix(got["gpu"], "gpu-")
	})
}

// It is the same for a member of another gang whose claims are for partitions alone.
func TestAGangOfPartitionsGetsNoneOfPlannedGPUs(t *testing.T) {
	h := divided(t)
	h.planDevices([]int{0, 1, 2}, nil)
	h.run("")
	h.pods("3", "m0") // the second member does not come
	h.until("gated", func() bool { return h.gated("m0") })
	h.service.push(verdict(plannedOutcome, 1, members(2)...))
	h.until("m0 waits", func() bool { return h.waiting() == 1 })
	h.service.plan([]string{"n"})
	h.podsWith(func(pod *v1.Pod) {
		h.claiming(claimFor(asks("r", "mig", 2)))(pod)
		pod.Annotations = map[string]string{"gpu.topology/group": "h"}
	}, "gang", "p0")
	h.until("p0 is gated", func() bool { return h.gated("p0") })
	second := verdict(plannedOutcome, 2, "p0")
	second.Gang = "ns/h"
	h.service.push(second)
	next(t, "binding", h.bound)
	if got := h.allocated()["p0"]; got != "mig-3-0 mig-3-1" {
		t.Errorf("allocated: %q", got)
	}
}

func TestAMemberGetsItsGPUAndPartitionsOfOthers(t *testing.T) {
	for name, c := range map[string]struct {
		parts     int64
		allocated []string
		want      string
	}{
		"partitions of another GPU": {2, nil, "mig-1-0 mig-1-1 gpu-0"},
		"the next that are free":    {3, []string{"gpu-1"}, "mig-2-0 mig-2-1 mig-3-0 gpu-0"},
		"too few":                   {5, []string{"gpu-1"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := divided(t)
			h.add(otherClaim(gpuDriver, c.allocated...))
			h.planDevices([]int{0})
			h.run("")
			h.podsWith(h.claiming(claimFor(asks("mig", "mig", c.parts), asks("gpu", "gpu", 1))), "gang", "m0")
			h.gives(c.want)
		})
	}
}

func TestDevicesOfLivePlansThatAreNotBound(t *testing.T) {
	h := divided(t)
	h.planDevices([]int{0}, []int{3})
	h.run("")
	h.pods("1", "m0")
	h.until("gated", func() bool { return h.gated("m0") })
	h.service.push(verdict(plannedOutcome, 1, members(2)...))
	h.until("known", func() bool {
		return slices.Equal(h.plugin.store.PlannedForOthers("uid-m0", nil), []string{gpuDriver + "/n/gpu-3"})
	})
}

func TestInTreeAnswersRefuseNodesWhereAMemberCanWatchNoGPU(t *testing.T) {
	h := divided(t)
	h.run("")
	h.podsWith(h.claiming(claimFor(asks("w", "watch", 1), asks("g", "gpu", 1))), "gang", "m0")
	h.until("gated", func() bool { return h.gated("m0") })
	h.service.ask(inTreeQuestion(1, "m0"))
	got := gpusOf(next(t, "answer", h.service.inTree))
	if want := "resourceClaims c0, request w: adminAccess to GPUs of the node that consume counters; next to planned GPUs the allocator has no counters for it"; got != want {
		t.Errorf("%q", got)
	}
}
