package devices

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/utils/ptr"
)

const (
	// nodeTimeout bounds the allocator's time on one node, because users write the problem that it solves. It usually
	// takes less than a millisecond. All nodes together may take spareTime more than usualTime each. After that each node
	// has usualTime. So a few slow nodes, whose drivers write the slices, cause no refusal of other nodes.
	nodeTimeout = 200 * time.Millisecond
	usualTime   = 10 * time.Millisecond
	spareTime   = 3 * time.Second
	// maxRequests bounds the different requests for GPUs of one pod. maxSelectors bounds the selectors of all these
	// requests and of their classes, so that the matcher can remember the results of all.
	maxRequests, maxSelectors = 16, 32
)

// AdvanceCheck determines, before a pod is planned, the nodes on which the pod's claims can be met. It runs off the
// scheduling thread: PreFilter on one goroutine, and then Filter on several.
//
// A request is for GPUs if its DeviceClass has a GPU resource. The planner counts the devices of such requests. So the
// answer for them contains only which GPUs of a node they may have: GPUs that match the class and the selectors, and
// whose taints are tolerated. The in-tree plugin answers all other requests. It does not see the requests for GPUs.
type AdvanceCheck struct {
	*dynamicresources.DynamicResources
	manager fwk.SharedDRAManager
	pods    cache.Indexer
	gpus    []string
	matcher *matcher
	slices  slicePairs
	view    *questionView
	// features and celCache belong to the allocator, for pods whose GPUs must agree with other devices.
	features structured.Features
	celCache *cel.Cache
}

var (
	_ fwk.PreFilterPlugin = &AdvanceCheck{}
	_ fwk.FilterPlugin    = &AdvanceCheck{}
)

// NewAdvanceCheck returns the constructor of the plugin that answers in place of PlannedResources, under the same name.
// gpus are the resources that count GPUs.
func NewAdvanceCheck(gpus []string) frameworkruntime.PluginFactory {
	return func(ctx context.Context, _ runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		manager := handle.SharedDRAManager()
		args := &config.DynamicResourcesArgs{
			FilterTimeout:  &metav1.Duration{Duration: nodeTimeout},
			BindingTimeout: &metav1.Duration{Duration: config.DynamicResourcesBindingTimeoutDefault},
		}
		features := inTreeFeatures()
		pods := handle.SharedInformerFactory().Core().V1().Pods().Informer().GetIndexer()
		a := &AdvanceCheck{manager: manager, pods: pods, gpus: gpus, matcher: newMatcher(features), features: dynamicresources.AllocatorFeatures(features)}
		a.celCache = cel.NewCache(maxExpressions, a.matcher.features)
		a.view = &questionView{SharedDRAManager: manager, ResourceClaimTracker: manager.ResourceClaims(), check: a}
		inTree, err := dynamicresources.New(ctx, args, viewHandle{handle, a.view, func() *v1.Pod { return a.view.pod }}, features)
		if err != nil {
			return nil, err
		}
		a.DynamicResources = inTree.(*dynamicresources.DynamicResources)
		return a, nil
	}
}

// Name implements fwk.Plugin.
func (a *AdvanceCheck) Name() string { return Name }

// gpuQuestion is the state that PreFilter leaves for Filter.
type gpuQuestion struct {
	requests        []gpuRequest
	slices          map[string][]*resourceapi.ResourceSlice // by node; slices of no single node are at ""
	incompletePools sets.Set[poolOn]                        // pools with missing slices
	overtime        atomic.Int64                            // time beyond usualTime, of all nodes
	matching        sync.Map                                // node → []MatchingGPUs: see MatchingOn

	adminRequests []adminRequest       // of a pod that also gets GPUs
	matchClaim    *matchAttributeClaim // nil if GPUs need not agree with other devices
}

// subrequestCount returns how many subrequests the pod has.
func (q *gpuQuestion) subrequestCount() int {
	count := 1
	for _, request := range q.requests {
		count = max(count, len(request.subrequests))
	}
	return count
}

// Clone implements fwk.StateData.
func (q *gpuQuestion) Clone() fwk.StateData { return q }

const questionKey fwk.StateKey = "muster.dev/gpu-question"

// MatchingGPUs are the GPUs of a node that a pod may have by one of its subrequests.
type MatchingGPUs struct {
	// Names are driver/name, or driver/pool/name if the driver has GPUs in several pools of the node. The list is nil if
	// the pod may have all GPUs without taints, and empty if it may have no GPU.
	Names []string
	// Groups are the groups of these GPUs in which other devices run out before the GPUs do.
	Groups []Group
}

// MatchingOn returns the GPUs of a node that the pod of this state may have, by each subrequest of its requests. Call it
// after Filter has passed the node.
func MatchingOn(state fwk.CycleState, node string) []MatchingGPUs {
	data, err := state.Read(questionKey)
	if err != nil {
		return nil
	}
	if matching, ok := data.(*gpuQuestion).matching.Load(node); ok {
		return matching.([]MatchingGPUs)
	}
	return make([]MatchingGPUs, data.(*gpuQuestion).subrequestCount())
}

// PreFilter implements fwk.PreFilterPlugin.
func (a *AdvanceCheck) PreFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	question := &gpuQuestion{requests: a.gpuRequests(pod)}
	if len(question.requests) > maxRequests {
		return nil, fwk.NewStatus(fwk.Unschedulable, fmt.Sprintf("the pod has more than %d different requests for GPUs; at most %d are planned", maxRequests, maxRequests))
	}
	if count := countSelectors(question.requests); count > maxSelectors {
		return nil, fwk.NewStatus(fwk.Unschedulable, fmt.Sprintf("the pod's requests for GPUs have %d different selectors; at most %d are planned", count, maxSelectors))
	}
	state.Write(questionKey, question)
	alsoAdminAccess := a.needsGPUsAndAdminAccess(pod, question)
	if len(question.requests) == 0 && !alsoAdminAccess {
		only, _, status := a.preFilterInTree(ctx, state, pod, nodes, nil)
		return only, status
	}
	all, err := a.slices.list(a.manager)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	question.slices, question.incompletePools = slicesByNode(all)
	var gpuDrivers sets.Set[string]
	if alsoAdminAccess {
		gpuDrivers, question.adminRequests = a.driversOfGPUs(ctx, all), a.adminRequests(pod)
	}
	only, allocated, status := a.preFilterInTree(ctx, state, pod, nodes, gpuDrivers)
	if match := a.matchAttributeClaimOf(pod); match != nil && status.IsSuccess() && allocated != nil {
		match.allocated, match.shared = allocated, question.slices[""]
		question.matchClaim = match
	}
	return only, status
}

// preFilterInTree runs PreFilter of the in-tree plugin. The plugin sees devices of gpuDrivers without our taint. The
// function also returns which devices are allocated, or nil if the plugin did not ask.
func (a *AdvanceCheck) preFilterInTree(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo, gpuDrivers sets.Set[string]) (*fwk.PreFilterResult, *structured.AllocatedState, *fwk.Status) {
	a.view.gpuDrivers, a.view.pod = gpuDrivers, pod
	defer func() { a.view.gpuDrivers, a.view.pod, a.view.allocated = nil, nil, nil }()
	only, status := a.DynamicResources.PreFilter(ctx, state, pod, nodes)
	return only, a.view.allocated, status
}

// Filter implements fwk.FilterPlugin.
func (a *AdvanceCheck) Filter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	data, err := state.Read(questionKey)
	if err != nil {
		return fwk.AsStatus(err)
	}
	question := data.(*gpuQuestion)
	if question.overtime.Load() >= int64(spareTime) {
		usualCtx, cancel := context.WithTimeout(ctx, usualTime)
		defer cancel()
		status := a.filterNode(usualCtx, question, state, pod, node)
		if !status.IsSuccess() && usualCtx.Err() != nil {
			return fwk.NewStatus(fwk.Unschedulable, reasonSlow)
		}
		return status
	}
	began := time.Now()
	defer func() { question.overtime.Add(max(0, int64(time.Since(began)-usualTime))) }()
	return a.filterNode(ctx, question, state, pod, node)
}

// filterNode determines within nodeTimeout whether the pod's claims can be met on the node.
func (a *AdvanceCheck) filterNode(ctx context.Context, question *gpuQuestion, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	nodeCtx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	reason := a.whyNoAdminAccess(nodeCtx, question, node.Node().Name)
	if reason == "" {
		reason = a.recordMatchingGPUs(nodeCtx, question, node.Node())
	}
	if nodeCtx.Err() != nil { // not all devices were evaluated, so the reason and the recorded GPUs may be wrong
		reason = reasonTooLong
	}
	if reason != "" {
		return fwk.NewStatus(fwk.Unschedulable, reason)
	}
	return a.DynamicResources.Filter(ctx, state, pod, node)
}

// recordMatchingGPUs records which GPUs of the node the pod may have by each subrequest. It records nothing if each
// subrequest may have all GPUs without taints. It returns why the node suits the pod by no subrequest, or "".
func (a *AdvanceCheck) recordMatchingGPUs(ctx context.Context, question *gpuQuestion, node *v1.Node) string {
	matching, firstReason, anySuits, allSuit := make([]MatchingGPUs, question.subrequestCount()), "", false, true
	for choiceIndex := range matching {
		gpus, reason := a.gpusByChoice(ctx, question, choiceIndex, node.Name)
		if question.matchClaim != nil && reason == "" {
			gpus, matching[choiceIndex].Groups, reason = a.gpusWithPeers(ctx, question, choiceIndex, node, gpus)
		}
		if choiceIndex == 0 {
			firstReason = reason
		}
		switch {
		case reason != "":
			matching[choiceIndex].Names, allSuit = []string{}, false
		case gpus.all:
			anySuits = true
		default:
			matching[choiceIndex].Names, allSuit, anySuits = gpus.names, false, true
		}
	}
	if !anySuits && len(matching) > 1 {
		return fmt.Sprintf("%s (and no other of %d subrequests suits)", firstReason, len(matching))
	}
	if !anySuits {
		return firstReason
	}
	if !allSuit {
		question.matching.Store(node.Name, matching)
	}
	return ""
}

// gpusByChoice returns the GPUs of the node that match the pod's requests if each uses its subrequest `choiceIndex`, or
// the reason why none do. All requests of a pod must match the same GPUs, because the planner assigns GPUs to the pod and
// not to a request.
func (a *AdvanceCheck) gpusByChoice(ctx context.Context, question *gpuQuestion, choiceIndex int, node string) (gpus usableGPUs, reason string) {
	gpus.all = true
	for i, request := range question.requests {
		subrequest := request.subrequest(choiceIndex)
		alternative, reason := a.matcher.findUsableGPUs(ctx, request.label, subrequest, question.slices[node])
		if reason == "" && subrequest.takesAll {
			reason = a.matcher.whyNotAllGPUs(ctx, request.label, subrequest, question, node)
		}
		if reason != "" {
			return gpus, reason
		}
		if i == 0 {
			gpus = alternative
		} else if !slices.Equal(gpus.names, alternative.names) {
			return gpus, fmt.Sprintf("%s may have other GPUs of the node than %s; such nodes are not planned yet", question.requests[0].label, request.label)
		}
	}
	return gpus, ""
}

// reasonTooLong and reasonSlow are reasons of nodes that were not checked in time.
const reasonTooLong = "resourceClaims: to look at the devices of the node takes too long"

var reasonSlow = fmt.Sprintf("resourceClaims: selectors and the allocator took %v more than %v for each node; ask for less, or with simpler selectors", spareTime, usualTime)

// poolOn identifies the part of a pool that is published for one node.
type poolOn struct{ driver, pool, node string }

// poolOf returns the part of a pool to which a slice belongs.
func poolOf(slice *resourceapi.ResourceSlice) poolOn {
	return poolOn{slice.Spec.Driver, slice.Spec.Pool.Name, ptr.Deref(slice.Spec.NodeName, "")}
}

// slicesByNode returns the slices that count on each node, and the pools that lack slices there. Slices of no single node
// are at "". The rules are those of the in-tree allocator: on a node, the newest slices of a pool count that name the
// node or no node. If these are not the whole pool, slices of other nodes may complete the pool.
func slicesByNode(all []*resourceapi.ResourceSlice) (slicesOn map[string][]*resourceapi.ResourceSlice, incompletePools sets.Set[poolOn]) {
	newest, slicesThere := map[poolOn]int64{}, map[poolOn]int64{}
	type generation struct {
		poolOn
		number int64
	}
	everywhere := map[generation]int64{}
	shared := func(pool poolOn) poolOn { return poolOn{pool.driver, pool.pool, ""} }
	for _, slice := range all {
		pool := poolOf(slice)
		newest[pool] = max(newest[pool], slice.Spec.Pool.Generation)
		everywhere[generation{shared(pool), slice.Spec.Pool.Generation}]++
	}
	slicesOn = map[string][]*resourceapi.ResourceSlice{}
	for _, slice := range all {
		if pool := poolOf(slice); slice.Spec.Pool.Generation == max(newest[pool], newest[shared(pool)]) {
			slicesOn[pool.node] = append(slicesOn[pool.node], slice)
			slicesThere[pool]++
		}
	}
	incompletePools = sets.New[poolOn]()
	for node, published := range slicesOn {
		for _, slice := range published {
			pool, number := poolOf(slice), slice.Spec.Pool.Generation
			count := slicesThere[pool]
			if node != "" && newest[shared(pool)] == number {
				count += slicesThere[shared(pool)]
			}
			if total := slice.Spec.Pool.ResourceSliceCount; count != total && everywhere[generation{shared(pool), number}] != total {
				incompletePools.Insert(pool)
			}
		}
	}
	return slicesOn, incompletePools
}
