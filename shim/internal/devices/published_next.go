//go:build next

package devices

import (
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	draapi "k8s.io/dynamic-resource-allocation/api"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	fwk "k8s.io/kube-scheduler/framework"
)

// inTreeSlice is the ResourceSlice of the in-tree plugin and its allocator: in 1.38 a type of its own, with interned
// strings.
type inTreeSlice = draapi.ResourceSlice

// sharedID identifies a device in AllocatedSharedDeviceIDs.
type sharedID = structured.DeviceID

func deviceIDOf(id sharedID) structured.DeviceID { return id }

// SliceInformer returns the informer of ResourceSlices that the in-tree plugin uses.
func SliceInformer(factory informers.SharedInformerFactory) cache.SharedIndexInformer {
	return draapi.NewInformerForResourceSlice(factory)
}

// spareSlices is how many converted slices are kept that are no longer published.
const spareSlices = 1000

// slicePairs converts ResourceSlices between the API's type and the in-tree plugin's. It remembers the published slices,
// because there are thousands in each cycle and they rarely change.
type slicePairs struct {
	mu      sync.Mutex
	fromAPI map[*resourceapi.ResourceSlice]*inTreeSlice
	toAPI   map[*inTreeSlice]*resourceapi.ResourceSlice
}

// list returns the slices of the manager, with the taints of DeviceTaintRules.
func (p *slicePairs) list(manager fwk.SharedDRAManager) ([]*resourceapi.ResourceSlice, error) {
	listed, err := manager.ResourceSlices().ListWithDeviceTaintRules()
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.toAPI) > len(listed)+spareSlices || p.toAPI == nil {
		p.fromAPI, p.toAPI = map[*resourceapi.ResourceSlice]*inTreeSlice{}, map[*inTreeSlice]*resourceapi.ResourceSlice{}
	}
	all := make([]*resourceapi.ResourceSlice, len(listed))
	for i, slice := range listed {
		converted, ok := p.toAPI[slice]
		if !ok {
			converted = fromInTree(slice)
			p.fromAPI[converted], p.toAPI[slice] = slice, converted
		}
		all[i] = converted
	}
	return all, nil
}

// inTree returns slices as the in-tree plugin reads them. Only slices that list has not returned are converted.
func (p *slicePairs) inTree(shown []*resourceapi.ResourceSlice) []*inTreeSlice {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]*inTreeSlice, len(shown))
	for i, slice := range shown {
		converted, ok := p.fromAPI[slice]
		if !ok {
			converted = toInTree(slice)
		}
		all[i] = converted
	}
	return all
}

// toInTree returns a slice as the in-tree plugin reads it.
func toInTree(slice *resourceapi.ResourceSlice) *inTreeSlice {
	converted := &inTreeSlice{}
	_ = draapi.Convert_v1_ResourceSlice_To_api_ResourceSlice(slice, converted, nil) // fails only for a part of a slice
	return converted
}

// fromInTree returns a slice of the in-tree plugin's informer.
func fromInTree(slice *inTreeSlice) *resourceapi.ResourceSlice {
	converted := &resourceapi.ResourceSlice{}
	_ = draapi.Convert_api_ResourceSlice_To_v1_ResourceSlice(slice, converted, nil) // never fails
	return converted
}

// celDevice returns a device of a slice as selectors read it.
func celDevice(slice *inTreeSlice, index int) cel.Device {
	device := &slice.Spec.Devices[index]
	return cel.Device{
		Driver: slice.Spec.Driver.String(), AllowMultipleAllocations: device.AllowMultipleAllocations,
		LookupUniqueString: slice.LookupUniqueString, Attributes: device.Attributes, Capacity: device.Capacity,
	}
}
