package plugin

import (
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"muster.dev/shim/internal/devices"
)

// sharedDRA makes a harness with one node whose GPUs claims share: each has 80Gi.
func sharedDRA(t *testing.T) *harness {
	h := dra(t)
	h.changeSlice(func(slice *resourceapi.ResourceSlice) {
		for i := range slice.Spec.Devices {
			slice.Spec.Devices[i].AllowMultipleAllocations = new(true)
			slice.Spec.Devices[i].Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("80Gi")}}
		}
	})
	return h
}

// sharingPods creates members, each with a claim for this much memory of one GPU.
func (h *harness) sharingPods(memory string, names ...string) {
	h.t.Helper()
	request := asks("r", "gpu", 1)
	request.Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory)}}
	h.podsWith(h.claiming(claimFor(request)), "gang", names...)
}

// shares returns the devices and amounts of each pod's claims, as "gpu-3=30Gi".
func (h *harness) shares() map[string]string {
	shares := map[string]string{}
	for pod, result := range h.allocations() {
		consumed := result.ConsumedCapacity["memory"]
		shares[pod] = strings.TrimSpace(shares[pod] + " " + result.Device + "=" + consumed.String())
	}
	return shares
}

// sharedBy adds another pod's claim that takes this much of gpu-0.
func (h *harness) sharedBy(memory string) {
	claim := otherClaim(gpuDriver, "gpu-0")
	share := &claim.Status.Allocation.Devices.Results[0]
	share.ShareID, share.ConsumedCapacity = new(types.UID("share")), map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory)}
	h.add(claim)
}

func TestMembersShareThePlannedDevices(t *testing.T) {
	h := sharedDRA(t)
	h.sharedBy("20Gi")
	h.planDevices([]int{1}, []int{0}, []int{1}, []int{0})
	planned, _ := h.service.filter(nil)
	planned.DeviceMemory = []uint32{30, 30, 30, 30}
	h.run("")
	names := members(4)
	h.sharingPods("30Gi", names...)
	h.place(names...)
	h.waitForBindings(len(names))
	want := map[string]string{"m0": "gpu-1=30Gi", "m1": "gpu-0=30Gi", "m2": "gpu-1=30Gi", "m3": "gpu-0=30Gi"}
	if got := h.shares(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v", got)
	}
}

func TestMembersGetWholeDevicesThatClaimsMayShare(t *testing.T) {
	h := sharedDRA(t)
	h.planDevices([]int{7, 0}, []int{3, 5})
	h.run("")
	h.pods("2", "m0")
	h.claimingPods("m1")
	h.place("m0", "m1")
	h.waitForBindings(2)
	want := map[string]string{"m0": "gpu-7=80Gi gpu-0=80Gi", "m1": "gpu-3=80Gi gpu-5=80Gi"}
	if got := h.shares(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v", got)
	}
}

// The allocator counts the shares of other claims, and Reserve compares the allocation with the plan.
func TestSharesThatAreNotAsPlannedAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		otherShare, requested string
		planned               uint32
		plugin                string // that refuses the node; "" if the last look fails the cycle
	}{
		"too much is taken":                       {"60Gi", "30Gi", 30, devices.Name},
		"more is asked for than planned":          {"1Gi", "40Gi", 30, ""},
		"a whole device is planned, and is taken": {"1Gi", "80Gi", 0, devices.Name},
	} {
		t.Run(name, func(t *testing.T) {
			h := sharedDRA(t)
			h.sharedBy(c.otherShare)
			h.planDevices([]int{0})
			planned, _ := h.service.filter(nil)
			planned.DeviceMemory = []uint32{c.planned}
			h.run("")
			h.sharingPods(c.requested, "m0")
			h.place("m0")
			report := next(t, "report", h.service.reports)
			if report.Plugin != c.plugin || report.Node != "n" || report.Fate != fateNeverSent {
				t.Errorf("reported: %v", report)
			}
			if got := h.shares(); len(got) > 0 {
				t.Errorf("allocated: %v", got)
			}
		})
	}
}
