package devices

import (
	"context"
	"reflect"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
)

// others are the devices that pods may have with the GPUs of a group.
type others struct {
	slices    []*resourceapi.ResourceSlice
	allocated sets.Set[structured.DeviceID]
	as        gpu // one of the group
}

// want is what a request of each pod wants: a count of these free devices.
type want struct {
	count int
	of    sets.Set[device]
}

// atMost bounds for how many pods, `room` at most, the allocator may find devices. The allocator tries these in all orders
// before it says that there are too few, which takes it long. Requests whose devices can't be counted bound nothing.
func (a *Asking) atMost(ctx context.Context, g *agreement, left others, room int) int {
	var wants []want
	seen := sets.New[string]()
	for _, claim := range g.claims {
		for i := range claim.Spec.Devices.Requests {
			selectors, exact := a.counted(&claim.Spec.Devices.Requests[i])
			if exact == nil || len(wants) == maxRequests || seen.Union(sets.New(selectors...)).Len() > maxSelectors {
				continue
			}
			seen.Insert(selectors...)
			attributes := attributesOf(claim, claim.Spec.Devices.Requests[i].Name)
			if of, ok := a.freeFor(ctx, left, selectors, exact.Tolerations, attributes); ok {
				wants = append(wants, want{int(min(exact.Count, resourceapi.AllocationResultsMaxSize+1)), of})
			}
		}
	}
	for _, each := range wants {
		count := 0
		for _, other := range wants {
			if each.of.IsSuperset(other.of) { // both take from these devices
				count += other.count
			}
		}
		room = min(room, each.of.Len()/count)
	}
	return room
}

// counted returns a request, and the selectors of it and its class, if it takes a number of devices that is known.
func (a *Asking) counted(request *resourceapi.DeviceRequest) (selectors []string, exact *resourceapi.ExactDeviceRequest) {
	exact = request.Exactly
	if exact == nil || watches(*request) || exact.AllocationMode != resourceapi.DeviceAllocationModeExactCount || exact.Count < 1 || len(exact.DerivedAttributes) > 0 {
		return nil, nil
	}
	class, err := a.manager.DeviceClasses().Get(exact.DeviceClassName)
	if err != nil {
		return nil, nil
	}
	return append(expressions(class.Spec.Selectors), expressions(exact.Selectors)...), exact
}

// attributesOf returns the attributes on which the devices of a request must agree with the anchor of the claim.
func attributesOf(claim *resourceapi.ResourceClaim, request string) (found []resourceapi.FullyQualifiedName) {
	anchor := claim.Spec.Devices.Requests[0]
	if anchor.Exactly == nil || anchor.Exactly.DeviceClassName != anchorClass {
		return nil
	}
	for _, constraint := range claim.Spec.Devices.Constraints {
		binds := len(constraint.Requests) == 0 || slices.Contains(constraint.Requests, anchor.Name) && slices.Contains(constraint.Requests, request)
		if constraint.MatchAttribute != nil && binds {
			found = append(found, *constraint.MatchAttribute)
		}
	}
	return found
}

// freeFor returns the free devices that a request may get, or more. It returns false if one of them may be given several
// times. A device on which a selector can't be evaluated is among them: the allocator says so.
func (a *Asking) freeFor(ctx context.Context, left others, selectors []string, tolerations []resourceapi.DeviceToleration, attributes []resourceapi.FullyQualifiedName) (sets.Set[device], bool) {
	free := sets.New[device]()
	var of []string // the GPUs' values
	for _, name := range attributes {
		of = append(of, valueOf(attributeOf(left.as, name)))
	}
	for _, slice := range left.slices {
		if ctx.Err() != nil {
			return nil, false
		}
		driver, pool := slice.Spec.Driver, slice.Spec.Pool.Name
		matching := a.matcher.matching(ctx, selectors, slice, nil)
		for i := range slice.Spec.Devices {
			each := &slice.Spec.Devices[i]
			differs := func() bool {
				for at, name := range attributes {
					if differ(of[at], attributeOf(gpu{driver: driver, device: each}, name)) {
						return true
					}
				}
				return false
			}
			switch {
			case !matching.devices[i] && matching.errs[i] == nil, differs():
			case a.features.DeviceTaints && isTainted(each, tolerations):
			case isShared(each):
				return nil, false
			case !left.allocated.Has(structured.MakeDeviceID(driver, pool, each.Name)):
				free.Insert(device{driver, pool, each.Name})
			}
		}
	}
	return free, true
}

// differ returns whether a device can't agree with a GPU's value of an attribute. One that has a list may.
func differ(of string, others resourceapi.DeviceAttribute) bool {
	value := valueOf(others)
	isList := value == "" && !reflect.DeepEqual(others, resourceapi.DeviceAttribute{})
	return !isList && value != of
}
