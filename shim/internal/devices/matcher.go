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
	// maxCost bounds the cost of a selector for one device, in the units of CEL. Selectors that compare a few attributes
	// cost about ten. The API server allows a thousand times as much as this.
	maxCost = 1000
	// maxExpressions and maxSlices bound the results that are remembered.
	maxExpressions, maxSlices = 64, 20_000
	// maxOffered bounds the GPUs of one node in one class. The service reads no larger pools.
	maxOffered = 1024
)

// matcher evaluates selectors on devices. It remembers results, because many nodes and pods of a cluster have the same
// selectors and devices, and slices rarely change.
type matcher struct {
	features cel.Features
	mu       sync.Mutex
	results  *lru.Cache // expression → *expressionResults
}

// expressionResults are the results of one expression.
type expressionResults struct {
	program cel.CompilationResult
	mu      sync.Mutex
	bySlice map[types.UID]sliceMatches
	// err is the first error, which is enough for a refusal. One error for each of 40,000 devices would take 6 MiB more.
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
	}, results: lru.New(maxExpressions)}
}

// usableGPUs are the GPUs of a node that a request may have: their names in order, whether they are all GPUs without
// taints, and the GPUs in the order of the slices.
type usableGPUs struct {
	names []string
	all   bool
	gpus  []gpu
}

// findUsableGPUs returns the GPUs that a request may have on a node with these slices, or why the node does not suit the
// request. The label names the request in the reason.
func (m *matcher) findUsableGPUs(ctx context.Context, label string, choice gpuChoice, published []*resourceapi.ResourceSlice) (usable usableGPUs, reason string) {
	total, matching, large := 0, 0, 0
	usable.all = true
	countedGPUs := make([]sliceMatches, len(published))
	for index, slice := range published {
		countedGPUs[index] = m.matchAll(ctx, choice.gpuSelectors, slice, nil)
	}
	nameOf := namesOn(published, countedGPUs)
	for index, slice := range published {
		gpus := countedGPUs[index]
		selected := m.matchAll(ctx, choice.selectors, slice, gpus.devices)
		for i, matches := range gpus.devices {
			if !matches {
				continue
			}
			if selected.errs[i] != nil {
				return usable, fmt.Sprintf("%s: a selector can't be evaluated: %v", label, selected.errs[i])
			}
			if total++; total > maxOffered {
				return usable, fmt.Sprintf("%s: the node has more than %d GPUs of DeviceClass %s", label, maxOffered, choice.class)
			}
			device := &slice.Spec.Devices[i]
			enough := meetsCapacity(device, choice.capacity)
			tainted, isUsable := isTainted(device, nil), selected.devices[i] && enough && !isTainted(device, choice.tolerations)
			if selected.devices[i] {
				matching++
				if choice.takesAll && !isUsable {
					return usable, fmt.Sprintf("%s: allocationMode All, and GPU %s of the node has a taint", label, device.Name)
				}
				if enough {
					large++
				}
			}
			if isUsable {
				name := nameOf(slice, device.Name)
				usable.names = append(usable.names, name)
				usable.gpus = append(usable.gpus, gpu{name, slice.Spec.Driver, slice.Spec.Pool.Name, device})
			}
			usable.all = usable.all && isUsable != tainted
		}
	}
	if ctx.Err() != nil {
		return usable, fmt.Sprintf("%s: to look at the devices of the node takes too long", label)
	}
	slices.Sort(usable.names)
	usable.all = usable.all && !choice.takesAll
	switch {
	case total == 0:
		return usable, fmt.Sprintf("%s: the node has no GPUs of DeviceClass %s", label, choice.class)
	case matching == 0:
		return usable, fmt.Sprintf("%s: no GPU of the node matches the selectors", label)
	case large == 0:
		return usable, fmt.Sprintf("%s: no GPU of the node that matches the selectors has the capacity that is asked for", label)
	case len(usable.names) == 0 && !usable.all:
		return usable, fmt.Sprintf("%s: all GPUs of the node that match the selectors have taints", label)
	}
	return usable, ""
}

// whyNotAllGPUs returns why the request for all devices of a node can't be planned there, or "". The allocator considers more
// than the node's GPUs: all pools must be complete, and the request would get other devices that match, too.
func (m *matcher) whyNotAllGPUs(ctx context.Context, label string, choice gpuChoice, question *gpuQuestion, node string) string {
	label, matching := label+": allocationMode All", 0
	for _, name := range []string{node, ""} {
		for _, slice := range question.slices[name] {
			if pool := poolOf(slice); name != "" && question.incompletePools.Has(pool) {
				return fmt.Sprintf("%s, and slices of pool %s of %s are missing", label, pool.pool, pool.driver)
			}
			gpus, selected := m.matchAll(ctx, choice.gpuSelectors, slice, nil), m.matchAll(ctx, choice.selectors, slice, nil)
			for i, matches := range selected.devices {
				switch {
				case selected.errs[i] != nil:
					return fmt.Sprintf("%s: a selector can't be evaluated: %v", label, selected.errs[i])
				case matches && name == "":
					return fmt.Sprintf("%s, and device %s of %s belongs to no single node; such devices are not planned yet", label, slice.Spec.Devices[i].Name, slice.Spec.Driver)
				case matches && !gpus.devices[i]:
					return fmt.Sprintf("%s, and device %s of %s matches that is no GPU by its DeviceClass", label, slice.Spec.Devices[i].Name, slice.Spec.Driver)
				case matches:
					matching++
				}
			}
		}
	}
	if matching > resourceapi.AllocationResultsMaxSize {
		return fmt.Sprintf("%s matches %d GPUs of the node; a claim may have %d", label, matching, resourceapi.AllocationResultsMaxSize)
	}
	return ""
}

// isTainted returns whether the allocator gives the device to no request with these tolerations, because of a taint.
func isTainted(device *resourceapi.Device, tolerations []resourceapi.DeviceToleration) bool {
	return slices.ContainsFunc(device.Taints, func(taint resourceapi.DeviceTaint) bool {
		keepsAway := taint.Effect == resourceapi.DeviceTaintEffectNoSchedule || taint.Effect == resourceapi.DeviceTaintEffectNoExecute
		return keepsAway && taint.Key != OwnedTaint && !slices.ContainsFunc(tolerations, func(toleration resourceapi.DeviceToleration) bool {
			return resourceclaim.ToleratesTaint(toleration, taint)
		})
	})
}

// namesOn returns the function that names the GPUs of a node with these slices. The name is driver/name, or
// driver/pool/name if the driver has GPUs in several pools of the node. Most drivers have one pool on each node, often
// with the node's name. Without the pool's name, GPUs of equal nodes have equal names.
func namesOn(published []*resourceapi.ResourceSlice, gpus []sliceMatches) func(*resourceapi.ResourceSlice, string) string {
	pools, several := map[string]string{}, map[string]bool{} // by driver
	for index, slice := range published {
		if slices.Contains(gpus[index].devices, true) {
			driver, pool := slice.Spec.Driver, slice.Spec.Pool.Name
			firstPool, ok := pools[driver]
			several[driver] = several[driver] || ok && firstPool != pool
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

// matchAll returns which candidates satisfy all expressions. If candidates is nil, all devices of the slice are
// candidates. A device that fails one expression is not evaluated by the next, so an error there does not count.
func (m *matcher) matchAll(ctx context.Context, expressions []string, slice *resourceapi.ResourceSlice, candidates []bool) (result sliceMatches) {
	if result.devices = slices.Clone(candidates); candidates == nil {
		result.devices = slices.Repeat([]bool{true}, len(slice.Spec.Devices))
	}
	result.errs = make([]error, len(result.devices))
	for _, expression := range expressions {
		if !slices.Contains(result.devices, true) {
			break
		}
		expressionResult := m.resultsOf(expression).matchSlice(ctx, slice)
		for i, matches := range result.devices {
			if matches {
				result.devices[i], result.errs[i] = expressionResult.devices[i], expressionResult.errs[i]
			}
		}
	}
	return result
}

// resultsOf returns the remembered results of an expression, or compiles the expression first.
func (m *matcher) resultsOf(expression string) *expressionResults {
	m.mu.Lock()
	defer m.mu.Unlock()
	if results, ok := m.results.Get(expression); ok {
		return results.(*expressionResults)
	}
	limit := uint64(maxCost)
	results := &expressionResults{
		program: cel.GetCompiler(m.features).CompileCELExpression(expression, cel.Options{CostLimit: &limit, DisableCostEstimation: true}),
		bySlice: map[types.UID]sliceMatches{},
	}
	m.results.Add(expression, results)
	return results
}

// matchSlice returns which devices of a slice satisfy the expression, remembered or evaluated now.
func (m *expressionResults) matchSlice(ctx context.Context, slice *resourceapi.ResourceSlice) sliceMatches {
	m.mu.Lock()
	result, ok := m.bySlice[slice.UID]
	m.mu.Unlock()
	count := len(slice.Spec.Devices)
	if ok && result.version == slice.ResourceVersion && len(result.devices) == count {
		return result
	}
	result = sliceMatches{version: slice.ResourceVersion, devices: make([]bool, count), errs: make([]error, count)}
	converted := toInTree(slice)
	for i := range slice.Spec.Devices {
		if ctx.Err() != nil {
			return result
		}
		result.devices[i], result.errs[i] = m.matchDevice(ctx, celDevice(converted, i))
	}
	if ctx.Err() != nil {
		return result
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, err := range result.errs {
		if err != nil {
			m.err = cmp.Or(m.err, err)
			result.errs[i] = m.err
		}
	}
	if len(m.bySlice) >= maxSlices {
		clear(m.bySlice)
	}
	m.bySlice[slice.UID] = result
	return result
}

// matchDevice evaluates the expression on one device.
func (m *expressionResults) matchDevice(ctx context.Context, device cel.Device) (bool, error) {
	if m.program.Error != nil {
		return false, m.program.Error
	}
	matches, _, err := m.program.DeviceMatches(ctx, device)
	return matches, err
}
