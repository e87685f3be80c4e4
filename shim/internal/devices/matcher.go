package devices

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/utils/lru"
)

const (
	// maxCost is the most that a selector may cost for one device, in the units of CEL. Selectors that compare
	// some attributes cost about ten. The API server allows a thousand times as much as this.
	maxCost = 1000
	// maxExpressions and maxSlices bound what is remembered.
	maxExpressions, maxSlices = 64, 20_000
	// maxOffered bounds the GPUs of one node by one class. The service reads no pools beyond this.
	maxOffered = 1024
)

// matcher evaluates selectors on devices. It remembers results, because nodes and pods of a cluster are much alike in
// them, and slices rarely change.
type matcher struct {
	features cel.Features
	mu       sync.Mutex
	known    *lru.Cache // expression → *matches
}

// matches are the results of one expression.
type matches struct {
	program cel.CompilationResult
	mu      sync.Mutex
	of      map[types.UID]sliceMatches // by slice
	// err is the first error. One is enough for a refusal. One for each of 40,000 devices would take 6 MiB more.
	err error
}

// sliceMatches has an entry for each device of a slice.
type sliceMatches struct {
	version string // of the slice
	devices []bool
	errs    []error // all entries of one expression are its first error
}

func newMatcher(features feature.Features) *matcher {
	return &matcher{features: cel.Features{
		EnableConsumableCapacity: features.EnableDRAConsumableCapacity,
		EnableListTypeAttributes: features.EnableDRAListTypeAttributes,
	}, known: lru.New(maxExpressions)}
}

// usable are the GPUs of a node that a request may have: their names in order, whether these are all without taints, and
// themselves as they stand in slices.
type usable struct {
	names []string
	all   bool
	gpus  []gpu
}

// usable returns which GPUs of a node with these slices a request may have, or why the node does not suit it. The request
// is called `where`.
func (m *matcher) usable(ctx context.Context, where string, wants gpuChoice, published []*resourceapi.ResourceSlice) (found usable, why string) {
	total, matching, large := 0, 0, 0
	found.all = true
	counted := make([]sliceMatches, len(published))
	for at, slice := range published {
		counted[at] = m.matching(ctx, wants.counted, slice, nil)
	}
	nameOf := namesOn(published, counted)
	for at, slice := range published {
		gpus := counted[at]
		wanted := m.matching(ctx, wants.wanted, slice, gpus.devices)
		for i, is := range gpus.devices {
			if !is {
				continue
			}
			if wanted.errs[i] != nil {
				return found, fmt.Sprintf("%s: a selector can't be evaluated: %v", where, wanted.errs[i])
			}
			if total++; total > maxOffered {
				return found, fmt.Sprintf("%s: the node has more than %d GPUs of DeviceClass %s", where, maxOffered, wants.class)
			}
			device := &slice.Spec.Devices[i]
			enough := suits(device, wants.capacity)
			tainted, may := isTainted(device, nil), wanted.devices[i] && enough && !isTainted(device, wants.tolerations)
			if wanted.devices[i] {
				matching++
				if wants.every && !may {
					return found, fmt.Sprintf("%s: allocationMode All, and GPU %s of the node has a taint", where, device.Name)
				}
				if enough {
					large++
				}
			}
			if may {
				name := nameOf(slice, device.Name)
				found.names = append(found.names, name)
				found.gpus = append(found.gpus, gpu{name, slice.Spec.Driver, slice.Spec.Pool.Name, device})
			}
			found.all = found.all && may != tainted
		}
	}
	if ctx.Err() != nil {
		return found, fmt.Sprintf("%s: to look at the devices of the node takes too long", where)
	}
	slices.Sort(found.names)
	found.all = found.all && !wants.every
	switch {
	case total == 0:
		return found, fmt.Sprintf("%s: the node has no GPUs of DeviceClass %s", where, wants.class)
	case matching == 0:
		return found, fmt.Sprintf("%s: no GPU of the node matches the selectors", where)
	case large == 0:
		return found, fmt.Sprintf("%s: no GPU of the node that matches the selectors has the capacity that is asked for", where)
	case len(found.names) == 0 && !found.all:
		return found, fmt.Sprintf("%s: all GPUs of the node that match the selectors have taints", where)
	}
	return found, ""
}

// beyond returns why the request for all devices of a node can't be planned there, or "". The allocator would look at
// more than the node's GPUs: all pools must be complete, and other devices that match would have to be given too.
func (m *matcher) beyond(ctx context.Context, where string, wants gpuChoice, asked *askedGPUs, node string) string {
	where, matching := where+": allocationMode All", 0
	for _, name := range []string{node, ""} {
		for _, slice := range asked.slices[name] {
			if of := poolOf(slice); name != "" && asked.partial.Has(of) {
				return fmt.Sprintf("%s, and slices of pool %s of %s are missing", where, of.pool, of.driver)
			}
			gpus, wanted := m.matching(ctx, wants.counted, slice, nil), m.matching(ctx, wants.wanted, slice, nil)
			for i, is := range wanted.devices {
				switch {
				case wanted.errs[i] != nil:
					return fmt.Sprintf("%s: a selector can't be evaluated: %v", where, wanted.errs[i])
				case is && name == "":
					return fmt.Sprintf("%s, and device %s of %s belongs to no single node; such devices are not planned yet", where, slice.Spec.Devices[i].Name, slice.Spec.Driver)
				case is && !gpus.devices[i]:
					return fmt.Sprintf("%s, and device %s of %s matches that is no GPU by its DeviceClass", where, slice.Spec.Devices[i].Name, slice.Spec.Driver)
				case is:
					matching++
				}
			}
		}
	}
	if matching > resourceapi.AllocationResultsMaxSize {
		return fmt.Sprintf("%s matches %d GPUs of the node; a claim may have %d", where, matching, resourceapi.AllocationResultsMaxSize)
	}
	return ""
}

// isTainted returns whether the allocator gives the device to no request with these tolerations.
func isTainted(device *resourceapi.Device, tolerations []resourceapi.DeviceToleration) bool {
	return slices.ContainsFunc(device.Taints, func(taint resourceapi.DeviceTaint) bool {
		keepsAway := taint.Effect == resourceapi.DeviceTaintEffectNoSchedule || taint.Effect == resourceapi.DeviceTaintEffectNoExecute
		return keepsAway && taint.Key != Owned && !slices.ContainsFunc(tolerations, func(toleration resourceapi.DeviceToleration) bool {
			return resourceclaim.ToleratesTaint(toleration, taint)
		})
	})
}

// namesOn returns the function that names the GPUs of a node with these slices: driver/name. The pool stands between them
// if the driver has GPUs in several pools there. Most drivers have one on each node, and often call it like the node. So
// equal nodes have equal names.
func namesOn(published []*resourceapi.ResourceSlice, gpus []sliceMatches) func(*resourceapi.ResourceSlice, string) string {
	pools, several := map[string]string{}, map[string]bool{} // by driver
	for at, slice := range published {
		if slices.Contains(gpus[at].devices, true) {
			driver, pool := slice.Spec.Driver, slice.Spec.Pool.Name
			first, known := pools[driver]
			several[driver] = several[driver] || known && first != pool
			pools[driver] = pool
		}
	}
	return func(slice *resourceapi.ResourceSlice, name string) string {
		if !several[slice.Spec.Driver] {
			return slice.Spec.Driver + "/" + name
		}
		return slice.Spec.Driver + "/" + slice.Spec.Pool.Name + "/" + name
	}
}

// matching returns which of these devices of the slice satisfy all expressions; nil means all its devices. A device
// that an expression has left out is not looked at further, so what a later expression says of it does not count.
func (m *matcher) matching(ctx context.Context, expressions []string, slice *resourceapi.ResourceSlice, of []bool) (found sliceMatches) {
	if found.devices = slices.Clone(of); of == nil {
		found.devices = slices.Repeat([]bool{true}, len(slice.Spec.Devices))
	}
	found.errs = make([]error, len(found.devices))
	for _, expression := range expressions {
		if !slices.Contains(found.devices, true) {
			break
		}
		by := m.matches(expression).on(ctx, slice)
		for i, is := range found.devices {
			if is {
				found.devices[i], found.errs[i] = by.devices[i], by.errs[i]
			}
		}
	}
	return found
}

func (m *matcher) matches(expression string) *matches {
	m.mu.Lock()
	defer m.mu.Unlock()
	if found, ok := m.known.Get(expression); ok {
		return found.(*matches)
	}
	limit := uint64(maxCost)
	found := &matches{
		program: cel.GetCompiler(m.features).CompileCELExpression(expression, cel.Options{CostLimit: &limit, DisableCostEstimation: true}),
		of:      map[types.UID]sliceMatches{},
	}
	m.known.Add(expression, found)
	return found
}

// on returns which devices of a slice match.
func (m *matches) on(ctx context.Context, slice *resourceapi.ResourceSlice) sliceMatches {
	m.mu.Lock()
	found, known := m.of[slice.UID]
	m.mu.Unlock()
	count := len(slice.Spec.Devices)
	if known && found.version == slice.ResourceVersion && len(found.devices) == count {
		return found
	}
	found = sliceMatches{version: slice.ResourceVersion, devices: make([]bool, count), errs: make([]error, count)}
	for i := range slice.Spec.Devices {
		if ctx.Err() != nil {
			return found
		}
		found.devices[i], found.errs[i] = m.match(ctx, slice.Spec.Driver, &slice.Spec.Devices[i])
	}
	if ctx.Err() != nil {
		return found
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, err := range found.errs {
		if err != nil {
			m.err = cmp.Or(m.err, err)
			found.errs[i] = m.err
		}
	}
	if len(m.of) >= maxSlices {
		clear(m.of)
	}
	m.of[slice.UID] = found
	return found
}

func (m *matches) match(ctx context.Context, driver string, device *resourceapi.Device) (bool, error) {
	if m.program.Error != nil {
		return false, m.program.Error
	}
	is, _, err := m.program.DeviceMatches(ctx, cel.Device{
		Driver: driver, AllowMultipleAllocations: device.AllowMultipleAllocations,
		Attributes: device.Attributes, Capacity: device.Capacity,
	})
	return is, err
}
