package devices

import (
	"cmp"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Owned is the key of a device taint that keeps other schedulers away from Muster's devices. A DeviceTaintRule sets
// it on the devices of a driver; planned devices are shown without it.
const Owned = "muster.dev/owned"

// plan holds the devices of one member. A member has devices of one pool or a few, so lists are faster than maps.
type plan struct {
	// node is the planned node. Any node may publish slices of the same pools, which do not count for this one.
	node  string
	pools []pool
	count int
	// given counts those that claims of the member have got.
	given int
	// others: the allocator must see the other devices of the node too, as allocated ones. The member asks to watch
	// devices (adminAccess), perhaps of the same driver, or for all that match (allocationMode All).
	others bool
	// subrequest is the number of the subrequest by which the member gets the devices, from 1; 0 if there is no choice.
	subrequest int
	// isGPUs returns whether devices of this class are GPUs.
	isGPUs func(class string) bool
	// memory is the GiB of each device that the member shares with others, or 0 if it gets them whole.
	memory int64
	// different are the member's requests for other devices, as the claim's UID and the request. isGPU says which devices of
	// a slice they may not have.
	different sets.Set[string]
	isGPU     func(slice *resourceapi.ResourceSlice, at int) bool
	// allocated are the devices of the planned pools that are taken.
	allocated sets.Set[device]
}

// pool is a pool of devices with those that are planned, in the order in which requests shall get them.
type pool struct {
	driver, name string
	devices      []string
}

// planOf returns the plan of a member.
func planOf(member Member) (*plan, error) {
	p, err := newPlan(member.Planned())
	if err == nil {
		p.node, p.memory = member.Node(), int64(member.Memory())
	}
	return p, err
}

// newPlan reads devices of the form driver/pool/name.
func newPlan(devices []string) (*plan, error) {
	p := &plan{count: len(devices), different: sets.New[string]()}
	for _, device := range devices {
		driver, in, name, ok := split(device)
		if !ok {
			return nil, fmt.Errorf("the plan names a device %q, which is not driver/pool/name", device)
		}
		of := p.pool(driver, in)
		if of == nil {
			p.pools = append(p.pools, pool{driver: driver, name: in})
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

// isOn returns whether a slice has devices or counters of the planned node: it names this node, or none.
func (p *plan) isOn(slice *resourceapi.ResourceSlice) bool {
	return slice.Spec.NodeName == nil || *slice.Spec.NodeName == p.node
}

// restrict returns the slices as the allocator may see them. Drivers without planned devices keep all of theirs. Of
// the others only the planned pools are left, with the planned devices alone: in the first slice of their pool by name
// and in the plan's order, because the allocator tries slices by name and devices in the order in which they stand.
// The other slices of the pool stay, empty, because a pool is complete by the number of its slices. So do counters, and
// some devices that consume them (see stays).
//
// With p.others it sees all of the node's, and the planned ones last. A request to watch would else hold a planned
// device, and the allocator gives no claim a device that another request of the pod has. A request for all devices must
// be refused if it matches one that is not planned. What is not planned counts as allocated then, which only a request to
// watch may have.
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
	if p.others {
		shown = append(shown, p.besides(all)...)
	}
	for i, of := range p.pools {
		left := p.showing(planned[i], of.devices)
		for j := range left {
			for k := range left[j].Spec.Devices {
				device := &left[j].Spec.Devices[k]
				if why := p.unlike(device); why != "" && slices.Contains(of.devices, device.Name) {
					return nil, fmt.Errorf("pool %s of %s: device %s %s", of.name, of.driver, device.Name, why)
				}
			}
		}
		shown = append(shown, left...)
	}
	return shown, nil
}

// besides returns the slices of other pools of the same drivers on the planned node, as all devices of these drivers are
// shown: without our taint.
func (p *plan) besides(all []*resourceapi.ResourceSlice) (found []*resourceapi.ResourceSlice) {
	for _, slice := range all {
		if p.drives(slice.Spec.Driver) && p.pool(slice.Spec.Driver, slice.Spec.Pool.Name) == nil && slice.Spec.NodeName != nil && p.isOn(slice) {
			found = append(found, withoutOwned(slice))
		}
	}
	return found
}

// watched returns the devices that restrict shows and that are not planned, of the planned drivers. Those that consume
// counters are left out: the planned ones of their pool would lack these counters.
func (p *plan) watched(all []*resourceapi.ResourceSlice) (found []device) {
	for _, slice := range p.besides(all) {
		for i := range slice.Spec.Devices {
			found = append(found, device{slice.Spec.Driver, slice.Spec.Pool.Name, slice.Spec.Devices[i].Name})
		}
	}
	for _, slice := range all {
		of := p.pool(slice.Spec.Driver, slice.Spec.Pool.Name)
		for i := range slice.Spec.Devices {
			it := &slice.Spec.Devices[i]
			if of != nil && p.isOn(slice) && !slices.Contains(of.devices, it.Name) && len(it.ConsumesCounters) == 0 {
				found = append(found, device{of.driver, of.name, it.Name})
			}
		}
	}
	return found
}

// missing returns the planned devices that are not in the newest slices of their pools on the node, as driver/pool/name.
func (p *plan) missing(all []*resourceapi.ResourceSlice) (found []string) {
	for _, of := range p.pools {
		var newest int64
		there := map[string]bool{}
		for _, slice := range all {
			if slice.Spec.Driver != of.driver || slice.Spec.Pool.Name != of.name || !p.isOn(slice) || slice.Spec.Pool.Generation < newest {
				continue
			}
			if slice.Spec.Pool.Generation > newest {
				newest = slice.Spec.Pool.Generation
				clear(there)
			}
			for i := range slice.Spec.Devices {
				there[slice.Spec.Devices[i].Name] = true
			}
		}
		for _, name := range of.devices {
			if !there[name] {
				found = append(found, of.driver+"/"+of.name+"/"+name)
			}
		}
	}
	return found
}

// gone says that these planned devices are in no slice; "" if there are none.
func gone(missing []string) string {
	switch len(missing) {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("the planned device %s is in no ResourceSlice", missing[0])
	default:
		return fmt.Sprintf("the planned device %s and %d more are in no ResourceSlice", missing[0], len(missing)-1)
	}
}

// showing returns the slices of one pool with these devices, before those that stay. Slices of an older generation are
// left out. A device that is not there is left out too: then the allocator finds too few devices and refuses the node. With
// p.others the rest of the pool is there too, before these devices.
func (p *plan) showing(all []*resourceapi.ResourceSlice, names []string) []*resourceapi.ResourceSlice {
	of, elsewhere := p.gathered(all)
	var shown []*resourceapi.ResourceSlice
	devices, room := map[string]*resourceapi.Device{}, p.roomBeside(of, names)
	for _, slice := range of {
		bare := *slice // shallow: slices of the informer never change
		bare.Spec.Devices = nil
		for i := range slice.Spec.Devices {
			device := &slice.Spec.Devices[i]
			devices[device.Name] = device
			if slices.Contains(names, device.Name) {
				continue
			}
			if p.stays(slice, i, room) || p.others && len(device.ConsumesCounters) == 0 {
				bare.Spec.Devices = append(bare.Spec.Devices, unowned(*device))
			}
		}
		shown = append(shown, &bare)
	}
	slices.SortFunc(shown, func(a, b *resourceapi.ResourceSlice) int { return cmp.Compare(a.Name, b.Name) })
	var planned []resourceapi.Device
	for _, name := range names {
		device, found := devices[name]
		if !found {
			continue
		}
		planned = append(planned, unowned(*device))
	}
	// The allocator reads no devices from a slice that has counters.
	with := slices.DeleteFunc(slices.Clone(shown), func(of *resourceapi.ResourceSlice) bool { return len(of.Spec.SharedCounters) > 0 })
	switch {
	case len(with) == 0: // the pool is gone: the allocator finds nothing
	case p.others:
		last := with[len(with)-1]
		last.Spec.Devices = append(last.Spec.Devices, planned...)
	default:
		with[0].Spec.Devices = append(planned, with[0].Spec.Devices...)
	}
	return append(shown, elsewhere...)
}

// gathered returns the newest slices of a pool on the node, and those of other nodes that the in-tree allocator will count,
// without devices. It looks at these only if those of the node are not the whole pool.
func (p *plan) gathered(all []*resourceapi.ResourceSlice) (of, elsewhere []*resourceapi.ResourceSlice) {
	var newest int64
	for _, slice := range all {
		if p.isOn(slice) {
			newest = max(newest, slice.Spec.Pool.Generation)
		}
	}
	for _, slice := range all {
		if p.isOn(slice) && slice.Spec.Pool.Generation == newest {
			of = append(of, slice)
		}
	}
	if len(of) > 0 && int64(len(of)) == of[0].Spec.Pool.ResourceSliceCount {
		return of, nil
	}
	for _, slice := range all {
		if !p.isOn(slice) {
			bare := *slice // shallow: slices of the informer never change
			bare.Spec.Devices = nil
			elsewhere = append(elsewhere, &bare)
		}
	}
	return of, elsewhere
}

// withoutOwned returns the slice with its devices without our taint.
func withoutOwned(slice *resourceapi.ResourceSlice) *resourceapi.ResourceSlice {
	bare := *slice // shallow: slices of the informer never change
	bare.Spec.Devices = slices.Clone(slice.Spec.Devices)
	for i := range bare.Spec.Devices {
		bare.Spec.Devices[i] = unowned(bare.Spec.Devices[i])
	}
	return &bare
}

func unowned(device resourceapi.Device) resourceapi.Device {
	isOwned := func(taint resourceapi.DeviceTaint) bool { return taint.Key == Owned }
	if slices.ContainsFunc(device.Taints, isOwned) {
		device.Taints = slices.DeleteFunc(slices.Clone(device.Taints), isOwned)
	}
	return device
}

// check returns an error if a claim would get devices that are not planned. The claim for extended resources must get
// all GPUs that are planned or none, and no other GPUs. Any claim may get other devices, such as network cards. Devices
// that are only watched do not count.
func (p *plan) check(claim *resourceapi.ResourceClaim) error {
	extended := claim.Annotations[resourceapi.ExtendedResourceClaimAnnotation] == "true"
	results, seen, gpus := claim.Status.Allocation.Devices.Results, sets.New[device](), 0
	if extended {
		p.noteOthers(claim)
	}
	for _, result := range results {
		if result.AdminAccess != nil && *result.AdminAccess {
			continue
		}
		of := p.pool(result.Driver, result.Pool)
		planned := of != nil && slices.Contains(of.devices, result.Device)
		if planned {
			p.given++
		}
		different := p.isDifferent(claim, result)
		if !different {
			gpus++
		}
		if !planned && !different && (extended || p.drives(result.Driver)) {
			return fmt.Errorf("%w: %s/%s/%s", errNotPlanned, result.Driver, result.Pool, result.Device)
		}
		it := device{result.Driver, result.Pool, result.Device}
		if planned && (seen.Has(it) || !p.isShare(&result)) {
			return fmt.Errorf("%w to be shared like this: %s/%s/%s", errNotPlanned, it.driver, it.pool, it.name)
		}
		seen.Insert(it)
	}
	if extended && gpus > 0 && gpus != p.count {
		return fmt.Errorf("%d devices are allocated, and %d are planned", gpus, p.count)
	}
	return nil
}

// complete returns an error if claims of the member have got fewer devices than planned.
func (p *plan) complete() error {
	if p.given < p.count {
		return fmt.Errorf("%w: %d of %d planned devices are allocated", errNotPlanned, p.given, p.count)
	}
	return nil
}
