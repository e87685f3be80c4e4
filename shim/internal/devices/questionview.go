package devices

import (
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
	fwk "k8s.io/kube-scheduler/framework"
)

// questionHandle is a handle whose DRA manager is the view, so that the in-tree plugin answers from what the view shows.
type questionHandle struct {
	fwk.Handle
	view *questionView
}

func (h *questionHandle) SharedDRAManager() fwk.SharedDRAManager { return h.view }

// questionView shows the cluster's DRA objects as a pod may see them that is not planned yet (see the package comment).
type questionView struct {
	fwk.SharedDRAManager
	asking *Asking
	// mu is held in the PreFilter of a pod with GPUs. Meanwhile devices of gpuDrivers are shown without our taint, and
	// allocated is the state that the in-tree plugin has received.
	mu         sync.Mutex
	shown      bool
	gpuDrivers sets.Set[string]
	allocated  *structured.AllocatedState
}

func (v *questionView) show(gpuDrivers sets.Set[string]) (hide func()) {
	v.mu.Lock()
	v.shown, v.gpuDrivers = true, gpuDrivers
	return func() {
		v.shown, v.gpuDrivers, v.allocated = false, nil, nil
		v.mu.Unlock()
	}
}

func (v *questionView) note(allocated *structured.AllocatedState) {
	if v.shown {
		v.allocated = allocated
	}
}

func (v *questionView) ResourceSlices() fwk.ResourceSliceLister { return questionSlices{v} }

type questionSlices struct{ *questionView }

func (s questionSlices) ListWithDeviceTaintRules() ([]*resourceapi.ResourceSlice, error) {
	all, err := s.SharedDRAManager.ResourceSlices().ListWithDeviceTaintRules()
	if err != nil || len(s.gpuDrivers) == 0 {
		return all, err
	}
	shown := slices.Clone(all)
	for i, slice := range shown {
		if s.gpuDrivers.Has(slice.Spec.Driver) {
			shown[i] = withoutOwned(slice)
		}
	}
	return shown, nil
}

func (v *questionView) ResourceClaims() fwk.ResourceClaimTracker {
	return questionClaims{v.SharedDRAManager.ResourceClaims(), v.asking}
}

func (v *questionView) DeviceClassResolver() fwk.DeviceClassResolver {
	return questionClasses{v.SharedDRAManager.DeviceClassResolver(), v.asking.gpus}
}

type questionClaims struct {
	fwk.ResourceClaimTracker
	asking *Asking
}

// Get returns the claim without its requests for GPUs. It also removes the allocation of an earlier attempt, because that
// is freed before the gang is planned again.
func (c questionClaims) Get(namespace, name string) (*resourceapi.ResourceClaim, error) {
	claim, err := c.ResourceClaimTracker.Get(namespace, name)
	if err != nil {
		return nil, err
	}
	shown := *claim // shallow: claims of the tracker never change
	if metav1.GetControllerOf(claim) != nil {
		shown.Status = resourceapi.ResourceClaimStatus{}
	}
	shown.Spec.Devices.Requests = slices.DeleteFunc(slices.Clone(claim.Spec.Devices.Requests), func(r resourceapi.DeviceRequest) bool {
		return len(c.asking.choices(r)) > 0
	})
	return &shown, nil
}

// GatherAllocatedState remembers its result, as ListAllAllocatedDevices does, because it takes milliseconds in large
// clusters.
func (c questionClaims) GatherAllocatedState() (*structured.AllocatedState, error) {
	allocated, err := c.ResourceClaimTracker.GatherAllocatedState()
	if err == nil {
		c.asking.view.note(allocated)
	}
	return allocated, err
}

// ListAllAllocatedDevices is called in place of GatherAllocatedState by some settings of the in-tree plugin.
func (c questionClaims) ListAllAllocatedDevices() (sets.Set[structured.DeviceID], error) {
	devices, err := c.ResourceClaimTracker.ListAllAllocatedDevices()
	if err == nil {
		c.asking.view.note(allocatedState(devices))
	}
	return devices, err
}

type questionClasses struct {
	fwk.DeviceClassResolver
	gpus []string
}

func (c questionClasses) GetDeviceClass(resource v1.ResourceName) *resourceapi.DeviceClass {
	if slices.Contains(c.gpus, string(resource)) {
		return nil
	}
	return c.DeviceClassResolver.GetDeviceClass(resource)
}
