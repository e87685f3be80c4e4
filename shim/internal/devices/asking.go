package devices

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
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
	// millisecond. All nodes together may take spareTime more than usualTime each.
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

// gpuRequest is a pod's request for GPUs. It has one subrequest, or those of firstAvailable in their order.
type gpuRequest struct {
	where       string // names the pod's claim and the request
	subrequests []gpuChoice
}

// at returns the subrequest of this rank. A request with fewer than others has its last one.
func (r gpuRequest) at(rank int) gpuChoice { return r.subrequests[min(rank, len(r.subrequests)-1)] }

// gpuChoice says which devices a request, or a subrequest, may have.
type gpuChoice struct {
	class       string
	counted     []string // the selectors by which devices count as GPUs
	wanted      []string // the selectors of the request and of its class
	tolerations []resourceapi.DeviceToleration
	every       bool                                            // all that match (allocationMode All)
	capacity    map[resourceapi.QualifiedName]resource.Quantity // that each device must have
}

// askedGPUs is what PreFilter leaves for Filter.
type askedGPUs struct {
	requests []gpuRequest
	slices   map[string][]*resourceapi.ResourceSlice // by node, and those of no single node by ""
	partial  sets.Set[device]                        // pools with missing slices
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
		return fwk.NewStatus(fwk.Unschedulable, reasonSlow)
	}
	began := time.Now()
	defer func() { asked.over.Add(max(0, int64(time.Since(began)-usualTime))) }()
	why := a.unseen(ctx, asked, node.Node().Name)
	if why == "" {
		why = a.narrow(ctx, asked, node.Node())
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
	bound, cancel := context.WithTimeout(ctx, askingTimeout)
	defer cancel()
	for rank := range lists {
		found, why := a.choice(ctx, asked, rank, node.Name)
		if asked.agreement != nil && why == "" {
			found, groups[rank], why = a.agreeing(bound, asked, rank, node, found)
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

var reasonSlow = fmt.Sprintf("resourceClaims: selectors and the allocator took %v more than %v for each node; ask for less, or with simpler selectors", spareTime, usualTime)

// selectorsOf returns how many different selectors have to be evaluated for the requests.
func selectorsOf(requests []gpuRequest) int {
	found := sets.New[string]()
	for _, request := range requests {
		for _, choice := range request.subrequests {
			found.Insert(choice.counted...).Insert(choice.wanted...)
		}
	}
	return len(found)
}

// byNode returns the newest slices of each pool by their node, and the pools that lack some. Slices of no
// single node stand at "".
func byNode(all []*resourceapi.ResourceSlice) (found map[string][]*resourceapi.ResourceSlice, partial sets.Set[device]) {
	newest := map[device]int64{}
	for _, slice := range all {
		of := device{driver: slice.Spec.Driver, pool: slice.Spec.Pool.Name}
		newest[of] = max(newest[of], slice.Spec.Pool.Generation)
	}
	there := map[device]int64{}
	found = map[string][]*resourceapi.ResourceSlice{}
	for _, slice := range all {
		of := device{driver: slice.Spec.Driver, pool: slice.Spec.Pool.Name}
		if slice.Spec.Pool.Generation == newest[of] {
			node := ptr.Deref(slice.Spec.NodeName, "")
			found[node] = append(found[node], slice)
			there[of]++
		}
	}
	partial = sets.New[device]()
	for _, slice := range all {
		of := device{driver: slice.Spec.Driver, pool: slice.Spec.Pool.Name}
		if slice.Spec.Pool.Generation == newest[of] && slice.Spec.Pool.ResourceSliceCount != there[of] {
			partial.Insert(of)
		}
	}
	return found, partial
}

// requests returns the pod's different requests for GPUs, and one more than maxRequests at most. Claims that do not exist
// are left out: the in-tree plugin says so.
func (a *Asking) requests(pod *v1.Pod) (found []gpuRequest) {
	for i := range pod.Spec.ResourceClaims {
		named := &pod.Spec.ResourceClaims[i]
		name, _, err := resourceclaim.Name(pod, named)
		if err != nil || name == nil {
			continue
		}
		claim, err := a.manager.ResourceClaims().Get(pod.Namespace, *name)
		if err != nil || hasItsDevices(claim) {
			continue
		}
		for _, request := range claim.Spec.Devices.Requests {
			choices := a.choices(request)
			known := func(r gpuRequest) bool { return reflect.DeepEqual(r.subrequests, choices) }
			if len(choices) > 0 && !slices.ContainsFunc(found, known) {
				found = append(found, gpuRequest{fmt.Sprintf("resourceClaims %s, request %s", named.Name, request.Name), choices})
			}
			if len(found) > maxRequests { // enough to refuse the pod: each further one is compared with all of these
				return found
			}
		}
	}
	return found
}

// watchesBesideGPUs returns whether the pod takes GPUs and also asks to watch devices. Its cycle shows it all devices of
// the node's GPU drivers without our taint.
func (a *Asking) watchesBesideGPUs(pod *v1.Pod, asked *askedGPUs) bool {
	if len(asked.requests) == 0 && !a.asksByResources(pod) {
		return false
	}
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil || name == nil {
			continue
		}
		claim, err := a.manager.ResourceClaims().Get(pod.Namespace, *name)
		if err == nil && slices.ContainsFunc(claim.Spec.Devices.Requests, watches) {
			return true
		}
	}
	return false
}

// asksByResources returns whether a container asks for GPUs by a resource.
func (a *Asking) asksByResources(pod *v1.Pod) bool {
	for _, containers := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			for name := range containers[i].Resources.Requests {
				if slices.Contains(a.gpus, string(name)) {
					return true
				}
			}
		}
	}
	return false
}

// drivers returns the drivers of devices that count as GPUs.
func (a *Asking) drivers(ctx context.Context, all []*resourceapi.ResourceSlice) sets.Set[string] {
	found := sets.New[string]()
	for _, resource := range a.gpus {
		class := a.manager.DeviceClassResolver().GetDeviceClass(v1.ResourceName(resource))
		if class == nil {
			continue
		}
		for _, slice := range all {
			driver := slice.Spec.Driver
			if !found.Has(driver) && slices.Contains(a.matcher.matching(ctx, expressions(class.Spec.Selectors), slice, nil).devices, true) {
				found.Insert(driver)
			}
		}
	}
	return found
}

// hasItsDevices returns whether a claim that belongs to no single pod is allocated: pods that name it get these devices.
func hasItsDevices(claim *resourceapi.ResourceClaim) bool {
	return claim.Status.Allocation != nil && metav1.GetControllerOf(claim) == nil
}

// choices returns the subrequests of a request for GPUs, or nil for another request. Who only watches a device
// (adminAccess) takes no GPU. The service refuses pods with subrequests for GPUs and for other devices in one request.
func (a *Asking) choices(request resourceapi.DeviceRequest) (found []gpuChoice) {
	add := func(name string, mode resourceapi.DeviceAllocationMode, selectors []resourceapi.DeviceSelector, tolerations []resourceapi.DeviceToleration, asked *resourceapi.CapacityRequirements) {
		class, err := a.manager.DeviceClasses().Get(name)
		if err != nil || class.Spec.ExtendedResourceName == nil || !slices.Contains(a.gpus, *class.Spec.ExtendedResourceName) {
			return
		}
		counts := a.manager.DeviceClassResolver().GetDeviceClass(v1.ResourceName(*class.Spec.ExtendedResourceName))
		if counts == nil {
			counts = class
		}
		wanted := append(expressions(class.Spec.Selectors), expressions(selectors)...)
		var capacity map[resourceapi.QualifiedName]resource.Quantity
		if asked != nil {
			capacity = asked.Requests
		}
		every := mode == resourceapi.DeviceAllocationModeAll
		found = append(found, gpuChoice{class.Name, expressions(counts.Spec.Selectors), wanted, tolerations, every, capacity})
	}
	if exact := request.Exactly; exact != nil && !watches(request) {
		add(exact.DeviceClassName, exact.AllocationMode, exact.Selectors, exact.Tolerations, exact.Capacity)
	}
	for i := range request.FirstAvailable {
		some := &request.FirstAvailable[i]
		add(some.DeviceClassName, some.AllocationMode, some.Selectors, some.Tolerations, some.Capacity)
	}
	return found
}

func expressions(selectors []resourceapi.DeviceSelector) (found []string) {
	for _, selector := range selectors {
		if selector.CEL != nil {
			found = append(found, selector.CEL.Expression)
		}
	}
	return found
}

// askingHandle is a handle whose DRA manager is the view.
type askingHandle struct {
	fwk.Handle
	view *othersView
}

func (h *askingHandle) SharedDRAManager() fwk.SharedDRAManager { return h.view }

// othersView shows claims without their requests for GPUs, and serves no GPUs as extended resources.
type othersView struct {
	fwk.SharedDRAManager
	asking *Asking
	// mu is held in the PreFilter of a pod with GPUs. Meanwhile devices of the drivers `ours` are shown without our taint,
	// and allocated is what the in-tree plugin was told.
	mu        sync.Mutex
	shown     bool
	ours      sets.Set[string]
	allocated *structured.AllocatedState
}

func (v *othersView) show(ours sets.Set[string]) (hide func()) {
	v.mu.Lock()
	v.shown, v.ours = true, ours
	return func() {
		v.shown, v.ours, v.allocated = false, nil, nil
		v.mu.Unlock()
	}
}

func (v *othersView) note(allocated *structured.AllocatedState) {
	if v.shown {
		v.allocated = allocated
	}
}

func (v *othersView) ResourceSlices() fwk.ResourceSliceLister { return othersSlices{v} }

type othersSlices struct{ *othersView }

func (s othersSlices) ListWithDeviceTaintRules() ([]*resourceapi.ResourceSlice, error) {
	all, err := s.SharedDRAManager.ResourceSlices().ListWithDeviceTaintRules()
	if err != nil || len(s.ours) == 0 {
		return all, err
	}
	shown := slices.Clone(all)
	for i, slice := range shown {
		if s.ours.Has(slice.Spec.Driver) {
			shown[i] = withoutOwned(slice)
		}
	}
	return shown, nil
}

func (v *othersView) ResourceClaims() fwk.ResourceClaimTracker {
	return othersClaims{v.SharedDRAManager.ResourceClaims(), v.asking}
}

func (v *othersView) DeviceClassResolver() fwk.DeviceClassResolver {
	return othersClasses{v.SharedDRAManager.DeviceClassResolver(), v.asking.gpus}
}

type othersClaims struct {
	fwk.ResourceClaimTracker
	asking *Asking
}

// Get returns the claim as it will be when its gang is planned: what an earlier attempt has left is freed before.
func (c othersClaims) Get(namespace, name string) (*resourceapi.ResourceClaim, error) {
	claim, err := c.ResourceClaimTracker.Get(namespace, name)
	if err != nil {
		return nil, err
	}
	shown := *claim // shallow: claims of the tracker never change
	if metav1.GetControllerOf(claim) != nil {
		shown.Status = resourceapi.ResourceClaimStatus{}
	}
	shown.Spec.Devices.Requests = slices.DeleteFunc(slices.Clone(claim.Spec.Devices.Requests), func(r resourceapi.DeviceRequest) bool {
		return len(c.asking.choices(r)) > 0
	})
	return &shown, nil
}

// GatherAllocatedState remembers its result, as ListAllAllocatedDevices does: it takes milliseconds in large clusters.
func (c othersClaims) GatherAllocatedState() (*structured.AllocatedState, error) {
	found, err := c.ResourceClaimTracker.GatherAllocatedState()
	if err == nil {
		c.asking.view.note(found)
	}
	return found, err
}

// ListAllAllocatedDevices is called in place of GatherAllocatedState by some settings of the in-tree plugin.
func (c othersClaims) ListAllAllocatedDevices() (sets.Set[structured.DeviceID], error) {
	found, err := c.ResourceClaimTracker.ListAllAllocatedDevices()
	if err == nil {
		c.asking.view.note(&structured.AllocatedState{
			AllocatedDevices:         found,
			AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
			AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
		})
	}
	return found, err
}

type othersClasses struct {
	fwk.DeviceClassResolver
	gpus []string
}

func (c othersClasses) GetDeviceClass(resource v1.ResourceName) *resourceapi.DeviceClass {
	if slices.Contains(c.gpus, string(resource)) {
		return nil
	}
	return c.DeviceClassResolver.GetDeviceClass(resource)
}
