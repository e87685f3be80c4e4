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
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/utils/ptr"
)

const (
	// askingTimeout bounds the allocator on one node: users write what it has to solve. It usually takes less than a
	// millisecond. All nodes together may take spareTime more than usualTime each. Then each node has usualTime, so some
	// slow nodes have no other node refused: their kubelets write what is looked at.
	askingTimeout = 200 * time.Millisecond
	usualTime     = 10 * time.Millisecond
	spareTime     = 3 * time.Second
	// maxRequests bounds the different requests for GPUs of one pod, and maxSelectors the selectors of all of them,
	// with those of their classes. The matcher remembers more selectors than this.
	maxRequests, maxSelectors = 16, 32
)

// Asking answers before a pod is planned on which nodes its claims can be met. It runs off the scheduling thread.
//
// Requests for GPUs are those for a DeviceClass that has a GPU resource. The planner counts their devices, so the
// answer is only which GPUs of a node they may have: those that match the class and the selectors, and whose taints are
// tolerated. All other requests are answered by the in-tree plugin, which does not see those for GPUs.
type Asking struct {
	*dynamicresources.DynamicResources
	manager fwk.SharedDRAManager
	gpus    []string
	matcher *matcher
	view    *othersView
	// of the allocator, for pods whose GPUs must agree with other devices
	features structured.Features
	celCache *cel.Cache
}

var (
	_ fwk.PreFilterPlugin = &Asking{}
	_ fwk.FilterPlugin    = &Asking{}
)

// NewAsking returns the constructor of the plugin that answers in place of PlannedResources, and by its name. gpus are
// the resources that count GPUs.
func NewAsking(gpus []string) frameworkruntime.PluginFactory {
	return func(ctx context.Context, _ runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		manager := handle.SharedDRAManager()
		args := &config.DynamicResourcesArgs{
			FilterTimeout:  &metav1.Duration{Duration: askingTimeout},
			BindingTimeout: &metav1.Duration{Duration: config.DynamicResourcesBindingTimeoutDefault},
		}
		features := feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
		a := &Asking{manager: manager, gpus: gpus, matcher: newMatcher(features), features: dynamicresources.AllocatorFeatures(features)}
		a.celCache = cel.NewCache(maxExpressions, a.matcher.features)
		a.view = &othersView{SharedDRAManager: manager, asking: a}
		inTree, err := dynamicresources.New(ctx, args, &askingHandle{handle, a.view}, features)
		if err != nil {
			return nil, err
		}
		a.DynamicResources = inTree.(*dynamicresources.DynamicResources)
		return a, nil
	}
}

// Name implements fwk.Plugin.
func (a *Asking) Name() string { return Name }

// askedGPUs is what PreFilter leaves for Filter.
type askedGPUs struct {
	requests []gpuRequest
	slices   map[string][]*resourceapi.ResourceSlice // by node, and those of no single node by ""
	partial  sets.Set[poolOn]                        // pools with missing slices
	over     atomic.Int64                            // time beyond usualTime, of all nodes
	some     sync.Map                                // node → [][]string: see SomeOf
	groups   sync.Map                                // node → [][]Group: see GroupsOf

	watched   []watched  // next to GPUs
	agreement *agreement // nil if GPUs need not agree with other devices
}

// ranks returns how many subrequests the pod has.
func (s *askedGPUs) ranks() int {
	most := 1
	for _, request := range s.requests {
		most = max(most, len(request.subrequests))
	}
	return most
}

// Clone implements fwk.StateData.
func (s *askedGPUs) Clone() fwk.StateData { return s }

const askedKey fwk.StateKey = "muster.dev/asked-gpus"

// SomeOf returns the GPUs of a node that the pod of this state may have, after Filter has let the node pass: for each
// subrequest of its requests one list. A list is nil if these are all that have no taint, and empty if the subrequest
// has none. Names are driver/name, with the pool between them if the driver has GPUs in several pools of the node.
func SomeOf(state fwk.CycleState, node string) [][]string {
	data, err := state.Read(askedKey)
	if err != nil {
		return nil
	}
	if names, some := data.(*askedGPUs).some.Load(node); some {
		return names.([][]string)
	}
	return make([][]string, data.(*askedGPUs).ranks())
}

// PreFilter implements fwk.PreFilterPlugin.
func (a *Asking) PreFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	asked := &askedGPUs{requests: a.requests(pod)}
	if len(asked.requests) > maxRequests {
		return nil, fwk.NewStatus(fwk.Unschedulable, fmt.Sprintf("the pod has more than %d different requests for GPUs; at most %d are planned", maxRequests, maxRequests))
	}
	if count := selectorsOf(asked.requests); count > maxSelectors {
		return nil, fwk.NewStatus(fwk.Unschedulable, fmt.Sprintf("the pod's requests for GPUs have %d different selectors; at most %d are planned", count, maxSelectors))
	}
	state.Write(askedKey, asked)
	watches := a.watchesBesideGPUs(pod, asked)
	if len(asked.requests) == 0 && !watches {
		return a.DynamicResources.PreFilter(ctx, state, pod, nodes)
	}
	all, err := a.manager.ResourceSlices().ListWithDeviceTaintRules()
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	asked.slices, asked.partial = byNode(all)
	var ours sets.Set[string]
	if watches {
		ours, asked.watched = a.drivers(ctx, all), a.watched(pod)
	}
	hide := a.view.show(ours)
	defer hide()
	only, status := a.DynamicResources.PreFilter(ctx, state, pod, nodes)
	if g := a.agreement(pod); g != nil && status.IsSuccess() && a.view.allocated != nil {
		g.allocated, g.shared = a.view.allocated, asked.slices[""]
		asked.agreement = g
	}
	return only, status
}

// Filter implements fwk.FilterPlugin.
func (a *Asking) Filter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	data, err := state.Read(askedKey)
	if err != nil {
		return fwk.AsStatus(err)
	}
	asked := data.(*askedGPUs)
	if asked.over.Load() >= int64(spareTime) {
		bound, cancel := context.WithTimeout(ctx, usualTime)
		defer cancel()
		status := a.filter(bound, asked, state, pod, node)
		if !status.IsSuccess() && bound.Err() != nil {
			return fwk.NewStatus(fwk.Unschedulable, reasonSlow)
		}
		return status
	}
	began := time.Now()
	defer func() { asked.over.Add(max(0, int64(time.Since(began)-usualTime))) }()
	return a.filter(ctx, asked, state, pod, node)
}

func (a *Asking) filter(ctx context.Context, asked *askedGPUs, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	bound, cancel := context.WithTimeout(ctx, askingTimeout)
	defer cancel()
	why := a.unseen(bound, asked, node.Node().Name)
	if why == "" {
		why = a.narrow(bound, asked, node.Node())
	}
	if bound.Err() != nil { // some devices were not looked at, so `why` and the GPUs that were noted may be wrong
		why = tooLong
	}
	if why != "" {
		return fwk.NewStatus(fwk.Unschedulable, why)
	}
	return a.DynamicResources.Filter(ctx, state, pod, node)
}

// narrow notes which GPUs of the node the pod may have by each subrequest, if not all without taints by all of them. It
// returns why the node does not suit the pod by any, or "".
func (a *Asking) narrow(ctx context.Context, asked *askedGPUs, node *v1.Node) string {
	lists, first, suits, all := make([][]string, asked.ranks()), "", false, true
	groups, limited := make([][]Group, asked.ranks()), false
	for rank := range lists {
		found, why := a.choice(ctx, asked, rank, node.Name)
		if asked.agreement != nil && why == "" {
			found, groups[rank], why = a.agreeing(ctx, asked, rank, node, found)
			limited = limited || len(groups[rank]) > 0
		}
		if rank == 0 {
			first = why
		}
		switch {
		case why != "":
			lists[rank], all = []string{}, false
		case found.all:
			suits = true
		default:
			lists[rank], all, suits = found.names, false, true
		}
	}
	if !suits && len(lists) > 1 {
		return fmt.Sprintf("%s (and no other of %d subrequests suits)", first, len(lists))
	}
	if !suits {
		return first
	}
	if !all {
		asked.some.Store(node.Name, lists)
	}
	if limited {
		asked.groups.Store(node.Name, groups)
	}
	return ""
}

// choice returns which GPUs of the node the pod may have by the subrequests of this rank, or why none. All requests of
// a pod must have the same GPUs to choose from: the planner gives them to the pod.
func (a *Asking) choice(ctx context.Context, asked *askedGPUs, rank int, node string) (first usable, why string) {
	first.all = true
	for i, request := range asked.requests {
		choice := request.at(rank)
		found, why := a.matcher.usable(ctx, request.where, choice, asked.slices[node])
		if why == "" && choice.every {
			why = a.matcher.beyond(ctx, request.where, choice, asked, node)
		}
		if why != "" {
			return first, why
		}
		if i == 0 {
			first = found
		} else if !slices.Equal(first.names, found.names) {
			return first, fmt.Sprintf("%s may have other GPUs of the node than %s; such nodes are not planned yet", asked.requests[0].where, request.where)
		}
	}
	return first, ""
}

const tooLong = "resourceClaims: to look at the devices of the node takes too long"

var reasonSlow = fmt.Sprintf("resourceClaims: selectors and the allocator took %v more than %v for each node; ask for less, or with simpler selectors", spareTime, usualTime)

// poolOn is a pool as slices of one node have it.
type poolOn struct{ driver, pool, node string }

func poolOf(slice *resourceapi.ResourceSlice) poolOn {
	return poolOn{slice.Spec.Driver, slice.Spec.Pool.Name, ptr.Deref(slice.Spec.NodeName, "")}
}

// byNode returns the slices that count on each node, and the pools that lack some there. Slices of no single node stand at
// "". As for the in-tree allocator, the newest slices of a pool count that name the node or none. Only if these are not the
// whole pool, the slices of other nodes may complete it.
func byNode(all []*resourceapi.ResourceSlice) (found map[string][]*resourceapi.ResourceSlice, partial sets.Set[poolOn]) {
	newest, there := map[poolOn]int64{}, map[poolOn]int64{}
	type generation struct {
		poolOn
		number int64
	}
	everywhere := map[generation]int64{}
	shared := func(of poolOn) poolOn { return poolOn{of.driver, of.pool, ""} }
	for _, slice := range all {
		of := poolOf(slice)
		newest[of] = max(newest[of], slice.Spec.Pool.Generation)
		everywhere[generation{shared(of), slice.Spec.Pool.Generation}]++
	}
	found = map[string][]*resourceapi.ResourceSlice{}
	for _, slice := range all {
		if of := poolOf(slice); slice.Spec.Pool.Generation == max(newest[of], newest[shared(of)]) {
			found[of.node] = append(found[of.node], slice)
			there[of]++
		}
	}
	partial = sets.New[poolOn]()
	for node, published := range found {
		for _, slice := range published {
			of, number := poolOf(slice), slice.Spec.Pool.Generation
			count := there[of]
			if node != "" && newest[shared(of)] == number {
				count += there[shared(of)]
			}
			if whole := slice.Spec.Pool.ResourceSliceCount; count != whole && everywhere[generation{shared(of), number}] != whole {
				partial.Insert(of)
			}
		}
	}
	return found, partial
}
