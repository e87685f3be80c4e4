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

// Devices of a pool may share counters, as a GPU and its partitions do. The in-tree allocator reads the definitions of
// the pool's allocated devices and sums up the counters that they consume. So the view keeps these definitions and all
// counter sets.

// byPool is the index of ResourceSlices by their pool.
const byPool = "muster.dev/pool"

// indexByPool adds the index byPool to the informer of ResourceSlices.
func indexByPool(published cache.SharedIndexInformer) error {
	return addIndex(published, byPool, func(obj any) ([]string, error) {
		slice := fromInTree(obj.(*inTreeSlice))
		return []string{poolKey(slice.Spec.Driver, slice.Spec.Pool.Name)}, nil
	})
}

// poolKey returns the key of a pool in the index byPool.
func poolKey(driver, pool string) string { return driver + "/" + pool }

// competingDevices returns the devices of the planned pools on the node that consume counters of the same sets. If one
// is allocated, it may leave too few counters for a planned device.
func (v *cycleView) competingDevices(p *plan) (competing []device) {
	for _, planned := range p.pools {
		published, err := v.published.ByIndex(byPool, poolKey(planned.driver, planned.name))
		if err != nil {
			continue // only if the index does not exist
		}
		var counterSets []string
		var onNode []*resourceapi.ResourceSlice
		for _, obj := range published {
			if slice := fromInTree(obj.(*inTreeSlice)); p.isOnNode(slice) {
				onNode = append(onNode, slice)
			}
		}
		for _, slice := range onNode {
			forEachCounted(slice, func(device *resourceapi.Device) {
				if slices.Contains(planned.devices, device.Name) {
					for i := range device.ConsumesCounters {
						counterSets = append(counterSets, device.ConsumesCounters[i].CounterSet)
					}
				}
			})
		}
		for _, slice := range onNode {
			forEachCounted(slice, func(candidate *resourceapi.Device) {
				shares := slices.ContainsFunc(candidate.ConsumesCounters, func(c resourceapi.DeviceCounterConsumption) bool {
					return slices.Contains(counterSets, c.CounterSet)
				})
				if shares && !slices.Contains(planned.devices, candidate.Name) {
					competing = append(competing, device{planned.driver, planned.name, candidate.Name})
				}
			})
		}
	}
	return competing
}

// forEachCounted calls visit for the devices of a slice that consume counters.
func forEachCounted(slice *resourceapi.ResourceSlice, visit func(*resourceapi.Device)) {
	for i := range slice.Spec.Devices {
		if device := &slice.Spec.Devices[i]; len(device.ConsumesCounters) > 0 {
			visit(device)
		}
	}
}

// addPlannedForOthers adds the devices of other pods' live plans to the allocated state, and keeps a copy of the state
// for restrict. No claim contains these devices yet, but the allocator must give neither them nor their partitions to
// this pod.
func (c shownCycle) addPlannedForOthers(allocated *structured.AllocatedState) {
	plan := c.plan
	choosesPlanned := plan != nil && plan.plannedCount > 0 && len(plan.otherRequests) == 0 // restrict shows no other device of these drivers
	if c.plannedForOthers != nil && !choosesPlanned {
		for _, name := range c.plannedForOthers() {
			if driver, pool, device, ok := splitName(name); ok && !plan.has(driver, pool, device) {
				allocated.AllocatedDevices.Insert(structured.MakeDeviceID(driver, pool, device))
			}
		}
	}
	if plan == nil || plan.plannedCount == 0 {
		return
	}
	plan.allocated = sets.New[device]()
	for id := range allocated.AllocatedDevices {
		if driver, pool := id.Driver.String(), id.Pool.String(); plan.pool(driver, pool) != nil {
			plan.allocated.Insert(device{driver, pool, id.Device.String()})
		}
	}
	// A device that may be allocated several times consumes its counters once. No request may choose such a device here.
	for shared := range allocated.AllocatedSharedDeviceIDs {
		id := deviceIDOf(shared)
		sharedDevice := device{id.Driver.String(), id.Pool.String(), id.Device.String()}
		if planned := plan.pool(sharedDevice.driver, sharedDevice.pool); planned != nil && !slices.Contains(planned.devices, sharedDevice.name) {
			plan.allocated.Insert(sharedDevice)
			allocated.AllocatedDevices.Insert(id)
		}
	}
}

// has returns whether a device is planned for this member, alone or shared with others.
func (p *plan) has(driver, pool, name string) bool {
	if p == nil {
		return false
	}
	planned := p.pool(driver, pool)
	return planned != nil && slices.Contains(planned.devices, name)
}

// splitName returns the parts of driver/pool/name. Only a pool's name may contain further slashes.
func splitName(name string) (driver, pool, device string, ok bool) {
	driver, path, _ := strings.Cut(name, "/")
	slash := strings.LastIndexByte(path, '/')
	if slash <= 0 || driver == "" || slash == len(path)-1 {
		return "", "", "", false
	}
	return driver, path[:slash], path[slash+1:], true
}

// mustStayVisible returns whether an unplanned device must remain visible to the allocator. An allocated device that
// consumes counters must: no request can get this device, but its counters count. A member that requests other devices
// than GPUs may get partitions, which consume counters and are no GPUs. A partition stays visible only if the planned
// devices leave enough counters for it, or else the allocator would try all combinations of partitions in vain.
func (p *plan) mustStayVisible(slice *resourceapi.ResourceSlice, index int, free freeCounters) bool {
	candidate := &slice.Spec.Devices[index]
	if len(candidate.ConsumesCounters) == 0 {
		return false
	}
	if p.allocated.Has(device{slice.Spec.Driver, slice.Spec.Pool.Name, candidate.Name}) {
		return true
	}
	return len(p.otherRequests) > 0 && free.suffice(candidate) && !p.isGPU(slice, index)
}

// freeCounters holds the amounts of counters that planned devices leave, by counter set and name.
type freeCounters map[string]map[string]resource.Quantity

// countersLeftBy returns the counters that these devices of a pool leave. The result is empty for a member that needs no
// partitions.
func (p *plan) countersLeftBy(published []*resourceapi.ResourceSlice, names []string) freeCounters {
	free := freeCounters{}
	if len(p.otherRequests) == 0 {
		return free
	}
	for _, slice := range published {
		for _, set := range slice.Spec.SharedCounters {
			free[set.Name] = map[string]resource.Quantity{}
			for name, counter := range set.Counters {
				free[set.Name][name] = counter.Value.DeepCopy()
			}
		}
	}
	for _, slice := range published {
		forEachCounted(slice, func(device *resourceapi.Device) {
			for _, consumed := range device.ConsumesCounters {
				for name, counter := range consumed.Counters {
					if value, ok := free[consumed.CounterSet][name]; ok && slices.Contains(names, device.Name) {
						value.Sub(counter.Value)
						free[consumed.CounterSet][name] = value
					}
				}
			}
		})
	}
	return free
}

// suffice returns whether the free counters suffice for the device. The allocator checks counters that are not listed
// here.
func (f freeCounters) suffice(device *resourceapi.Device) bool {
	return !slices.ContainsFunc(device.ConsumesCounters, func(consumed resourceapi.DeviceCounterConsumption) bool {
		for name, counter := range consumed.Counters {
			if free, ok := f[consumed.CounterSet][name]; ok && free.Cmp(counter.Value) < 0 {
				return true
			}
		}
		return false
	})
}

// noteOtherRequests records the requests of a claim that are not for GPUs. Such a request may get a device of a planned
// driver that is no GPU.
func (p *plan) noteOtherRequests(claim *resourceapi.ResourceClaim) {
	for _, request := range claim.Spec.Devices.Requests {
		if !hasAdminAccess(request) && !p.isForGPUs(request) {
			p.otherRequests.Insert(string(claim.UID) + "/" + request.Name)
		}
	}
}

// isForOtherRequest returns whether a result belongs to a request that is not for GPUs.
func (p *plan) isForOtherRequest(claim *resourceapi.ResourceClaim, result resourceapi.DeviceRequestAllocationResult) bool {
	request, _, _ := strings.Cut(result.Request, "/") // a subrequest's name follows
	return p.otherRequests.Has(string(claim.UID) + "/" + request)
}

func (p *plan) isForGPUs(request resourceapi.DeviceRequest) bool {
	return request.Exactly != nil && p.isGPUClass(request.Exactly.DeviceClassName) ||
		slices.ContainsFunc(request.FirstAvailable, func(subrequest resourceapi.DeviceSubRequest) bool { return p.isGPUClass(subrequest.DeviceClassName) })
}

// gpuPredicate returns a predicate: is this device of the slice a GPU? A GPU matches the class of one of these resources.
// If a selector can't be evaluated on a device, the device counts as a GPU.
func (v *cycleView) gpuPredicate(resources []string) func(slice *resourceapi.ResourceSlice, index int) bool {
	classes := sync.OnceValue(func() [][]string { return selectorsOfGPUs(v.SharedDRAManager, resources) })
	return func(slice *resourceapi.ResourceSlice, index int) bool {
		return slices.ContainsFunc(classes(), func(selectors []string) bool {
			matching := v.matcher.matchAll(context.Background(), selectors, slice, nil)
			return matching.devices[index] || matching.errs[index] != nil
		})
	}
}
