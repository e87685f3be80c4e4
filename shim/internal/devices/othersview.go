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

// askingHandle is a handle whose DRA manager is the view.
type askingHandle struct {
	fwk.Handle
	view *othersView
}

func (h *askingHandle) SharedDRAManager() fwk.SharedDRAManager { return h.view }

// othersView shows claims without their requests for GPUs, and serves no GPUs as extended resources.
type othersView struct {
	fwk.SharedDRAManager
	asking *Asking
	// mu is held in the PreFilter of a pod with GPUs. Meanwhile devices of the drivers `ours` are shown without our taint,
	// and allocated is what the in-tree plugin was told.
	mu        sync.Mutex
	shown     bool
	ours      sets.Set[string]
	allocated *structured.AllocatedState
}

func (v *othersView) show(ours sets.Set[string]) (hide func()) {
	v.mu.Lock()
	v.shown, v.ours = true, ours
	return func() {
		v.shown, v.ours, v.allocated = false, nil, nil
		v.mu.Unlock()
	}
}

func (v *othersView) note(allocated *structured.AllocatedState) {
	if v.shown {
		v.allocated = allocated
	}
}

func (v *othersView) ResourceSlices() fwk.ResourceSliceLister { return othersSlices{v} }

type othersSlices struct{ *othersView }

func (s othersSlices) ListWithDeviceTaintRules() ([]*resourceapi.ResourceSlice, error) {
	all, err := s.SharedDRAManager.ResourceSlices().ListWithDeviceTaintRules()
	if err != nil || len(s.ours) == 0 {
		return all, err
	}
	shown := slices.Clone(all)
	for i, slice := range shown {
		if s.ours.Has(slice.Spec.Driver) {
			shown[i] = withoutOwned(slice)
		}
	}
	return shown, nil
}

func (v *othersView) ResourceClaims() fwk.ResourceClaimTracker {
	return othersClaims{v.SharedDRAManager.ResourceClaims(), v.asking}
}

func (v *othersView) DeviceClassResolver() fwk.DeviceClassResolver {
	return othersClasses{v.SharedDRAManager.DeviceClassResolver(), v.asking.gpus}
}

type othersClaims struct {
	fwk.ResourceClaimTracker
	asking *Asking
}

// Get returns the claim as it will be when its gang is planned: what an earlier attempt has left is freed before.
func (c othersClaims) Get(namespace, name string) (*resourceapi.ResourceClaim, error) {
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

// GatherAllocatedState remembers its result, as ListAllAllocatedDevices does: it takes milliseconds in large clusters.
func (c othersClaims) GatherAllocatedState() (*structured.AllocatedState, error) {
	found, err := c.ResourceClaimTracker.GatherAllocatedState()
	if err == nil {
		c.asking.view.note(found)
	}
	return found, err
}

// ListAllAllocatedDevices is called in place of GatherAllocatedState by some settings of the in-tree plugin.
func (c othersClaims) ListAllAllocatedDevices() (sets.Set[structured.DeviceID], error) {
	found, err := c.ResourceClaimTracker.ListAllAllocatedDevices()
	if err == nil {
		c.asking.view.note(&structured.AllocatedState{
			AllocatedDevices:         found,
			AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
			AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
		})
	}
	return found, err
}

type othersClasses struct {
	fwk.DeviceClassResolver
	gpus []string
}

func (c othersClasses) GetDeviceClass(resource v1.ResourceName) *resourceapi.DeviceClass {
	if slices.Contains(c.gpus, string(resource)) {
		return nil
	}
	return c.DeviceClassResolver.GetDeviceClass(resource)
}
