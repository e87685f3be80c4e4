package devices

import (
	"cmp"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// OwnedTaint is the key of a device taint that keeps other schedulers away from Muster's devices. A DeviceTaintRule sets
// it on the devices of a driver; planned devices are shown without it.
const OwnedTaint = "muster.dev/owned"

// plan holds the devices of one member. A member has devices of one pool or a few, so lists are faster than maps.
type plan struct {
	// node is the planned node. Any node may publish slices of the same pools, which do not count for this one.
	node         string
	pools        []pool
	plannedCount int
	// allocatedCount is the number of planned devices that claims of the member have got.
	allocatedCount int
	// showUnplanned: the allocator must also see the node's unplanned devices, marked as allocated. The member has a
	// request with adminAccess, perhaps for the same driver, or one for all devices that match (allocationMode All).
	showUnplanned bool
	// subrequest is the number of the subrequest by which the member gets the devices, from 1; 0 if there is no choice.
	subrequest int
	// isGPUClass returns whether devices of this class are GPUs.
	isGPUClass func(class string) bool
	// memory is the GiB that the member gets of each device if it shares the devices, or 0 if it gets whole devices.
	memory int64
	// otherRequests are the member's requests for other devices, as the claim's UID and the request. isGPU returns whether
	// a device of a slice is a GPU, which such a request may not have.
	otherRequests sets.Set[string]
	isGPU         func(slice *resourceapi.ResourceSlice, index int) bool
	// allocated are the allocated devices of the planned pools.
	allocated sets.Set[device]
}

// pool is a pool with its planned devices, in the order in which requests shall get them.
type pool struct {
	driver, name string
	devices      []string
}

func planOf(member *Member) (*plan, error) {
	p, err := newPlan(member.Planned)
	if err == nil {
		p.node, p.memory, p.subrequest = member.Node, int64(member.Memory), member.Subrequest
	}
	return p, err
}

// newPlan reads devices of the form driver/pool/name.
func newPlan(devices []string) (*plan, error) {
	p := &plan{plannedCount: len(devices), otherRequests: sets.New[string]()}
	for _, device := range devices {
		driver, poolName, name, ok := splitName(device)
		if !ok {
			return nil, fmt.Errorf("the plan names a device %q, which is not driver/pool/name", device)
		}
		planned := p.pool(driver, poolName)
		if planned == nil {
			p.pools = append(p.pools, pool{driver: driver, name: poolName})
			planned = &p.pools[len(p.pools)-1]
		}
		if slices.Contains(planned.devices, name) {
			return nil, fmt.Errorf("the plan names the device %q twice", device)
		}
		planned.devices = append(planned.devices, name)
	}
	return p, nil
}

// pool returns the planned pool of this name, or nil.
func (p *plan) pool(driver, name string) *pool {
	for i := range p.pools {
		if planned := &p.pools[i]; planned.name == name && planned.driver == driver {
			return planned
		}
	}
	return nil
}

func (p *plan) hasDriver(driver string) bool {
	return slices.ContainsFunc(p.pools, func(planned pool) bool { return planned.driver == driver })
}

// isOnNode returns whether a slice has devices or counters of the planned node: it names this node, or no node.
func (p *plan) isOnNode(slice *resourceapi.ResourceSlice) bool {
	return slice.Spec.NodeName == nil || *slice.Spec.NodeName == p.node
}

// restrict returns the slices as the allocator may see them. Drivers without planned devices keep all slices. Drivers
// with planned devices keep only the planned pools, with the planned devices alone. These devices are in the first slice
// of their pool by name, in the plan's order: the allocator tries slices by name, and devices in the slice's order. The
// pool's other slices remain, empty, because the number of slices shows whether a pool is complete. Counters remain too,
// and some devices that consume them (see mustStayVisible).
//
// With p.showUnplanned the allocator sees all of the node's devices, planned ones last. Otherwise an adminAccess request
// could pick a planned device, and no other request of the pod would get it. The unplanned devices are marked as
// allocated, so only an adminAccess request can get one. A request for all devices is refused if it matches one.
func (p *plan) restrict(all []*resourceapi.ResourceSlice) ([]*resourceapi.ResourceSlice, error) {
	if p.plannedCount == 0 {
		return all, nil
	}
	var shown []*resourceapi.ResourceSlice
	slicesOf := map[*pool][]*resourceapi.ResourceSlice{}
	for _, slice := range all {
		if planned := p.pool(slice.Spec.Driver, slice.Spec.Pool.Name); planned != nil {
			slicesOf[planned] = append(slicesOf[planned], slice)
		} else if !p.hasDriver(slice.Spec.Driver) {
			shown = append(shown, slice)
		}
	}
	if p.showUnplanned {
		shown = append(shown, p.unplannedPools(all)...)
	}
	for i := range p.pools {
		planned := &p.pools[i]
		restricted := p.poolSlices(slicesOf[planned], planned.devices)
		for j := range restricted {
			for k := range restricted[j].Spec.Devices {
				device := &restricted[j].Spec.Devices[k]
				if reason := p.whyNotAsPlanned(device); reason != "" && slices.Contains(planned.devices, device.Name) {
					return nil, fmt.Errorf("pool %s of %s: device %s %s", planned.name, planned.driver, device.Name, reason)
				}
			}
		}
		shown = append(shown, restricted...)
	}
	return shown, nil
}

// unplannedPools returns the slices of unplanned pools of the planned drivers on the planned node, without our taint.
func (p *plan) unplannedPools(all []*resourceapi.ResourceSlice) (visible []*resourceapi.ResourceSlice) {
	for _, slice := range all {
		if p.hasDriver(slice.Spec.Driver) && p.pool(slice.Spec.Driver, slice.Spec.Pool.Name) == nil && slice.Spec.NodeName != nil && p.isOnNode(slice) {
			visible = append(visible, sliceWithoutOwnedTaint(slice))
		}
	}
	return visible
}

// shownUnplanned returns the unplanned devices of the planned drivers that restrict shows. It leaves out devices of the
// planned pools that consume counters. If these counted as allocated, the planned devices would lack the counters.
func (p *plan) shownUnplanned(all []*resourceapi.ResourceSlice) (devices []device) {
	for _, slice := range p.unplannedPools(all) {
		for i := range slice.Spec.Devices {
			devices = append(devices, device{slice.Spec.Driver, slice.Spec.Pool.Name, slice.Spec.Devices[i].Name})
		}
	}
	for _, slice := range all {
		planned := p.pool(slice.Spec.Driver, slice.Spec.Pool.Name)
		for i := range slice.Spec.Devices {
			candidate := &slice.Spec.Devices[i]
			if planned != nil && p.isOnNode(slice) && !slices.Contains(planned.devices, candidate.Name) && len(candidate.ConsumesCounters) == 0 {
				devices = append(devices, device{planned.driver, planned.name, candidate.Name})
			}
		}
	}
	return devices
}

// missingDevices returns the planned devices that are not in the newest slices of their pools on the node, as
// driver/pool/name.
func (p *plan) missingDevices(all []*resourceapi.ResourceSlice) (devices []string) {
	for _, planned := range p.pools {
		newest, _ := p.newestSlices(slices.DeleteFunc(slices.Clone(all), func(slice *resourceapi.ResourceSlice) bool {
			return slice.Spec.Driver != planned.driver || slice.Spec.Pool.Name != planned.name
		}))
		published := sets.New[string]()
		for _, slice := range newest {
			for i := range slice.Spec.Devices {
				published.Insert(slice.Spec.Devices[i].Name)
			}
		}
		for _, name := range planned.devices {
			if !published.Has(name) {
				devices = append(devices, planned.driver+"/"+planned.name+"/"+name)
			}
		}
	}
	return devices
}

// describeMissing returns a sentence that names missing planned devices, or "" if there are none.
func describeMissing(missing []string) string {
	switch len(missing) {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("the planned device %s is in no ResourceSlice", missing[0])
	default:
		return fmt.Sprintf("the planned device %s and %d more are in no ResourceSlice", missing[0], len(missing)-1)
	}
}

// poolSlices returns the newest slices of one pool with these planned devices, and after them the devices that
// mustStayVisible keeps. With p.showUnplanned all other devices come first, for the reason that restrict states. If no
// slice contains a planned device, the allocator finds too few devices and refuses the node.
func (p *plan) poolSlices(all []*resourceapi.ResourceSlice, names []string) []*resourceapi.ResourceSlice {
	newest, elsewhere := p.newestSlices(all)
	var shown []*resourceapi.ResourceSlice
	devices, free := map[string]*resourceapi.Device{}, p.countersLeftBy(newest, names)
	for _, slice := range newest {
		bare := *slice // shallow: slices of the informer never change
		bare.Spec.Devices = nil
		for i := range slice.Spec.Devices {
			device := &slice.Spec.Devices[i]
			devices[device.Name] = device
			if slices.Contains(names, device.Name) {
				continue
			}
			if p.mustStayVisible(slice, i, free) || p.showUnplanned && len(device.ConsumesCounters) == 0 {
				bare.Spec.Devices = append(bare.Spec.Devices, withoutOwnedTaint(*device))
			}
		}
		shown = append(shown, &bare)
	}
	slices.SortFunc(shown, func(a, b *resourceapi.ResourceSlice) int { return cmp.Compare(a.Name, b.Name) })
	var planned []resourceapi.Device
	for _, name := range names {
		device, ok := devices[name]
		if !ok {
			continue
		}
		planned = append(planned, withoutOwnedTaint(*device))
	}
	// The allocator reads no devices from a slice that has counters.
	readable := slices.DeleteFunc(slices.Clone(shown), func(slice *resourceapi.ResourceSlice) bool { return len(slice.Spec.SharedCounters) > 0 })
	switch {
	case len(readable) == 0: // the pool is gone, so the allocator finds no device
	case p.showUnplanned:
		last := readable[len(readable)-1]
		last.Spec.Devices = append(last.Spec.Devices, planned...)
	default:
		readable[0].Spec.Devices = append(planned, readable[0].Spec.Devices...)
	}
	return append(shown, elsewhere...)
}

// newestSlices returns the newest slices of a pool on the node. If these are not the whole pool, it also returns the
// slices of other nodes without their devices: the in-tree allocator counts slices to see whether a pool is complete.
func (p *plan) newestSlices(all []*resourceapi.ResourceSlice) (onNode, elsewhere []*resourceapi.ResourceSlice) {
	var newest int64
	for _, slice := range all {
		if p.isOnNode(slice) {
			newest = max(newest, slice.Spec.Pool.Generation)
		}
	}
	for _, slice := range all {
		if p.isOnNode(slice) && slice.Spec.Pool.Generation == newest {
			onNode = append(onNode, slice)
		}
	}
	if len(onNode) > 0 && int64(len(onNode)) == onNode[0].Spec.Pool.ResourceSliceCount {
		return onNode, nil
	}
	for _, slice := range all {
		if !p.isOnNode(slice) {
			bare := *slice // shallow: slices of the informer never change
			bare.Spec.Devices = nil
			elsewhere = append(elsewhere, &bare)
		}
	}
	return onNode, elsewhere
}

// sliceWithoutOwnedTaint returns a copy of the slice whose devices do not have our taint.
func sliceWithoutOwnedTaint(slice *resourceapi.ResourceSlice) *resourceapi.ResourceSlice {
	bare := *slice // shallow: slices of the informer never change
	bare.Spec.Devices = slices.Clone(slice.Spec.Devices)
	for i := range bare.Spec.Devices {
		bare.Spec.Devices[i] = withoutOwnedTaint(bare.Spec.Devices[i])
	}
	return &bare
}

// withoutOwnedTaint returns the device without our taint.
func withoutOwnedTaint(device resourceapi.Device) resourceapi.Device {
	isOwned := func(taint resourceapi.DeviceTaint) bool { return taint.Key == OwnedTaint }
	if slices.ContainsFunc(device.Taints, isOwned) {
		device.Taints = slices.DeleteFunc(slices.Clone(device.Taints), isOwned)
	}
	return device
}

// checkAllocation returns an error if a claim would get devices that are not planned. The claim for extended resources
// must get all planned GPUs or none, and no other GPUs. Any claim may get other devices, such as network cards. Devices
// of requests with adminAccess do not count.
func (p *plan) checkAllocation(claim *resourceapi.ResourceClaim) error {
	extended := isExtended(claim)
	results, seen, gpus := claim.Status.Allocation.Devices.Results, sets.New[device](), 0
	if extended {
		p.noteOtherRequests(claim)
	}
	for _, result := range results {
		if result.AdminAccess != nil && *result.AdminAccess {
			continue
		}
		planned := p.has(result.Driver, result.Pool, result.Device)
		if planned {
			p.allocatedCount++
		}
		forOtherRequest := p.isForOtherRequest(claim, result)
		if !forOtherRequest {
			gpus++
		}
		if !planned && !forOtherRequest && (extended || p.hasDriver(result.Driver)) {
			return fmt.Errorf("%w: %s/%s/%s", errNotPlanned, result.Driver, result.Pool, result.Device)
		}
		allocated := device{result.Driver, result.Pool, result.Device}
		if planned && (seen.Has(allocated) || !p.isWithinShare(&result)) {
			return fmt.Errorf("%w to be shared like this: %s/%s/%s", errNotPlanned, allocated.driver, allocated.pool, allocated.name)
		}
		seen.Insert(allocated)
	}
	if extended && gpus > 0 && gpus != p.plannedCount {
		return fmt.Errorf("%d devices are allocated, and %d are planned", gpus, p.plannedCount)
	}
	return nil
}

// checkComplete returns an error if claims of the member have got fewer devices than planned.
func (p *plan) checkComplete() error {
	if p.allocatedCount < p.plannedCount {
		return fmt.Errorf("%w: %d of %d planned devices are allocated", errNotPlanned, p.allocatedCount, p.plannedCount)
	}
	return nil
}
