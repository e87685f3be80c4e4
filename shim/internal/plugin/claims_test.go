package plugin

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"muster.dev/shim/internal/devices"
)

// claimingPods creates members, each with a claim for two GPUs.
func (h *harness) claimingPods(names ...string) {
	h.t.Helper()
	h.podsWith(h.claiming(claimFor(asks("r", "gpu", 2))), "gang", names...)
}

// claimOfAnEarlierProcess creates the member m0 with a claim for two GPUs, to which an earlier process has allocated gpu-1
// and gpu-2.
func (h *harness) claimOfAnEarlierProcess() {
	h.t.Helper()
	h.podsWith(func(pod *v1.Pod) {
		claim := nameClaim(pod, claimFor(asks("r", "gpu", 2)))
		claim.Status.Allocation = allocation(gpuDriver, "gpu-1", "gpu-2")
		claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: pod.Name, UID: pod.UID}}
		h.add(claim)
	}, "gang", "m0")
}

func TestMembersWithClaimsGetThePlannedDevices(t *testing.T) {
	h := dra(t)
	h.planDevices([]int{7, 0}, []int{3, 5})
	h.run("")
	h.claimingPods("m0", "m1")
	h.place("m0", "m1")
	h.waitForBindings(2)
	want := map[string]string{"m0": "gpu-7 gpu-0", "m1": "gpu-3 gpu-5"}
	if got := h.allocated(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v", got)
	}
}

// The in-tree plugin would bind the pod on the devices that its claim has, whatever is planned.
func TestDevicesThatAnEarlierProcessHasLeftInClaimsAreFreed(t *testing.T) {
	h := dra(t)
	h.planDevices([]int{4, 6})
	h.claimOfAnEarlierProcess()
	h.run("")
	h.place("m0")
	next(t, "binding", h.bound)
	if got := h.allocated(); got["m0"] != "gpu-4 gpu-6" {
		t.Errorf("allocated: %v", got)
	}
	fenced, freed := h.firstAction("patch", "pods/status"), h.firstAction("update", "resourceclaims/status")
	if fenced < 0 || freed < fenced {
		t.Errorf("the pod was changed by action %d, and the claim freed by %d", fenced, freed)
	}
	if h.fakeDid("delete", "resourceclaims") {
		t.Error("the claim was deleted")
	}
}

func TestAClaimThatOthersUseIsNotFreed(t *testing.T) {
	h := dra(t)
	h.planDevices([]int{4, 6})
	h.claimOfAnEarlierProcess()
	claim, err := h.client.ResourceV1().ResourceClaims("ns").Get(h.ctx, "m0-0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "q", UID: "uid-q"})
	if _, err := h.client.ResourceV1().ResourceClaims("ns").UpdateStatus(h.ctx, claim, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	h.run("")
	h.place("m0")
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
	var nics []resourceapi.Device
	for i := range 4 {
		nics = append(nics, resourceapi.Device{Name: fmt.Sprintf("nic-%d", i)})
	}
	h.add(driverClass("nic", nicDriver, ""), sliceOf("nics", nicDriver, "n", nics...), otherClaim(nicDriver, "nic-0", "nic-1"))
}

// As many GPUs by resources as devices by claims must not make the claims' devices look like the planned ones.
func TestDevicesOfOtherDriversAreNotGivenTwice(t *testing.T) {
	h := dra(t)
	h.addNICs()
	h.planDevices([]int{4, 6})
	h.run("")
	h.podsWith(h.claiming(claimFor(asks("r", "nic", 2))), "2", "m0")
	h.place("m0")
	next(t, "binding", h.bound)
	if got := h.allocated()["m0"]; got != "nic-2 nic-3 gpu-4 gpu-6" {
		t.Errorf("allocated: %s; nic-0 and nic-1 are another claim's", got)
	}
}

// The allocator gives no claim a device that another request of the pod has, even one that only watches. So a request to
// watch must not hold a planned device while others are there.
func TestMembersWatchDevicesNextToThePlannedOnes(t *testing.T) {
	watchAll := asks("w", "watch", 0)
	watchAll.Exactly.AllocationMode = allDevices
	watching := func(count int64) resourceapi.DeviceRequest { return asks("w", "watch", count) }
	gpus := asks("r", "gpu", 2)
	half := []resourceapi.DeviceConstraint{agree(gpuDriver + "/half")}
	for name, c := range map[string]struct {
		claims  []resourceapi.DeviceClaim
		watched string // the devices, or how many
	}{
		"in one claim, before":                 {[]resourceapi.DeviceClaim{claimFor(watching(1), gpus)}, "1"},
		"in one claim, after":                  {[]resourceapi.DeviceClaim{claimFor(gpus, watching(6))}, "6"},
		"in a claim of its own":                {[]resourceapi.DeviceClaim{claimFor(watching(3)), claimFor(gpus)}, "3"},
		"all, in a claim of its own":           {[]resourceapi.DeviceClaim{claimFor(gpus), claimFor(watchAll)}, "8"},
		"those that agree with them":           {[]resourceapi.DeviceClaim{{Requests: []resourceapi.DeviceRequest{watching(2), gpus}, Constraints: half}}, "[gpu-1 gpu-2]"},
		"those that agree, in a later request": {[]resourceapi.DeviceClaim{{Requests: []resourceapi.DeviceRequest{gpus, watching(2)}, Constraints: half}}, "[gpu-1 gpu-2]"},
	} {
		t.Run(name, func(t *testing.T) {
			h := dra(t)
			h.planDevices([]int{3, 0})
			h.run("")
			h.podsWith(h.claiming(c.claims...), "gang", "m0")
			h.place("m0")
			next(t, "binding", h.bound)
			var got, watched []string
			for _, result := range h.allocations() {
				if result.AdminAccess != nil && *result.AdminAccess {
					watched = append(watched, result.Device)
				} else {
					got = append(got, result.Device)
				}
			}
			slices.Sort(watched)
			if fmt.Sprint(got) != "[gpu-3 gpu-0]" || fmt.Sprint(watched) != c.watched && fmt.Sprint(len(watched)) != c.watched {
				t.Errorf("allocated: %v; %v are watched", got, watched)
			}
		})
	}
}

// A DeviceTaintRule may set our taint on all devices of the driver. Other pods must tolerate it to watch them.
func TestMembersWatchDevicesWithOurTaint(t *testing.T) {
	h := dra(t)
	h.changeSlice(func(slice *resourceapi.ResourceSlice) {
		for i := range slice.Spec.Devices {
			slice.Spec.Devices[i].Taints = []resourceapi.DeviceTaint{{Key: devices.OwnedTaint, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
		}
		second := slice.DeepCopy()
		second.Name, second.UID, second.Spec.Pool.Name, second.Spec.Devices = "m", "uid-of-m", "m", second.Spec.Devices[:1]
		h.add(second)
	})
	h.planDevices([]int{3, 0})
	h.run("")
	h.podsWith(h.claiming(claimFor(asks("w", "watch", 7), asks("r", "gpu", 2))), "gang", "m0")
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
	h.claimingPods("m0", "m1")
	for _, name := range []string{"m0-0", "m1-0"} {
		claim, err := h.client.ResourceV1().ResourceClaims("ns").Get(h.ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		claim.Spec.Devices.Requests[0].Exactly.Selectors = selector("device.attributes['" + gpuDriver + "'].half == 1")
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
	big := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"big": {BoolValue: new(true)}}
	h.add(driverClass("gpu", gpuDriver, "nvidia.com/gpu"))
	for i, n := range nodes {
		slice := sliceOf(n.Name, gpuDriver, n.Name, resourceapi.Device{Name: "gpu-0"}, resourceapi.Device{Name: "gpu-1", Attributes: big})
		slice.Spec.Pool.Name = fmt.Sprintf("uid-%d", i)
		h.add(slice)
	}
	request := asks("r", "gpu", 1)
	request.Exactly.Selectors = selector("has(device.attributes['" + gpuDriver + "'].big)")
	h.podsWith(h.claiming(claimFor(request)), "gang", "m0")
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
	const name = "shared"
	shared := otherClaim(gpuDriver, "gpu-1")
	shared.Namespace, shared.Name, shared.Spec.Devices = "ns", name, claimFor(asks("r", "gpu", 1))
	h.add(shared)
	h.podsWith(func(pod *v1.Pod) {
		h.claiming(claimFor(asks("r", "gpu", 2)))(pod)
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, v1.PodResourceClaim{Name: name, ResourceClaimName: new(name)})
	}, "gang", "m0")
	h.run("")
	h.place("m0")
	next(t, "binding", h.bound)
	for claim, want := range map[string]string{"m0-0": "[gpu-4 gpu-6]", name: "[gpu-1]"} {
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
