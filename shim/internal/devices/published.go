//go:build !next

package devices

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	fwk "k8s.io/kube-scheduler/framework"
)

// The types of the in-tree plugin that differ between Kubernetes 1.37 (this file) and 1.38 (published_next.go). All other
// files of the package work on the API's ResourceSlices.

// inTreeSlice is the ResourceSlice of the in-tree plugin and its allocator: in 1.37 the API's own.
type inTreeSlice = resourceapi.ResourceSlice

// sharedID identifies a device in AllocatedSharedDeviceIDs.
type sharedID = structured.SharedDeviceID

func deviceIDOf(id sharedID) structured.DeviceID { return id.GetDeviceID() }

// SliceInformer returns the informer of ResourceSlices that the in-tree plugin uses.
func SliceInformer(factory informers.SharedInformerFactory) cache.SharedIndexInformer {
	return factory.Resource().V1().ResourceSlices().Informer()
}

// slicePairs converts ResourceSlices between the API's type and the in-tree plugin's.
type slicePairs struct{}

// list returns the slices of the manager, with the taints of DeviceTaintRules.
func (*slicePairs) list(manager fwk.SharedDRAManager) ([]*resourceapi.ResourceSlice, error) {
	return manager.ResourceSlices().ListWithDeviceTaintRules()
}

// inTree returns slices as the in-tree plugin reads them.
func (*slicePairs) inTree(shown []*resourceapi.ResourceSlice) []*inTreeSlice { return shown }

// toInTree returns a slice as the in-tree plugin reads it.
func toInTree(slice *resourceapi.ResourceSlice) *inTreeSlice { return slice }

// fromInTree returns a slice of the in-tree plugin's informer.
func fromInTree(slice *inTreeSlice) *resourceapi.ResourceSlice { return slice }

// celDevice returns a device of a slice as selectors read it.
func celDevice(slice *inTreeSlice, index int) cel.Device {
	device := &slice.Spec.Devices[index]
	return cel.Device{
		Driver: slice.Spec.Driver, AllowMultipleAllocations: device.AllowMultipleAllocations,
		Attributes: device.Attributes, Capacity: device.Capacity,
	}
}
