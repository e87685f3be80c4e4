package plugin

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clienttesting "k8s.io/client-go/testing"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

const groupClaim = "group-claim"

// ofGroup lets a pod share the claim of the PodGroup g, as the resource claim controller writes it.
func ofGroup(pod *v1.Pod) {
	pod.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("g")}
	pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, v1.PodResourceClaim{Name: "c", ResourceClaimTemplateName: new("t")})
	pod.Status.ResourceClaimStatuses = append(pod.Status.ResourceClaimStatuses, v1.PodResourceClaimStatus{Name: "c", ResourceClaimName: new(groupClaim)})
}

// addGroupClaim adds the claim of the PodGroup g.
func (h *harness) addGroupClaim(spec resourceapi.DeviceClaim, change func(*resourceapi.ResourceClaim)) {
	h.t.Helper()
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: groupClaim, UID: "uid-of-" + groupClaim, ResourceVersion: "5",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "scheduling.k8s.io/v1beta1", Kind: "PodGroup", Name: "g", UID: "uid-g", Controller: new(true)}},
		},
		Spec: resourceapi.ResourceClaimSpec{Devices: spec},
	}
	change(claim)
	h.add(claim)
}

func unallocated(*resourceapi.ResourceClaim) {}

// leftAllocated gives the claim gpu-1 and gpu-2, as an earlier process left it.
func leftAllocated(claim *resourceapi.ResourceClaim) {
	claim.Status.Allocation = allocation(gpuDriver, "gpu-1", "gpu-2")
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{
		{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "g", UID: "uid-g"},
	}
}

// groupClaimNow returns the devices of the PodGroup's claim, and for whom they are reserved.
func (h *harness) groupClaimNow() (devices, users string) {
	h.t.Helper()
	claim, err := h.client.ResourceV1().ResourceClaims("ns").Get(h.ctx, groupClaim, metav1.GetOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	var names []string
	for _, user := range claim.Status.ReservedFor {
		names = append(names, fmt.Sprintf("%s/%s/%s/%s", user.APIGroup, user.Resource, user.Name, user.UID))
	}
	return h.allocated()["g"], strings.Join(names, " ")
}

const reservedForGroup = "scheduling.k8s.io/podgroups/g/uid-g"

func TestMembersShareTheClaimOfTheirPodGroup(t *testing.T) {
	h := dra(t)
	h.planDevices([]int{7, 2}, nil, nil)
	h.addGroupClaim(claimFor(asks("r", "gpu", 2)), unallocated)
	h.run("")
	names := members(3)
	h.podsWith(ofGroup, "", names...)
	h.place(names...)
	h.waitForBindings(len(names))
	if devices, users := h.groupClaimNow(); devices != "gpu-7 gpu-2" || users != reservedForGroup {
		t.Errorf("%s for %s", devices, users)
	}
}

func TestAClaimOfAPodGroupForOtherDevicesIsAllocatedByTheFirstMember(t *testing.T) {
	h := dra(t)
	h.addNICs()
	h.service.plan(spread(2, "n")...)
	h.addGroupClaim(claimFor(asks("r", "nic", 1)), unallocated)
	h.run("")
	h.podsWith(ofGroup, "", "m0", "m1")
	h.place("m0", "m1")
	h.waitForBindings(2)
	if devices, users := h.groupClaimNow(); devices != "nic-2" || users != reservedForGroup {
		t.Errorf("%s for %s", devices, users)
	}
}

// A member that shares the GPUs of a claim must not choose them.
func TestAMemberWithoutPlannedDevicesDoesNotAllocateGPUs(t *testing.T) {
	h := dra(t)
	h.planDevices(nil, []int{7, 2})
	h.addGroupClaim(claimFor(asks("r", "gpu", 2)), unallocated)
	h.run("")
	h.podsWith(ofGroup, "", "m0", "m1")
	h.place("m0", "m1")
	report := next(t, "report", h.service.reports)
	if report.Fate != fateNeverSent || !strings.Contains(report.Message, "no other pod of the PodGroup has got the claim's devices") {
		t.Errorf("reported: %v", report)
	}
	if devices, _ := h.groupClaimNow(); devices != "" || len(h.bound) > 0 {
		t.Errorf("allocated: %s", devices)
	}
}

// The claim is written, but no member may be bound. The next plan has other devices.
func TestTheClaimOfAPodGroupIsFreedWhenItsGangFails(t *testing.T) {
	h := dra(t)
	h.planDevices([]int{7, 2}, nil)
	h.addGroupClaim(claimFor(asks("r", "gpu", 2)), unallocated)
	var isReady atomic.Bool
	h.later = &laterPlugin{preBind: func(pod *v1.Pod) *fwk.Status {
		if pod.Name == "m1" && !isReady.Load() {
			return fwk.AsStatus(errors.New("no volume"))
		}
		return nil
	}}
	h.run("")
	h.podsWith(ofGroup, "", "m0", "m1")
	h.place("m0", "m1")
	for range 2 {
		next(t, "report", h.service.reports)
	}
	h.until("gated", func() bool { return h.gated("m0", "m1") && h.waiting() == 0 })
	isReady.Store(true)
	h.planDevices([]int{3, 4}, nil)
	h.service.push(verdict(plannedOutcome, 2, "m0", "m1"))
	h.waitForBindings(2)
	if devices, users := h.groupClaimNow(); devices != "gpu-3 gpu-4" || users != reservedForGroup {
		t.Errorf("%s for %s", devices, users)
	}
}

func TestTheClaimThatAnEarlierProcessHasLeftToAPodGroupIsFreed(t *testing.T) {
	h := dra(t)
	h.planDevices([]int{4, 6}, nil)
	h.addGroupClaim(claimFor(asks("r", "gpu", 2)), leftAllocated)
	h.run("")
	h.podsWith(ofGroup, "", "m0", "m1", "left-out")
	h.place("m0", "m1")
	h.waitForBindings(2)
	if devices, users := h.groupClaimNow(); devices != "gpu-4 gpu-6" || users != reservedForGroup {
		t.Errorf("%s for %s", devices, users)
	}
	if fenced, freed := h.firstAction("patch", "pods/status"), h.firstAction("update", "resourceclaims/status"); fenced < 0 || freed < fenced {
		t.Errorf("the pods were changed by action %d, and the claim freed by %d", fenced, freed)
	}
	isFenced := func(a clienttesting.Action) bool {
		patch, ok := a.(clienttesting.PatchAction)
		return ok && a.Matches("patch", "pods/status") && patch.GetName() == "left-out"
	}
	if !slices.ContainsFunc(h.fake.Actions(), isFenced) {
		t.Error("a Binding of the pod that was left out may still be under way")
	}
}

// A pod of the PodGroup runs. A new pod gets the same devices, on the same node.
func TestTheClaimOfAPodGroupIsKeptWhileAPodUsesIt(t *testing.T) {
	h := dra(t)
	h.service.plan(spread(1, "n")...)
	h.addGroupClaim(claimFor(asks("r", "gpu", 2)), leftAllocated)
	h.podsWith(func(pod *v1.Pod) { ofGroup(pod); pod.Spec.NodeName = "n" }, "", "running")
	h.run("")
	h.podsWith(ofGroup, "", "m0")
	h.until("gated", func() bool { return h.gated("m0") })
	h.service.ask(inTreeQuestion(1, "m0"))
	if report := next(t, "answer", h.service.inTree); len(report.Refusals) > 0 {
		t.Errorf("refused: %v", report.Refusals)
	}
	h.service.push(verdict(plannedOutcome, 1, "m0"))
	next(t, "binding", h.bound)
	if devices, users := h.groupClaimNow(); devices != "gpu-1 gpu-2" || users != reservedForGroup {
		t.Errorf("%s for %s", devices, users)
	}
}

// The informer may show a pod unbound that another process has bound, or the pods of another scheduler.
func TestTheClaimOfAPodGroupIsNotFreedUnderPodsOfAnotherScheduler(t *testing.T) {
	h := dra(t)
	h.planDevices([]int{4, 6})
	h.addGroupClaim(claimFor(asks("r", "gpu", 2)), leftAllocated)
	h.podsWith(func(pod *v1.Pod) { ofGroup(pod); pod.Spec.SchedulerName = "other" }, "", "foreign")
	h.run("")
	h.podsWith(ofGroup, "", "m0")
	h.place("m0")
	if report := next(t, "report", h.service.reports); !strings.Contains(report.Message, "such as pod foreign") {
		t.Errorf("reported: %v", report)
	}
	if devices, _ := h.groupClaimNow(); devices != "gpu-1 gpu-2" || h.fakeDid("patch", "pods/status") {
		t.Errorf("allocated: %s", devices)
	}
}

// A member that did not come to Reserve has no share in the pending allocation. If its Unreserve ended the allocation,
// another pod could get the same devices.
func TestAMemberThatSharesAClaimTakesBackOnlyItsOwnShare(t *testing.T) {
	h := dra(t)
	h.planDevices([]int{7, 2}, nil)
	h.addGroupClaim(claimFor(asks("r", "gpu", 2)), unallocated)
	h.run("")
	h.podsWith(ofGroup, "", "m0")
	h.until("gated", func() bool { return h.gated("m0") })
	h.service.push(verdict(plannedOutcome, 1, "m0", "m1"))
	h.until("m0 waits", func() bool { return h.waiting() == 1 })
	pending := func() bool {
		return h.plugin.handle.SharedDRAManager().ResourceClaims().GetPendingAllocation("uid-of-"+groupClaim) != nil
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m1", UID: "uid-m1"}, Spec: v1.PodSpec{SchedulerName: "muster"}}
	ofGroup(pod)
	for _, reserves := range []bool{false, true} {
		admission, ok := h.plugin.store.Admit(pod.UID)
		state := framework.NewCycleState()
		state.Write(cycleKey, &cycle{Admission: admission, gpus: h.plugin.args.Resources})
		if _, status := h.devices.PreFilter(h.ctx, state, pod, nil); !ok || !status.IsSuccess() {
			t.Fatal(status)
		}
		if reserves {
			if status := h.devices.Reserve(h.ctx, state, pod, "n"); !status.IsSuccess() {
				t.Fatal(status)
			}
		}
		h.devices.Unreserve(h.ctx, state, pod, "n")
		if !pending() {
			t.Fatal("the holder's pending allocation has ended")
		}
	}
}
