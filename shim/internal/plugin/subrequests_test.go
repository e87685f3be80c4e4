package plugin

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// subrequest is a subrequest for as many GPUs, or for all if count is 0. half is which half of the node's GPUs match: -1 for both.
func subrequest(name string, count int64, half int) resourceapi.DeviceSubRequest {
	result := resourceapi.DeviceSubRequest{Name: name, DeviceClassName: "gpu", AllocationMode: exactCount, Count: count}
	if count == 0 {
		result.AllocationMode = allDevices
	}
	if half >= 0 {
		result.Selectors = selector(fmt.Sprintf("device.attributes['%s'].half == %d", gpuDriver, half))
	}
	return result
}

// nic is a subrequest for network cards.
func nic(name string, count int64) resourceapi.DeviceSubRequest {
	return resourceapi.DeviceSubRequest{Name: name, DeviceClassName: "nic", AllocationMode: exactCount, Count: count}
}

func firstOf(name string, subrequests ...resourceapi.DeviceSubRequest) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: name, FirstAvailable: subrequests}
}

// all is a request for all GPUs of a node, or of one half.
func all(half int) resourceapi.DeviceRequest {
	of := subrequest("", 0, half)
	return resourceapi.DeviceRequest{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: of.DeviceClassName, AllocationMode: of.AllocationMode, Selectors: of.Selectors,
	}}
}

// claimsOf makes the pod m0 with a claim for each list of requests. Like the API server it refuses another spec.
func (h *harness) claimsOf(lists ...[]resourceapi.DeviceRequest) {
	h.t.Helper()
	h.fake.PrependReactor("update", "resourceclaims", func(action clienttesting.Action) (bool, runtime.Object, error) {
		claim := action.(clienttesting.UpdateAction).GetObject().(*resourceapi.ResourceClaim)
		var number int
		if _, err := fmt.Sscanf(claim.Name, "m0-%d", &number); err != nil || !reflect.DeepEqual(claim.Spec.Devices.Requests, lists[number]) {
			return true, nil, fmt.Errorf("claim %s: spec is immutable", claim.Name)
		}
		return false, nil, nil
	})
	var claims []resourceapi.DeviceClaim
	for _, requests := range lists {
		claims = append(claims, claimFor(requests...))
	}
	h.podsWith(h.claiming(claims...), "gang", "m0")
}

// allocatedByRequest returns the devices of all claims, as "request: device".
func (h *harness) allocatedByRequest() (devices []string) {
	h.t.Helper()
	for _, result := range h.allocations() {
		devices = append(devices, result.Request+": "+result.Device)
	}
	return devices
}

// The planned devices may also satisfy an earlier subrequest, for fewer of them. The planner did not choose it.
func TestMembersGetAllPlannedDevicesByTheChosenSubrequest(t *testing.T) {
	type lists = [][]resourceapi.DeviceRequest
	for name, c := range map[string]struct {
		claims  lists
		planned []int
		number  uint32
		want    string
	}{
		"the first, of fewer": {
			lists{{firstOf("r", subrequest("one", 1, -1), subrequest("two", 2, -1))}}, []int{5}, 1, "r/one: gpu-5",
		},
		"the second, of more": {
			lists{{firstOf("r", subrequest("one", 1, -1), subrequest("two", 2, -1))}}, []int{5, 2}, 2, "r/two: gpu-5, r/two: gpu-2",
		},
		"the second, of fewer": {
			lists{{firstOf("r", subrequest("three", 3, -1), subrequest("two", 2, -1))}}, []int{5, 2}, 2, "r/two: gpu-5, r/two: gpu-2",
		},
		"all that match is one of the planned devices": {
			lists{{firstOf("r", subrequest("all", 0, 1), subrequest("two", 2, -1))}}, []int{5, 2}, 2, "r/two: gpu-5, r/two: gpu-2",
		},
		"all that match": {
			lists{{firstOf("r", subrequest("one", 1, 1), subrequest("all", 0, 1))}}, []int{4, 5, 6, 7}, 2,
			"r/all: gpu-4, r/all: gpu-5, r/all: gpu-6, r/all: gpu-7",
		},
		"two requests": {
			lists{{firstOf("r", subrequest("one", 1, -1), subrequest("two", 2, -1)), firstOf("s", subrequest("one", 1, -1), subrequest("two", 2, -1))}},
			[]int{5, 2, 7, 0}, 2, "r/two: gpu-5, r/two: gpu-2, s/two: gpu-7, s/two: gpu-0",
		},
		"one of two claims has fewer subrequests": {
			lists{
				{firstOf("r", subrequest("one", 1, -1), subrequest("two", 2, -1), subrequest("three", 3, -1))},
				{firstOf("s", subrequest("two", 2, -1), subrequest("one", 1, -1))},
			},
			[]int{5, 2, 7, 0}, 3, "r/three: gpu-5, r/three: gpu-2, r/three: gpu-7, s/one: gpu-0",
		},
		"a request for another driver's devices has its own choice": {
			lists{{firstOf("r", subrequest("one", 1, -1), subrequest("two", 2, -1)), firstOf("s", nic("first", 1), nic("second", 9))}},
			[]int{5, 2}, 2, "r/two: gpu-5, r/two: gpu-2, s/first: nic-2",
		},
		"all GPUs of a node":       {lists{{all(-1)}}, []int{0, 1, 2, 3, 4, 5, 6, 7}, 1, "r: gpu-0, r: gpu-1, r: gpu-2, r: gpu-3, r: gpu-4, r: gpu-5, r: gpu-6, r: gpu-7"},
		"in the order of the plan": {lists{{all(0)}}, []int{2, 0, 3, 1}, 1, "r: gpu-2, r: gpu-0, r: gpu-3, r: gpu-1"},
	} {
		t.Run(name, func(t *testing.T) {
			h := dra(t)
			h.addNICs()
			h.planDevices(c.planned)
			h.bySubrequests(c.number)
			h.claimsOf(c.claims...)
			h.run("")
			h.place("m0")
			next(t, "binding", h.bound)
			if got := strings.Join(h.allocatedByRequest(), ", "); got != c.want {
				t.Errorf("got %s", got)
			}
		})
	}
}

// A plan that is older than a change of the devices must not give a member only some of its devices.
func TestNothingIsGivenThatIsNotExactlyThePlan(t *testing.T) {
	for name, c := range map[string]struct {
		request resourceapi.DeviceRequest
		planned []int
		number  uint32
		taint   int
		by      string // Filter tells which plugin refuses the node; Reserve does not
	}{
		"another device matches too":      {all(1), []int{4, 5, 6}, 1, -1, "PlannedResources"},
		"a planned one does not match":    {all(1), []int{3, 4, 5, 6, 7}, 1, -1, ""},
		"one that matches has a taint":    {all(1), []int{4, 5, 6}, 1, 7, "PlannedResources"},
		"a subrequest for fewer":          {firstOf("r", subrequest("one", 1, -1), subrequest("two", 2, -1)), []int{5, 2}, 1, -1, ""},
		"a subrequest for more":           {firstOf("r", subrequest("one", 1, -1), subrequest("two", 2, -1)), []int{5}, 2, -1, "PlannedResources"},
		"of no subrequest, and for fewer": {firstOf("r", subrequest("one", 1, -1), subrequest("two", 2, -1)), []int{5, 2}, 0, -1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := dra(t)
			h.planDevices(c.planned)
			h.bySubrequests(c.number)
			h.claimsOf([]resourceapi.DeviceRequest{c.request})
			if c.taint >= 0 {
				h.changeSlice(func(slice *resourceapi.ResourceSlice) {
					slice.Spec.Devices[c.taint].Taints = []resourceapi.DeviceTaint{{Key: "worn", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
				})
			}
			h.run("")
			h.place("m0")
			if report := next(t, "report", h.service.reports); report.Fate != fateNeverSent || report.Plugin != c.by {
				t.Errorf("reported: %v", report)
			}
			if got := h.allocatedByRequest(); len(got) > 0 {
				t.Errorf("got %v", got)
			}
		})
	}
}
