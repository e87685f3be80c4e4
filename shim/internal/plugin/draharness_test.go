package plugin

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
)

const (
	gpuDriver  = "gpu.example.com"
	nicDriver  = "nic.example.com"
	exactCount = resourceapi.DeviceAllocationModeExactCount
	allDevices = resourceapi.DeviceAllocationModeAll
)

// draHarness makes a harness with one node n without GPUs. It does what the API server does and the fake does not: each
// claim gets a name and a UID of its own, and a later version with each update, which the allocator's cache needs.
func draHarness(t testing.TB) *harness {
	n := node("n", "64")
	delete(n.Status.Allocatable, "nvidia.com/gpu")
	delete(n.Status.Capacity, "nvidia.com/gpu")
	h := newHarness(t, n)
	count, version := 0, 10
	h.fake.PrependReactor("create", "resourceclaims", func(action clienttesting.Action) (bool, runtime.Object, error) {
		claim := action.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceClaim)
		count++
		claim.Name = fmt.Sprintf("%s%d", claim.GenerateName, count)
		claim.UID = types.UID("uid-of-" + claim.Name)
		return false, nil, nil
	})
	h.fake.PrependReactor("update", "resourceclaims", func(action clienttesting.Action) (bool, runtime.Object, error) {
		version++
		action.(clienttesting.UpdateAction).GetObject().(*resourceapi.ResourceClaim).ResourceVersion = fmt.Sprint(version)
		return false, nil, nil
	})
	return h
}

// dra makes a harness with one node whose eight GPUs a DRA driver serves as nvidia.com/gpu.
func dra(t *testing.T) *harness {
	h := draHarness(t)
	var gpus []resourceapi.Device
	for i := range 8 {
		half := int64(i / 4)
		gpus = append(gpus, resourceapi.Device{
			Name:       fmt.Sprintf("gpu-%d", i),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"half": {IntValue: &half}},
		})
	}
	h.add(driverClass("gpu", gpuDriver, "nvidia.com/gpu"), sliceOf("n", gpuDriver, "n", gpus...))
	return h
}

func selector(expression string) []resourceapi.DeviceSelector {
	return []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
}

// driverClass returns the class of a driver's devices. resource is the resource that counts them, or "".
func driverClass(name, driver, resource string) *resourceapi.DeviceClass {
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	class.Spec.Selectors = selector("device.driver == '" + driver + "'")
	if resource != "" {
		class.Spec.ExtendedResourceName = &resource
	}
	return class
}

// sliceOf returns a slice with these devices of a node. It is the node's only slice of the driver.
func sliceOf(name, driver, node string, devices ...resourceapi.Device) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-of-" + name), ResourceVersion: "5"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1}, Devices: devices,
		},
	}
}

// changeSlice changes the slice of the GPUs that dra has published.
func (h *harness) changeSlice(change func(*resourceapi.ResourceSlice)) {
	h.t.Helper()
	slice, err := h.client.ResourceV1().ResourceSlices().Get(h.ctx, "n", metav1.GetOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	change(slice)
	if _, err := h.client.ResourceV1().ResourceSlices().Update(h.ctx, slice, metav1.UpdateOptions{}); err != nil {
		h.t.Fatal(err)
	}
}

// asks returns a request for `count` devices of a class. That for "watch" only watches GPUs.
func asks(name, class string, count int64) resourceapi.DeviceRequest {
	exact := &resourceapi.ExactDeviceRequest{DeviceClassName: class, AllocationMode: exactCount, Count: count}
	if class == "watch" {
		exact.DeviceClassName, exact.AdminAccess = "gpu", new(true)
	}
	return resourceapi.DeviceRequest{Name: name, Exactly: exact}
}

func claimFor(requests ...resourceapi.DeviceRequest) resourceapi.DeviceClaim {
	return resourceapi.DeviceClaim{Requests: requests}
}

// nameClaim lets a pod name one more claim, as Kubernetes makes it from a template, and returns the claim. The claims of
// m0 are m0-0 and so on, and c0 and so on in the pod.
func nameClaim(pod *v1.Pod, spec resourceapi.DeviceClaim) *resourceapi.ResourceClaim {
	number := len(pod.Spec.ResourceClaims)
	reference, name := fmt.Sprintf("c%d", number), fmt.Sprintf("%s-%d", pod.Name, number)
	pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, v1.PodResourceClaim{Name: reference, ResourceClaimTemplateName: &reference})
	pod.Status.ResourceClaimStatuses = append(pod.Status.ResourceClaimStatuses, v1.PodResourceClaimStatus{Name: reference, ResourceClaimName: &name})
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID("uid-of-" + name), ResourceVersion: "5", OwnerReferences: ownedBy(pod.Name),
		},
		Spec: resourceapi.ResourceClaimSpec{Devices: spec},
	}
}

func ownedBy(pod string) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod, UID: types.UID("uid-" + pod), Controller: new(true)}}
}

// claiming returns a change for podsWith that gives a pod these claims.
func (h *harness) claiming(claims ...resourceapi.DeviceClaim) func(*v1.Pod) {
	return func(pod *v1.Pod) {
		for _, spec := range claims {
			claim := nameClaim(pod, spec)
			h.add(claim)
			if h.plugin != nil {
				h.until("the scheduler knows the claim", func() bool {
					_, err := h.plugin.handle.SharedDRAManager().ResourceClaims().Get(claim.Namespace, claim.Name)
					return err == nil
				})
			}
		}
	}
}

// allocation returns the allocation of these devices of the node n.
func allocation(driver string, devices ...string) *resourceapi.AllocationResult {
	allocated := &resourceapi.AllocationResult{}
	for _, name := range devices {
		allocated.Devices.Results = append(allocated.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Request: "r", Driver: driver, Pool: "n", Device: name})
	}
	return allocated
}

// otherClaim returns a claim of another scheduler's pod with these devices of the node n.
func otherClaim(driver string, devices ...string) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "other", UID: "uid-of-other", ResourceVersion: "5"}}
	claim.Status.Allocation = allocation(driver, devices...)
	return claim
}

// allocations yields the devices that the claims of pods have got, in the order of the claims' names.
func (h *harness) allocations() iter.Seq2[string, resourceapi.DeviceRequestAllocationResult] {
	h.t.Helper()
	claims, err := h.client.ResourceV1().ResourceClaims("ns").List(h.ctx, metav1.ListOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	slices.SortFunc(claims.Items, func(a, b resourceapi.ResourceClaim) int { return cmp.Compare(a.Name, b.Name) })
	return func(yield func(string, resourceapi.DeviceRequestAllocationResult) bool) {
		for _, claim := range claims.Items {
			if claim.Status.Allocation == nil {
				continue
			}
			for _, result := range claim.Status.Allocation.Devices.Results {
				if !yield(claim.OwnerReferences[0].Name, result) {
					return
				}
			}
		}
	}
}

// allocated returns the devices of each pod's claims, as "gpu-3 gpu-1".
func (h *harness) allocated() map[string]string {
	h.t.Helper()
	devices := map[string]string{}
	for pod, result := range h.allocations() {
		devices[pod] = strings.TrimSpace(devices[pod] + " " + result.Device)
	}
	return devices
}

// firstAction returns the index of the first call of the API of this kind, or -1.
func (h *harness) firstAction(verb, resource string) int {
	return slices.IndexFunc(h.fake.Actions(), func(a clienttesting.Action) bool { return a.Matches(verb, resource) })
}

func (h *harness) fakeDid(verb, resource string) bool { return h.firstAction(verb, resource) >= 0 }
