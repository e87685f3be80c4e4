package devices

import (
	"context"
	"slices"
	"strings"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/structured"
)

// Devices of a pool may share counters, as a GPU and its partitions do. The in-tree allocator sums up what the allocated
// devices of the pool consume, by their definitions. So these definitions and all counter sets stay in what is shown.

// byPool is the index of ResourceSlices by their pool.
const byPool = "muster.dev/pool"

// indexByPool adds the index byPool to the informer, unless it has been added.
func indexByPool(slices cache.SharedIndexInformer) error {
	if _, has := slices.GetIndexer().GetIndexers()[byPool]; has {
		return nil
	}
	return slices.AddIndexers(cache.Indexers{byPool: func(obj any) ([]string, error) {
		if slice, ok := obj.(*resourceapi.ResourceSlice); ok {
			return []string{poolKey(slice.Spec.Driver, slice.Spec.Pool.Name)}, nil
		}
		return nil, nil
	}})
}

func poolKey(driver, pool string) string { return driver + "/" + pool }

// rivals returns the devices that may leave too few counters for planned ones: those of the planned pools on the node that
// consume counters of the same sets.
func (v *view) rivals(p *plan) (found []device) {
	for _, of := range p.pools {
		published, err := v.published.ByIndex(byPool, poolKey(of.driver, of.name))
		if err != nil {
			continue // only if the index does not exist
		}
		var used []string
		published = slices.DeleteFunc(published, func(obj any) bool { return !p.isOn(obj.(*resourceapi.ResourceSlice)) })
		for _, obj := range published {
			each(obj.(*resourceapi.ResourceSlice), func(device *resourceapi.Device) {
				if slices.Contains(of.devices, device.Name) {
					for i := range device.ConsumesCounters {
						used = append(used, device.ConsumesCounters[i].CounterSet)
					}
				}
			})
		}
		for _, obj := range published {
			each(obj.(*resourceapi.ResourceSlice), func(other *resourceapi.Device) {
				shares := slices.ContainsFunc(other.ConsumesCounters, func(c resourceapi.DeviceCounterConsumption) bool {
					return slices.Contains(used, c.CounterSet)
				})
				if shares && !slices.Contains(of.devices, other.Name) {
					found = append(found, device{of.driver, of.name, other.Name})
				}
			})
		}
	}
	return found
}

// each calls do for the devices of a slice that consume counters.
func each(slice *resourceapi.ResourceSlice, do func(*resourceapi.Device)) {
	for i := range slice.Spec.Devices {
		if device := &slice.Spec.Devices[i]; len(device.ConsumesCounters) > 0 {
			do(device)
		}
	}
}

// withPlanned notes what is allocated, for restrict, and adds to it what live plans have for other pods. Devices of these
// plans are not written yet, and the allocator must give neither them nor their partitions to this pod.
func (c claimsOf) withPlanned(allocated *structured.AllocatedState) {
	plan := c.view.now
	onlyPlanned := plan != nil && plan.count > 0 && len(plan.different) == 0 // nothing of these drivers can be chosen otherwise
	if c.view.forOthers != nil && !onlyPlanned {
		for _, name := range c.view.forOthers() {
			if driver, pool, device, ok := split(name); ok && !c.view.now.has(driver, pool, device) {
				allocated.AllocatedDevices.Insert(structured.MakeDeviceID(driver, pool, device))
			}
		}
	}
	if plan == nil || plan.count == 0 {
		return
	}
	plan.allocated = sets.New[device]()
	for id := range allocated.AllocatedDevices {
		if driver, pool := id.Driver.String(), id.Pool.String(); plan.pool(driver, pool) != nil {
			plan.allocated.Insert(device{driver, pool, id.Device.String()})
		}
	}
	// One that may be allocated several times consumes its counters once. No request may choose it here.
	for shared := range allocated.AllocatedSharedDeviceIDs {
		id := shared.GetDeviceID()
		is := device{id.Driver.String(), id.Pool.String(), id.Device.String()}
		if of := plan.pool(is.driver, is.pool); of != nil && !slices.Contains(of.devices, is.name) {
			plan.allocated.Insert(is)
			allocated.AllocatedDevices.Insert(id)
		}
	}
}

// has returns whether a device is planned for this member, who may share it with others.
func (p *plan) has(driver, pool, name string) bool {
	if p == nil {
		return false
	}
	of := p.pool(driver, pool)
	return of != nil && slices.Contains(of.devices, name)
}

// split returns the parts of driver/pool/name. Only a pool's name may contain further slashes.
func split(name string) (driver, pool, device string, ok bool) {
	driver, rest, _ := strings.Cut(name, "/")
	last := strings.LastIndexByte(rest, '/')
	if last <= 0 || driver == "" || last == len(rest)-1 {
		return "", "", "", false
	}
	return driver, rest[:last], rest[last+1:], true
}

// stays returns whether a device stays that is not planned. It stays if it consumes counters and is allocated: then no
// request can get it, and its counters count. If the member has other requests than those for GPUs, devices that consume
// counters stay if they are no GPUs, such as partitions. Those without room next to the planned devices do not: the
// allocator would try all combinations of them.
func (p *plan) stays(slice *resourceapi.ResourceSlice, at int, room room) bool {
	each := &slice.Spec.Devices[at]
	if len(each.ConsumesCounters) == 0 {
		return false
	}
	if p.allocated.Has(device{slice.Spec.Driver, slice.Spec.Pool.Name, each.Name}) {
		return true
	}
	return len(p.different) > 0 && room.has(each) && !p.isGPU(slice, at)
}

// room is what planned devices leave of counters, by set and name.
type room map[string]map[string]resource.Quantity

// roomBeside returns what these devices of a pool leave. It is empty for a member that needs no partitions.
func (p *plan) roomBeside(of []*resourceapi.ResourceSlice, names []string) room {
	left := room{}
	if len(p.different) == 0 {
		return left
	}
	for _, slice := range of {
		for _, set := range slice.Spec.SharedCounters {
			left[set.Name] = map[string]resource.Quantity{}
			for name, counter := range set.Counters {
				left[set.Name][name] = counter.Value.DeepCopy()
			}
		}
	}
	for _, slice := range of {
		each(slice, func(device *resourceapi.Device) {
			for _, consumed := range device.ConsumesCounters {
				for name, counter := range consumed.Counters {
					if value, found := left[consumed.CounterSet][name]; found && slices.Contains(names, device.Name) {
						value.Sub(counter.Value)
						left[consumed.CounterSet][name] = value
					}
				}
			}
		})
	}
	return left
}

// has returns whether the device fits into the room alone. Counters that are not there are the allocator's concern.
func (r room) has(device *resourceapi.Device) bool {
	return !slices.ContainsFunc(device.ConsumesCounters, func(consumed resourceapi.DeviceCounterConsumption) bool {
		for name, counter := range consumed.Counters {
			if left, found := r[consumed.CounterSet][name]; found && left.Cmp(counter.Value) < 0 {
				return true
			}
		}
		return false
	})
}

// noteOthers notes the requests of a claim that are not for GPUs. Such a request may get a device of a planned driver
// that is no GPU.
func (p *plan) noteOthers(claim *resourceapi.ResourceClaim) {
	for _, request := range claim.Spec.Devices.Requests {
		if !watches(request) && !p.forGPUs(request) {
			p.different.Insert(string(claim.UID) + "/" + request.Name)
		}
	}
}

// isDifferent returns whether a result is that of a request that is not for GPUs.
func (p *plan) isDifferent(claim *resourceapi.ResourceClaim, result resourceapi.DeviceRequestAllocationResult) bool {
	request, _, _ := strings.Cut(result.Request, "/") // a subrequest's name follows
	return p.different.Has(string(claim.UID) + "/" + request)
}

// forGPUs returns whether a request is for a class of GPUs.
func (p *plan) forGPUs(request resourceapi.DeviceRequest) bool {
	return request.Exactly != nil && p.isGPUs(request.Exactly.DeviceClassName) ||
		slices.ContainsFunc(request.FirstAvailable, func(some resourceapi.DeviceSubRequest) bool { return p.isGPUs(some.DeviceClassName) })
}

// gpus returns a function that says whether a device of a slice is a GPU: it matches the class of one of these resources.
// One that can't be evaluated counts as a GPU.
func (v *view) gpus(resources []string) func(slice *resourceapi.ResourceSlice, at int) bool {
	classes := sync.OnceValue(func() [][]string { return selectorsOfGPUs(v.SharedDRAManager, resources) })
	return func(slice *resourceapi.ResourceSlice, at int) bool {
		return slices.ContainsFunc(classes(), func(selectors []string) bool {
			found := v.matcher.matching(context.Background(), selectors, slice, nil)
			return found.devices[at] || found.errs[at] != nil
		})
	}
}
