package devices

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
)

// Owned is the key of a device taint that keeps other schedulers away from Muster's devices. A DeviceTaintRule sets
// it on the devices of a driver; planned devices are shown without it.
const Owned = "muster.dev/owned"

// plan holds the devices of one member. A member has devices of one pool or a few, so lists are faster than maps.
type plan struct {
	pools []pool
	count int
}

// pool is a pool of devices with those that are planned, in the order in which requests shall get them.
type pool struct {
	driver, name string
	devices      []string
}

// newPlan reads devices of the form driver/pool/name. Only a pool's name may contain further slashes.
func newPlan(devices []string) (*plan, error) {
	p := &plan{count: len(devices)}
	for _, device := range devices {
		driver, rest, _ := strings.Cut(device, "/")
		last := strings.LastIndexByte(rest, '/')
		if last <= 0 || driver == "" || last == len(rest)-1 {
			return nil, fmt.Errorf("the plan names a device %q, which is not driver/pool/name", device)
		}
		name := rest[last+1:]
		of := p.pool(driver, rest[:last])
		if of == nil {
			p.pools = append(p.pools, pool{driver: driver, name: rest[:last]})
			of = &p.pools[len(p.pools)-1]
		}
		if slices.Contains(of.devices, name) {
			return nil, fmt.Errorf("the plan names the device %q twice", device)
		}
		of.devices = append(of.devices, name)
	}
	return p, nil
}

// pool returns the planned pool of this name, or nil.
func (p *plan) pool(driver, name string) *pool {
	for i := range p.pools {
		if of := &p.pools[i]; of.name == name && of.driver == driver {
			return of
		}
	}
	return nil
}

// drives returns whether the plan has devices of this driver.
func (p *plan) drives(driver string) bool {
	return slices.ContainsFunc(p.pools, func(of pool) bool { return of.driver == driver })
}

// restrict returns the slices as the allocator may see them. Drivers without planned devices keep all of theirs. Of
// the others only the planned pools are left, with the planned devices alone: in the first slice of their pool by name
// and in the plan's order, because the allocator tries slices by name and devices in the order in which they stand.
// The other slices of the pool stay, empty, because a pool is complete by the number of its slices.
func (p *plan) restrict(all []*resourceapi.ResourceSlice) ([]*resourceapi.ResourceSlice, error) {
	if p.count == 0 {
		return all, nil
	}
	var shown []*resourceapi.ResourceSlice
	planned := make([][]*resourceapi.ResourceSlice, len(p.pools))
	for _, slice := range all {
		of := slices.IndexFunc(p.pools, func(of pool) bool {
			return of.name == slice.Spec.Pool.Name && of.driver == slice.Spec.Driver
		})
		if of >= 0 {
			planned[of] = append(planned[of], slice)
		} else if !p.drives(slice.Spec.Driver) {
			shown = append(shown, slice)
		}
	}
	for i, of := range p.pools {
		left, err := showing(planned[i], of.devices)
		if err != nil {
			return nil, fmt.Errorf("pool %s of %s: %w", of.name, of.driver, err)
		}
		shown = append(shown, left...)
	}
	return shown, nil
}

// showing returns the slices of one pool with these devices alone. Slices of an older generation are left out. A
// device that is not there is left out too: then the allocator finds too few devices and refuses the node.
func showing(of []*resourceapi.ResourceSlice, names []string) ([]*resourceapi.ResourceSlice, error) {
	var newest int64
	for _, slice := range of {
		newest = max(newest, slice.Spec.Pool.Generation)
	}
	var shown []*resourceapi.ResourceSlice
	devices := map[string]*resourceapi.Device{}
	for _, slice := range of {
		if slice.Spec.Pool.Generation != newest {
			continue
		}
		for i := range slice.Spec.Devices {
			devices[slice.Spec.Devices[i].Name] = &slice.Spec.Devices[i]
		}
		empty := *slice // shallow: slices of the informer never change
		empty.Spec.Devices = nil
		shown = append(shown, &empty)
	}
	slices.SortFunc(shown, func(a, b *resourceapi.ResourceSlice) int { return cmp.Compare(a.Name, b.Name) })
	if len(shown) == 0 {
		return nil, nil // the pool is gone: the allocator finds nothing
	}
	for _, name := range names {
		device, found := devices[name]
		if !found {
			continue
		}
		if len(device.ConsumesCounters) > 0 || device.AllowMultipleAllocations != nil && *device.AllowMultipleAllocations {
			return nil, fmt.Errorf("device %s shares capacity with other devices or claims, which cannot be planned yet", name)
		}
		shown[0].Spec.Devices = append(shown[0].Spec.Devices, unowned(*device))
	}
	return shown, nil
}

func unowned(device resourceapi.Device) resourceapi.Device {
	isOwned := func(taint resourceapi.DeviceTaint) bool { return taint.Key == Owned }
	if slices.ContainsFunc(device.Taints, isOwned) {
		device.Taints = slices.DeleteFunc(slices.Clone(device.Taints), isOwned)
	}
	return device
}

// check returns an error if a claim would get devices that are not planned. The claim for extended resources must get
// all that is planned and nothing else. Any other claim may get devices of other drivers.
func (p *plan) check(claim *resourceapi.ResourceClaim) error {
	extended := claim.Annotations[resourceapi.ExtendedResourceClaimAnnotation] == "true"
	results := claim.Status.Allocation.Devices.Results
	for _, result := range results {
		of := p.pool(result.Driver, result.Pool)
		planned := of != nil && slices.Contains(of.devices, result.Device)
		if !planned && (extended || p.drives(result.Driver)) {
			return fmt.Errorf("%w: %s/%s/%s", errNotPlanned, result.Driver, result.Pool, result.Device)
		}
	}
	if extended && len(results) != p.count {
		return fmt.Errorf("%d devices are allocated, and %d are planned", len(results), p.count)
	}
	return nil
}
