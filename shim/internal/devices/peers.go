package devices

import (
	"context"
	"reflect"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
)

// peerDevices are the devices that pods may have in addition to the GPUs of a group.
type peerDevices struct {
	slices    []*resourceapi.ResourceSlice
	allocated sets.Set[structured.DeviceID]
	gpu       gpu // any GPU of the group
}

// demand is the number of devices that a request of each pod needs, and the free devices that suit the request.
type demand struct {
	count   int
	devices sets.Set[device]
}

// maxPods returns a bound, `room` at most, for the number of pods for which the allocator can find devices. The bound
// saves time, because the allocator tries devices in all orders before it reports that there are too few. Requests whose
// devices can't be counted do not lower the bound.
func (a *AdvanceCheck) maxPods(ctx context.Context, match *matchAttributeClaim, peers peerDevices, room int) int {
	var demands []demand
	seen := sets.New[string]()
	for _, claim := range match.claims {
		for i := range claim.Spec.Devices.Requests {
			selectors, exact := a.exactRequest(&claim.Spec.Devices.Requests[i])
			if exact == nil || len(demands) == maxRequests || seen.Union(sets.New(selectors...)).Len() > maxSelectors {
				continue
			}
			seen.Insert(selectors...)
			attributes := attributesOf(claim, claim.Spec.Devices.Requests[i].Name)
			if devices, ok := a.freeDevicesFor(ctx, peers, selectors, exact.Tolerations, attributes); ok {
				demands = append(demands, demand{int(min(exact.Count, resourceapi.AllocationResultsMaxSize+1)), devices})
			}
		}
	}
	for _, demand := range demands {
		count := 0
		for _, smaller := range demands {
			if demand.devices.IsSuperset(smaller.devices) { // both take from these devices
				count += smaller.count
			}
		}
		room = min(room, demand.devices.Len()/count)
	}
	return room
}

// exactRequest returns the request and the selectors of it and its class, if it needs a known number of devices.
func (a *AdvanceCheck) exactRequest(request *resourceapi.DeviceRequest) (selectors []string, exact *resourceapi.ExactDeviceRequest) {
	exact = request.Exactly
	if exact == nil || hasAdminAccess(*request) || exact.AllocationMode != resourceapi.DeviceAllocationModeExactCount || exact.Count < 1 || len(exact.DerivedAttributes) > 0 {
		return nil, nil
	}
	class, err := a.manager.DeviceClasses().Get(exact.DeviceClassName)
	if err != nil {
		return nil, nil
	}
	return append(celExpressions(class.Spec.Selectors), celExpressions(exact.Selectors)...), exact
}

// attributesOf returns the attributes on which the devices of a request must agree with the anchor of the claim.
func attributesOf(claim *resourceapi.ResourceClaim, request string) (attributes []resourceapi.FullyQualifiedName) {
	anchor := claim.Spec.Devices.Requests[0]
	if anchor.Exactly == nil || anchor.Exactly.DeviceClassName != anchorClass {
		return nil
	}
	for _, constraint := range claim.Spec.Devices.Constraints {
		binds := len(constraint.Requests) == 0 || slices.Contains(constraint.Requests, anchor.Name) && slices.Contains(constraint.Requests, request)
		if constraint.MatchAttribute != nil && binds {
			attributes = append(attributes, *constraint.MatchAttribute)
		}
	}
	return attributes
}

// freeDevicesFor returns a superset of the free devices that a request may get. It returns false if one of them may be
// allocated several times, because such devices can't be counted. If a selector can't be evaluated on a device, the
// device is among them: the allocator reports the error.
func (a *AdvanceCheck) freeDevicesFor(ctx context.Context, peers peerDevices, selectors []string, tolerations []resourceapi.DeviceToleration, attributes []resourceapi.FullyQualifiedName) (sets.Set[device], bool) {
	free := sets.New[device]()
	var values []string // the GPUs' values
	for _, name := range attributes {
		values = append(values, valueOf(attributeOf(peers.gpu, name)))
	}
	for _, slice := range peers.slices {
		if ctx.Err() != nil {
			return nil, false
		}
		driver, pool := slice.Spec.Driver, slice.Spec.Pool.Name
		matching := a.matcher.matchAll(ctx, selectors, slice, nil)
		for i := range slice.Spec.Devices {
			candidate := &slice.Spec.Devices[i]
			differs := func() bool {
				for i, name := range attributes {
					if cannotAgree(values[i], attributeOf(gpu{driver: driver, device: candidate}, name)) {
						return true
					}
				}
				return false
			}
			switch {
			case !matching.devices[i] && matching.errs[i] == nil, differs():
			case a.features.DeviceTaints && isTainted(candidate, tolerations):
			case isShared(candidate):
				return nil, false
			case !peers.allocated.Has(structured.MakeDeviceID(driver, pool, candidate.Name)):
				free.Insert(device{driver, pool, candidate.Name})
			}
		}
	}
	return free, true
}

// cannotAgree returns whether a device's attribute can't agree with the GPU's value. A list can agree.
func cannotAgree(gpuValue string, attribute resourceapi.DeviceAttribute) bool {
	value := valueOf(attribute)
	isList := value == "" && !reflect.DeepEqual(attribute, resourceapi.DeviceAttribute{})
	return !isList && value != gpuValue
}
