package plugin

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"muster.dev/shim/internal/devices"
)

// claimingPods creates members, each with a claim for two GPUs as Kubernetes makes it from a template. `leaked` are the
// devices that an earlier process has allocated to each.
func (h *harness) claimingPods(leaked []int, names ...string) {
	h.t.Helper()
	h.claimingPodsWith(func(request *resourceapi.ExactDeviceRequest) { request.Count = 2 }, leaked, names...)
}

// claimingPodsWith does the same, with a request that may be changed.
func (h *harness) claimingPodsWith(change func(*resourceapi.ExactDeviceRequest), leaked []int, names ...string) {
	h.t.Helper()
	// What the API server does and the fake does not: a later version with each update, which the allocator's cache needs.
	var version atomic.Int64
	version.Store(10)
	h.fake.PrependReactor("update", "resourceclaims", func(action clienttesting.Action) (bool, runtime.Object, error) {
		claim := action.(clienttesting.UpdateAction).GetObject().(*resourceapi.ResourceClaim)
		claim.ResourceVersion = fmt.Sprint(version.Add(1))
		return false, nil, nil
	})
	yes := true
	for _, name := range names {
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name + "-gpus", UID: types.UID("uid-of-" + name + "-gpus"), ResourceVersion: "5",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: name, UID: types.UID("uid-" + name), Controller: &yes}},
		}}
		claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: "gpu", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
		}}}
		change(claim.Spec.Devices.Requests[0].Exactly)
		if len(leaked) > 0 {
			claim.Status.Allocation = &resourceapi.AllocationResult{}
			claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: types.UID("uid-" + name)}}
		}
		for _, number := range leaked {
			claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results,
				resourceapi.DeviceRequestAllocationResult{Request: "r", Driver: gpuDriver, Pool: "n", Device: fmt.Sprintf("gpu-%d", number)})
		}
		if err := h.fake.Tracker().Add(claim); err != nil {
			h.t.Fatal(err)
		}
	}
	h.podsWith(func(pod *v1.Pod) {
		template, claimName := "two", pod.Name+"-gpus"
		pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpus", ResourceClaimTemplateName: &template}}
		pod.Status.ResourceClaimStatuses = []v1.PodResourceClaimStatus{{Name: "gpus", ResourceClaimName: &claimName}}
	}, "gang", names...)
}

func TestMembersWithClaimsGetThePlannedDevices(t *testing.T) {
	h := dra(t)
	h.planDevices([]int{7, 0}, []int{3, 5})
	h.run("")
	h.claimingPods(nil, "m0", "m1")
	h.until("gated", func() bool { return h.gated("m0", "m1") })
	h.service.push(verdict(plannedOutcome, 1, "m0", "m1"))
	for range 2 {
		next(t, "binding", h.bound)
	}
	want := map[string]string{"m0": "gpu-7 gpu-0", "m1": "gpu-3 gpu-5"}
	if got := h.allocated(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v", got)
	}
}

// The in-tree plugin would bind the pod on the devices that its claim has, whatever is planned.
func TestDevicesThatAnEarlierProcessHasLeftInClaimsAreFreed(t *testing.T) {
	h := dra(t)
	h.planDevices([]int{4, 6})
	h.claimingPods([]int{1, 2}, "m0")
	h.run("")
	h.until("gated", func() bool { return h.gated("m0") })
	h.service.push(verdict(plannedOutcome, 1, "m0"))
	next(t, "binding", h.bound)
	if got := h.allocated(); got["m0"] != "gpu-4 gpu-6" {
		t.Errorf("allocated: %v", got)
	}
	var fenced, freed int
	for i, action := range h.fake.Actions() {
		switch {
		case action.Matches("patch", "pods/status") && fenced == 0:
			fenced = i
		case action.Matches("update", "resourceclaims/status") && freed == 0:
			freed = i
		}
	}
	if fenced == 0 || freed < fenced {
		t.Errorf("the pod was changed by action %d, and the claim freed by %d", fenced, freed)
	}
	if h.fakeDid("delete", "resourceclaims") {
		t.Error("the claim was deleted")
	}
}

func TestAClaimThatOthersUseIsNotFreed(t *testing.T) {
	h := dra(t)
	h.planDevices([]int{4, 6})
	h.claimingPods([]int{1, 2}, "m0")
	claim, err := h.client.ResourceV1().ResourceClaims("ns").Get(h.ctx, "m0-gpus", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "q", UID: "uid-q"})
	if _, err := h.client.ResourceV1().ResourceClaims("ns").UpdateStatus(h.ctx, claim, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	h.run("")
	h.until("gated", func() bool { return h.gated("m0") })
	h.service.push(verdict(plannedOutcome, 1, "m0"))
	if report := next(t, "report", h.service.reports); report.Plugin != "PlannedResources" {
		t.Errorf("reported: %v", report)
	}
	if got := h.allocated(); got["m0"] != "gpu-1 gpu-2" {
		t.Errorf("allocated: %v", got)
	}
}

// addNICs publishes four devices of another driver on the node. Another claim has the first two.
func (h *harness) addNICs() {
	h.t.Helper()
	const driver = "nic.example.com"
	on := "n"
	pool := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "nics"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: driver, NodeName: &on, Pool: resourceapi.ResourcePool{Name: "n", Generation: 1, ResourceSliceCount: 1},
	}}
	allocatedClaim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "held", UID: "uid-held", ResourceVersion: "5"}}
	allocatedClaim.Status.Allocation = &resourceapi.AllocationResult{}
	for i := range 4 {
		name := fmt.Sprintf("nic-%d", i)
		pool.Spec.Devices = append(pool.Spec.Devices, resourceapi.Device{Name: name})
		if i < 2 {
			allocatedClaim.Status.Allocation.Devices.Results = append(allocatedClaim.Status.Allocation.Devices.Results,
				resourceapi.DeviceRequestAllocationResult{Request: "r", Driver: driver, Pool: "n", Device: name})
		}
	}
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "nic"}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "device.driver == '" + driver + "'"}}},
	}}
	for _, obj := range []runtime.Object{class, pool, allocatedClaim} {
		if err := h.fake.Tracker().Add(obj); err != nil {
			h.t.Fatal(err)
		}
	}
}

// As many GPUs by resources as devices by claims must not make the claims' devices look like the planned ones.
func TestDevicesOfOtherDriversAreNotGivenTwice(t *testing.T) {
	h := dra(t)
	h.addNICs()
	h.planDevices([]int{4, 6})
	yes, name, template := true, "m0-nics", "nics"
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: "uid-of-m0-nics", ResourceVersion: "5",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "m0", UID: "uid-m0", Controller: &yes}},
	}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: "nic", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 2,
	}}}
	if err := h.fake.Tracker().Add(claim); err != nil {
		t.Fatal(err)
	}
	h.run("")
	h.podsWith(func(pod *v1.Pod) {
		pod.Annotations = map[string]string{"gpu.topology/group": "g"}
		pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "nics", ResourceClaimTemplateName: &template}}
		pod.Status.ResourceClaimStatuses = []v1.PodResourceClaimStatus{{Name: "nics", ResourceClaimName: &name}}
	}, "2", "m0")
	h.until("gated", func() bool { return h.gated("m0") })
	h.service.push(verdict(plannedOutcome, 1, "m0"))
	next(t, "binding", h.bound)
	allocated, err := h.client.ResourceV1().ResourceClaims("ns").Get(h.ctx, name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var devices []string
	for _, result := range allocated.Status.Allocation.Devices.Results {
		devices = append(devices, result.Device)
	}
	if fmt.Sprint(devices) != "[nic-2 nic-3]" {
		t.Errorf("allocated: %v; nic-0 and nic-1 are another claim's", devices)
	}
}

// The allocator gives no claim a device that another request of the pod has, even one that only watches. So a request to
// watch must not hold a planned device while others are there.
func TestMembersWatchDevicesNextToThePlannedOnes(t *testing.T) {
	yes := true
	watching := func(name string, mode resourceapi.DeviceAllocationMode, count int64) resourceapi.DeviceRequest {
		return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: "gpu", AllocationMode: mode, Count: count, AdminAccess: &yes,
		}}
	}
	gpus := resourceapi.DeviceRequest{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: "gpu", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 2,
	}}
	exact, all := resourceapi.DeviceAllocationModeExactCount, resourceapi.DeviceAllocationModeAll
	for name, c := range map[string]struct {
		claims  [][]resourceapi.DeviceRequest
		watched string // the devices, or how many
		match   resourceapi.FullyQualifiedName
	}{
		"in one claim, before":                 {[][]resourceapi.DeviceRequest{{watching("w", exact, 1), gpus}}, "1", ""},
		"in one claim, after":                  {[][]resourceapi.DeviceRequest{{gpus, watching("w", exact, 6)}}, "6", ""},
		"in a claim of its own":                {[][]resourceapi.DeviceRequest{{watching("w", exact, 3)}, {gpus}}, "3", ""},
		"all, in a claim of its own":           {[][]resourceapi.DeviceRequest{{gpus}, {watching("w", all, 0)}}, "8", ""},
		"those that agree with them":           {[][]resourceapi.DeviceRequest{{watching("w", exact, 2), gpus}}, "[gpu-1 gpu-2]", gpuDriver + "/half"},
		"those that agree, in a later request": {[][]resourceapi.DeviceRequest{{gpus, watching("w", exact, 2)}}, "[gpu-1 gpu-2]", gpuDriver + "/half"},
	} {
		t.Run(name, func(t *testing.T) {
			h := dra(t)
			h.planDevices([]int{3, 0})
			var references []v1.PodResourceClaim
			var statuses []v1.PodResourceClaimStatus
			for i, requests := range c.claims {
				called := fmt.Sprintf("m0-%d", i)
				claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
					Namespace: "ns", Name: called, UID: types.UID("uid-of-" + called), ResourceVersion: "5",
					OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "m0", UID: "uid-m0", Controller: &yes}},
				}}
				claim.Spec.Devices.Requests = requests
				if c.match != "" {
					claim.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &c.match}}
				}
				if err := h.fake.Tracker().Add(claim); err != nil {
					t.Fatal(err)
				}
				references = append(references, v1.PodResourceClaim{Name: called, ResourceClaimTemplateName: &called})
				statuses = append(statuses, v1.PodResourceClaimStatus{Name: called, ResourceClaimName: &called})
			}
			h.run("")
			h.podsWith(func(pod *v1.Pod) {
				pod.Spec.ResourceClaims, pod.Status.ResourceClaimStatuses = references, statuses
			}, "gang", "m0")
			h.until("gated", func() bool { return h.gated("m0") })
			h.service.push(verdict(plannedOutcome, 1, "m0"))
			next(t, "binding", h.bound)
			var got, watched []string
			for _, reference := range references {
				claim, err := h.client.ResourceV1().ResourceClaims("ns").Get(h.ctx, reference.Name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				for _, result := range claim.Status.Allocation.Devices.Results {
					if result.AdminAccess != nil && *result.AdminAccess {
						watched = append(watched, result.Device)
					} else {
						got = append(got, result.Device)
					}
				}
			}
			slices.Sort(watched)
			if fmt.Sprint(got) != "[gpu-3 gpu-0]" || fmt.Sprint(watched) != c.watched && fmt.Sprint(len(watched)) != c.watched {
				t.Errorf("allocated: %v; %v are watched", got, watched)
			}
		})
	}
}

// claimOfM0 creates a claim of the pod m0, as Kubernetes makes it from a template, and returns how the pod names it.
func (h *harness) claimOfM0(called string, spec resourceapi.DeviceClaim) (v1.PodResourceClaim, v1.PodResourceClaimStatus) {
	h.t.Helper()
	yes := true
	h.add(&resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: called, UID: types.UID("uid-of-" + called), ResourceVersion: "5",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "m0", UID: "uid-m0", Controller: &yes}},
		},
		Spec: resourceapi.ResourceClaimSpec{Devices: spec},
	})
	return v1.PodResourceClaim{Name: called, ResourceClaimTemplateName: &called}, v1.PodResourceClaimStatus{Name: called, ResourceClaimName: &called}
}

// A DeviceTaintRule may set our taint on all devices of the driver. Other pods must tolerate it to watch them.
func TestMembersWatchDevicesWithOurTaint(t *testing.T) {
	h := dra(t)
	slice, err := h.client.ResourceV1().ResourceSlices().Get(h.ctx, "n", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range slice.Spec.Devices {
		slice.Spec.Devices[i].Taints = []resourceapi.DeviceTaint{{Key: devices.Owned, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	}
	if _, err := h.client.ResourceV1().ResourceSlices().Update(h.ctx, slice, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	second := slice.DeepCopy()
	second.Name, second.UID, second.Spec.Pool.Name, second.Spec.Devices = "m", "uid-of-m", "m", second.Spec.Devices[:1]
	h.add(second)
	h.planDevices([]int{3, 0})
	yes, request := true, func(name string, count int64) resourceapi.DeviceRequest {
		return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: "gpu", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
		}}
	}
	watching := request("w", 7)
	watching.Exactly.AdminAccess = &yes
	reference, status := h.claimOfM0("both", resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{watching, request("r", 2)}})
	h.run("")
	h.podsWith(func(pod *v1.Pod) {
		pod.Spec.ResourceClaims, pod.Status.ResourceClaimStatuses = []v1.PodResourceClaim{reference}, []v1.PodResourceClaimStatus{status}
	}, "gang", "m0")
	h.until("gated", func() bool { return h.gated("m0") })
	h.service.ask(inTreeQuestion(1, "m0"))
	if report := next(t, "answer", h.service.inTree); len(report.Refusals) > 0 {
		t.Errorf("refused: %v", report.Refusals)
	}
	h.service.push(verdict(plannedOutcome, 1, "m0"))
	next(t, "binding", h.bound)
	if got := strings.Fields(h.allocated()["m0"]); len(got) != 9 || !slices.Equal(got[7:], []string{"gpu-3", "gpu-0"}) {
		t.Errorf("allocated: %v", got)
	}
}

func TestInTreeAnswersNameTheGPUsThatMatch(t *testing.T) {
	h := dra(t)
	h.run("")
	h.claimingPods(nil, "m0", "m1")
	for _, name := range []string{"m0-gpus", "m1-gpus"} {
		claim, err := h.client.ResourceV1().ResourceClaims("ns").Get(h.ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		claim.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: "device.attributes['" + gpuDriver + "'].half == 1",
		}}}
		if _, err := h.client.ResourceV1().ResourceClaims("ns").Update(h.ctx, claim, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	h.service.ask(inTreeQuestion(1, "m0", "m1"))
	for {
		report := next(t, "answer", h.service.inTree)
		if len(report.DeviceSets) == 0 { // the claims of before, or not all of them
			continue
		}
		got := fmt.Sprint(report.DeviceSets[0].Names)
		if want := fmt.Sprintf("[%[1]s/gpu-4 %[1]s/gpu-5 %[1]s/gpu-6 %[1]s/gpu-7]", gpuDriver); got != want || len(report.Answers) != 1 || fmt.Sprint(report.Answers[0].Devices) != "[1]" {
			t.Errorf("got %v", report)
		}
		return
	}
}

// One byte tells apart 255 sets of GPUs, so nodes must not differ by the names of their pools.
func TestInTreeAnswersNameTheGPUsOf300NodesWithPoolsOfTheirOwn(t *testing.T) {
	nodes := zoned(300)
	h := newHarness(t, nodes...)
	resource, yes := "nvidia.com/gpu", true
	big := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"big": {BoolValue: &yes}}
	h.add(&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}, Spec: resourceapi.DeviceClassSpec{
		ExtendedResourceName: &resource,
		Selectors:            []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "device.driver == '" + gpuDriver + "'"}}},
	}})
	for i, n := range nodes {
		h.add(&resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: types.UID("uid-of-" + n.Name), ResourceVersion: "5"},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: gpuDriver, NodeName: &n.Name, Pool: resourceapi.ResourcePool{Name: fmt.Sprintf("uid-%d", i), Generation: 1, ResourceSliceCount: 1},
				Devices: []resourceapi.Device{{Name: "gpu-0"}, {Name: "gpu-1", Attributes: big}},
			},
		})
	}
	reference, status := h.claimOfM0("gpus", resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: "gpu", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "has(device.attributes['" + gpuDriver + "'].big)"}}},
	}}}})
	h.podsWith(func(pod *v1.Pod) {
		pod.Spec.ResourceClaims, pod.Status.ResourceClaimStatuses = []v1.PodResourceClaim{reference}, []v1.PodResourceClaimStatus{status}
	}, "gang", "m0")
	h.run("")
	h.service.ask(inTreeQuestion(1, "m0"))
	report := next(t, "answer", h.service.inTree)
	if len(report.DeviceSets) != 1 || fmt.Sprint(report.DeviceSets[0].Names) != "["+gpuDriver+"/gpu-1]" || len(report.Refusals) > 0 {
		t.Errorf("%d sets, refused: %v", len(report.DeviceSets), report.Refusals)
	}
}

// The devices of a shared claim are not planned for the member, and are of the same driver.
func TestAMemberMayAlsoShareAClaimThatHasItsDevices(t *testing.T) {
	h := dra(t)
	h.planDevices([]int{4, 6})
	h.claimingPods(nil, "m0")
	name := "shared"
	shared := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "uid-of-shared", ResourceVersion: "5"}}
	shared.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: "gpu", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
	}}}
	shared.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "r", Driver: gpuDriver, Pool: "n", Device: "gpu-1"}},
	}}
	if err := h.fake.Tracker().Add(shared); err != nil {
		t.Fatal(err)
	}
	pod, err := h.client.CoreV1().Pods("ns").Get(h.ctx, "m0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, v1.PodResourceClaim{Name: "shared", ResourceClaimName: &name})
	if _, err := h.client.CoreV1().Pods("ns").Update(h.ctx, pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	h.run("")
	h.until("gated", func() bool { return h.gated("m0") })
	h.service.push(verdict(plannedOutcome, 1, "m0"))
	next(t, "binding", h.bound)
	for claim, want := range map[string]string{"m0-gpus": "[gpu-4 gpu-6]", name: "[gpu-1]"} {
		got, err := h.client.ResourceV1().ResourceClaims("ns").Get(h.ctx, claim, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var devices []string
		for _, result := range got.Status.Allocation.Devices.Results {
			devices = append(devices, result.Device)
		}
		if fmt.Sprint(devices) != want || len(got.Status.ReservedFor) != 1 {
			t.Errorf("%s: %v, for %v", claim, devices, got.Status.ReservedFor)
		}
	}
}
