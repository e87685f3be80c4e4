package devices

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
	fwk "k8s.io/kube-scheduler/framework"
)

// questionView shows the cluster's DRA objects as a pod may see them that is not planned yet (see the package comment).
// Like cycleView, it is the DRA manager of the in-tree plugin and what the manager returns.
type questionView struct {
	fwk.SharedDRAManager
	fwk.ResourceClaimTracker
	check *AdvanceCheck
	// These are arguments and a result of preFilterInTree: pod asks, devices of gpuDrivers are shown without our taint,
	// and allocated is the state that the in-tree plugin has received.
	pod        *v1.Pod
	gpuDrivers sets.Set[string]
	allocated  *structured.AllocatedState
}

func (v *questionView) ResourceSlices() fwk.ResourceSliceLister { return v }

func (v *questionView) ResourceClaims() fwk.ResourceClaimTracker { return v }

func (v *questionView) DeviceClassResolver() fwk.DeviceClassResolver { return v }

func (v *questionView) ListWithDeviceTaintRules() ([]*inTreeSlice, error) {
	if len(v.gpuDrivers) == 0 {
		return v.SharedDRAManager.ResourceSlices().ListWithDeviceTaintRules()
	}
	all, err := v.check.slices.list(v.SharedDRAManager)
	if err != nil {
		return nil, err
	}
	shown := slices.Clone(all)
	for i, slice := range shown {
		if v.gpuDrivers.Has(slice.Spec.Driver) {
			shown[i] = sliceWithoutOwnedTaint(slice)
		}
	}
	return v.check.slices.inTree(shown), nil
}

// Get returns the claim without its requests for GPUs, and without the allocation of an earlier attempt, because this
// allocation is freed before the gang is planned again. A claim of a PodGroup keeps its allocation while a pod uses it.
func (v *questionView) Get(namespace, name string) (*resourceapi.ResourceClaim, error) {
	claim, err := v.ResourceClaimTracker.Get(namespace, name)
	if err != nil {
		return nil, err
	}
	shown := *claim // shallow: claims of the tracker never change
	if metav1.GetControllerOf(claim) != nil && (v.pod == nil || !v.check.keepsDevices(v.pod, claim)) {
		shown.Status = resourceapi.ResourceClaimStatus{}
	}
	shown.Spec.Devices.Requests = slices.DeleteFunc(slices.Clone(claim.Spec.Devices.Requests), func(r resourceapi.DeviceRequest) bool {
		return len(v.check.gpuChoices(r)) > 0
	})
	return &shown, nil
}

// GatherAllocatedState takes milliseconds in large clusters. So it keeps its result for preFilterInTree, as
// ListAllAllocatedDevices does.
func (v *questionView) GatherAllocatedState() (*structured.AllocatedState, error) {
	allocated, err := v.ResourceClaimTracker.GatherAllocatedState()
	v.allocated = allocated
	return allocated, err
}

// ListAllAllocatedDevices is called in place of GatherAllocatedState by some settings of the in-tree plugin.
func (v *questionView) ListAllAllocatedDevices() (sets.Set[structured.DeviceID], error) {
	devices, err := v.ResourceClaimTracker.ListAllAllocatedDevices()
	v.allocated = newAllocatedState(devices)
	return devices, err
}

// GetDeviceClass returns no class for resources that count GPUs.
func (v *questionView) GetDeviceClass(resource v1.ResourceName) *resourceapi.DeviceClass {
	if slices.Contains(v.check.gpus, string(resource)) {
		return nil
	}
	return v.SharedDRAManager.DeviceClassResolver().GetDeviceClass(resource)
}
