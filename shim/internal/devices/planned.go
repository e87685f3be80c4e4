// Package devices gives the members of a gang the devices that are planned for them, by dynamic resource allocation.
//
// PlannedResources takes the place of DynamicResources in a profile. It is the in-tree plugin on a view of the cluster
// (cycleView). During the cycle of a member the view shows only the planned devices. So the in-tree allocator checks
// everything and has the last word, but can choose nothing else. AdvanceCheck is the in-tree plugin on another view
// (questionView). It checks a pod before the pod is planned.
//
// The views show each object to each kind of pod as follows. "Member" is a gang's member in its cycle, "other" is
// another pod in its cycle, and "question" is a pod that is not planned yet.
//
//	object       pod       what it sees                                   reason
//	slices       member    planned devices of the planned drivers         the allocator must choose these
//	                       with showUnplanned: others, as allocated       adminAccess, or allocationMode All
//	                       all devices of other drivers                   the member may request them too
//	             other     all
//	             question  all, without our taint for adminAccess         its cycle will show them like this
//	claims       member    with the planned subrequest alone              the allocator would take the first that fits
//	                       of its PodGroup: as another member writes it   the write comes in PreBind (groupclaims.go)
//	             other     all
//	             question  without requests for GPUs                      the planner counts GPUs
//	                       without an earlier attempt's allocation        it is freed before the gang is planned again
//	allocations  member    none, if no claim has a planned device         to gather them takes milliseconds
//	                       else all, and devices of other pods' plans if  these plans are not written yet
//	                       it has requests for other devices
//	             other     all, and devices of other pods' plans          these plans are not written yet
//	             question  all
//	GPU classes  question  none for extended resources                    the planner counts GPUs
package devices

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/structured"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
)

// Name is the plugin's name in profiles. It differs from DynamicResources, because a plugin with the name of an
// in-tree plugin cannot be registered.
const Name = "PlannedResources"

// Member describes the devices of a gang's member to the plugin, at one point of the member's cycle.
type Member struct {
	// Planned are the devices that the member gets on its planned node, as driver/pool/name, in the order of its GPUs. It
	// is empty if no DRA driver serves them.
	Planned []string
	// Node is the planned node.
	Node string
	// Subrequest is the number of the subrequest by which the member gets its devices, from 1. It is 0 if the member's
	// claims leave no choice.
	Subrequest int
	// GPUs are the names of the resources that count GPUs.
	GPUs []string
	// Memory is the GiB that the member gets of each device if it shares the devices, or 0 if it gets whole devices.
	Memory uint32
	// MayBeBound means that a Binding was sent that the API server may have written.
	MayBeBound bool
	// Void is closed when the plan is void.
	Void <-chan struct{}
}

// MemberOf returns the member of a scheduling cycle, or nil if the pod is no member of a gang.
type MemberOf func(fwk.CycleState) *Member

// PlannedForOthers returns the devices that live plans have for pods other than the cycle's, as driver/pool/name. If
// drivers is nil, it returns the devices of all drivers.
type PlannedForOthers func(state fwk.CycleState, pod *v1.Pod, drivers sets.Set[string]) []string

// Plugin is the in-tree plugin on a filtered view of the cluster's devices.
type Plugin struct {
	*dynamicresources.DynamicResources
	view             *cycleView
	memberOf         MemberOf
	plannedForOthers PlannedForOthers
}

var (
	_ fwk.PreFilterPlugin = &Plugin{}
	_ fwk.FilterPlugin    = &Plugin{}
	_ fwk.ReservePlugin   = &Plugin{}
	_ fwk.PreBindPlugin   = &Plugin{}
)

// NewFactory returns the plugin's constructor.
//
// All profiles of a process must list the plugin in place of DynamicResources, because the profiles tell each other
// which devices they allocate.
func NewFactory(memberOf MemberOf, plannedForOthers PlannedForOthers) frameworkruntime.PluginFactory {
	var (
		mu     sync.Mutex
		shared *allocatedDevices
	)
	return func(ctx context.Context, _ runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		mu.Lock()
		defer mu.Unlock()
		claims := handle.SharedInformerFactory().Resource().V1().ResourceClaims().Informer()
		if shared == nil {
			shared = newAllocatedDevices()
			if err := shared.followClaims(claims); err != nil {
				return nil, err
			}
			if err := indexByPod(claims); err != nil {
				return nil, err
			}
		}
		published := SliceInformer(handle.SharedInformerFactory())
		if err := indexByPool(published); err != nil {
			return nil, err
		}
		features := inTreeFeatures()
		manager := handle.SharedDRAManager()
		view := &cycleView{
			SharedDRAManager: manager, ResourceClaimTracker: manager.ResourceClaims(), allocated: shared, claims: claims.GetIndexer(),
			published: published.GetIndexer(), matcher: newMatcher(features),
		}
		args := &config.DynamicResourcesArgs{
			FilterTimeout:  &metav1.Duration{Duration: config.DynamicResourcesFilterTimeoutDefault},
			BindingTimeout: &metav1.Duration{Duration: config.DynamicResourcesBindingTimeoutDefault},
		}
		inTree, err := dynamicresources.New(ctx, args, viewHandle{handle, view, func() *v1.Pod { return view.cycle().pod }}, features)
		if err != nil {
			return nil, err
		}
		return &Plugin{inTree.(*dynamicresources.DynamicResources), view, memberOf, plannedForOthers}, nil
	}
}

// inTreeFeatures returns the features of the in-tree plugin. It accepts claims of PodGroups whether or not the feature
// gate is on in this process, because such claims exist if the gate is on in the API server.
func inTreeFeatures() feature.Features {
	features := feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
	features.EnableDRAWorkloadResourceClaims = true
	return features
}

// Name implements fwk.Plugin.
func (p *Plugin) Name() string { return Name }

// PreFilter lets the in-tree plugin list the slices that its allocator will use in this cycle.
func (p *Plugin) PreFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	cycle, err := p.cycleToShow(state, pod)
	if errors.Is(err, errNotPlanned) { // the gang is planned again, and its claims are freed before
		return nil, fwk.NewStatus(fwk.Unschedulable, err.Error())
	}
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	if cycle.plan != nil && cycle.plan.subrequest > 0 {
		cycle.claims = p.view.narrowClaims(pod, cycle.plan, narrowedClaimsOf(state))
	}
	if cycle.plan != nil {
		if err := p.view.borrowClaims(state, cycle); err != nil {
			return nil, fwk.NewStatus(fwk.Unschedulable, err.Error())
		}
	}
	p.view.shown.Store(cycle)
	defer p.view.shown.Store(nil)
	return p.DynamicResources.PreFilter(ctx, state, pod, nodes)
}

// Filter bounds the allocator's time for members. AdvanceCheck had the same bound, but a claim may have been created again
// since then, and it must not hold the scheduling thread. If the in-tree plugin refuses a node, Filter adds the planned
// devices that no slice contains. The in-tree plugin was not shown these devices, so it says only that devices lack.
func (p *Plugin) Filter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	member := p.memberOf(state)
	if member == nil {
		return p.DynamicResources.Filter(ctx, state, pod, node)
	}
	nodeCtx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	status := p.DynamicResources.Filter(nodeCtx, state, pod, node)
	if !status.IsRejected() {
		return status
	}
	if missing := p.describeMissingDevices(member); missing != "" {
		return fwk.NewStatus(status.Code(), append(status.Reasons(), missing)...)
	}
	return status
}

// describeMissingDevices returns a sentence that names the planned devices in no ResourceSlice, or "".
func (p *Plugin) describeMissingDevices(member *Member) string {
	plan, err := planOf(member)
	if err != nil || plan.plannedCount == 0 {
		return ""
	}
	all, err := p.view.slices.list(p.view.SharedDRAManager)
	if err != nil {
		return ""
	}
	return describeMissing(plan.missingDevices(all))
}

// Reserve lets the in-tree plugin record the allocation that it will write. It fails if this is not the planned one.
func (p *Plugin) Reserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	cycle, err := p.cycleToShow(state, pod)
	if err != nil {
		return fwk.AsStatus(err)
	}
	p.view.shown.Store(cycle)
	defer p.view.shown.Store(nil)
	restoreRequests(state) // PreBind writes the claims
	if borrowed := borrowedBy(state); borrowed != nil {
		if err := borrowed.reserve(p.view.ResourceClaimTracker); err != nil {
			return fwk.AsStatus(err)
		}
	}
	status := p.DynamicResources.Reserve(ctx, state, pod, node)
	if status.IsSuccess() && cycle.plan != nil {
		return fwk.AsStatus(cycle.plan.checkComplete())
	}
	return status
}

// cycleToShow returns what the view shows to a pod in its cycle. A member sees the devices of its plan. Any other pod has
// no plan and sees all devices. Both kinds of pods see the devices of other pods' plans as allocated.
func (p *Plugin) cycleToShow(state fwk.CycleState, pod *v1.Pod) (*shownCycle, error) {
	cycle := &shownCycle{pod: pod, plannedForOthers: func() []string { return p.plannedForOthers(state, pod, p.view.driversFor(pod)) }}
	member := p.memberOf(state)
	if member == nil {
		return cycle, nil
	}
	plan, err := planOf(member)
	if err != nil {
		return nil, err
	}
	plan.isGPUClass = func(name string) bool {
		class, err := p.view.DeviceClasses().Get(name)
		return err == nil && class.Spec.ExtendedResourceName != nil && slices.Contains(member.GPUs, *class.Spec.ExtendedResourceName)
	}
	plan.isGPU = p.view.gpuPredicate(member.GPUs)
	cycle.plan = plan
	cycle.onlyPlanned, err = p.view.compareWithPlan(pod, plan)
	return cycle, err
}

// Unreserve keeps the claim of a member that may be bound. The in-tree plugin would delete the claim for an extended
// resource. Another pod would then get its devices while the member runs. StaleDevices frees such a claim when the fate
// of the Binding is known.
func (p *Plugin) Unreserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) {
	if member := p.memberOf(state); member != nil && member.MayBeBound {
		return
	}
	// Without Reserve, the pod has no share in a pending allocation. The in-tree plugin would take back another pod's share.
	if borrowed := borrowedBy(state); borrowed != nil && len(borrowed.claims) > 0 && !borrowed.reserved {
		return
	}
	p.DynamicResources.Unreserve(ctx, state, pod, node)
}

// PreBind lets the in-tree plugin write the claims that this pod has allocated, and waits for those that another member
// of its PodGroup writes.
func (p *Plugin) PreBind(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	status := p.DynamicResources.PreBind(ctx, state, pod, node)
	if borrowed := borrowedBy(state); borrowed != nil && status.IsSuccess() {
		return fwk.AsStatus(borrowed.waitUntilWritten(ctx, p.view.ResourceClaimTracker, p.memberOf(state).Void))
	}
	return status
}

// viewHandle is a handle whose DRA manager is a view. pod returns the pod of the running PreFilter.
type viewHandle struct {
	fwk.Handle
	view fwk.SharedDRAManager
	pod  func() *v1.Pod
}

func (h viewHandle) SharedDRAManager() fwk.SharedDRAManager { return h.view }

func (h viewHandle) SnapshotSharedLister() fwk.SharedLister {
	return sharedLister{h.Handle.SnapshotSharedLister(), h.Handle.SharedDRAManager(), h.pod()}
}

// cycleView shows the cluster's DRA objects as the pod of the running cycle may see them (see the package comment). It is
// the DRA manager of the in-tree plugin, and the manager's lister of slices and tracker of claims.
type cycleView struct {
	fwk.SharedDRAManager
	fwk.ResourceClaimTracker
	allocated *allocatedDevices
	claims    cache.Indexer
	published cache.Indexer // all slices, without the taints of DeviceTaintRules
	matcher   *matcher
	slices    slicePairs
	// shown is set while a PreFilter or Reserve runs, and else nil. There is one scheduling thread, so no other cycle runs
	// meanwhile. But the queue and the binding cycles read claims in other goroutines. So only this pointer changes.
	shown atomic.Pointer[shownCycle]
}

// shownCycle has the plan, devices and claims that the view shows to the pod of the running cycle. The zero value shows
// all devices.
type shownCycle struct {
	pod              *v1.Pod
	plan             *plan           // nil: all devices are shown
	onlyPlanned      bool            // all requests are for planned devices, so nothing else is shown
	plannedForOthers func() []string // returns the devices that are planned for other pods
	claims           shownClaims     // claims of this pod alone, with one subrequest in place of several
}

// cycle returns what is shown now. Between cycles it is empty: then all devices are shown.
func (v *cycleView) cycle() shownCycle {
	if shown := v.shown.Load(); shown != nil {
		return *shown
	}
	return shownCycle{}
}

// compareWithPlan returns whether the pod asks for planned devices and no others. It records in the plan whether the
// allocator must see other devices too. It returns an error if a claim of the pod still has unplanned devices of a
// planned driver, because the in-tree plugin would keep them.
func (v *cycleView) compareWithPlan(pod *v1.Pod, p *plan) (onlyPlanned bool, err error) {
	if p.plannedCount == 0 || len(pod.Spec.ResourceClaims) == 0 {
		return p.plannedCount > 0 && !v.asksForOtherDevices(pod, p), nil
	}
	requested, exact := v.countExtendedDevices(pod), true
	for _, claim := range claimsOf(v.SharedDRAManager, pod) {
		if claim == nil {
			return false, nil
		}
		if isSharedAndAllocated(claim) {
			continue
		}
		p.noteOtherRequests(claim)
		if claim.Status.Allocation != nil {
			if err := p.checkAllocation(claim); err != nil {
				return false, fmt.Errorf("claim %s/%s of an earlier attempt: %w", claim.Namespace, claim.Name, err)
			}
		}
		for _, request := range claim.Spec.Devices.Requests {
			mode, count, gpus := p.requestedDevices(request)
			switch {
			case hasAdminAccess(request), gpus && mode == resourceapi.DeviceAllocationModeAll:
				p.showUnplanned, exact = true, false
			case mode != resourceapi.DeviceAllocationModeExactCount:
				exact = false
			default:
				requested += count
			}
		}
	}
	// The service has counted the requests for GPUs. If the pod requests no more devices, it requests no other devices.
	return exact && requested == int64(p.plannedCount), nil
}

// hasAdminAccess returns whether a request is for adminAccess. Such a request takes no device away from other claims.
func hasAdminAccess(request resourceapi.DeviceRequest) bool {
	return request.Exactly != nil && request.Exactly.AdminAccess != nil && *request.Exactly.AdminAccess
}

// countExtendedDevices returns how many devices a pod asks for by extended resources, over all of its containers.
func (v *cycleView) countExtendedDevices(pod *v1.Pod) (count int64) {
	for name, amount := range RequestedResources(pod) {
		if v.DeviceClassResolver().GetDeviceClass(name) != nil {
			count += amount.Value()
		}
	}
	return count
}

// asksForOtherDevices returns whether the pod asks by extended resources for devices that are no GPUs, such as network
// cards.
func (v *cycleView) asksForOtherDevices(pod *v1.Pod, p *plan) bool {
	for name := range RequestedResources(pod) {
		if class := v.DeviceClassResolver().GetDeviceClass(name); class != nil && !p.isGPUClass(class.Name) {
			return true
		}
	}
	return false
}

func (v *cycleView) ResourceSlices() fwk.ResourceSliceLister { return v }

func (v *cycleView) ResourceClaims() fwk.ResourceClaimTracker { return v }

func (v *cycleView) ListWithDeviceTaintRules() ([]*inTreeSlice, error) {
	cycle := v.cycle()
	if cycle.plan == nil {
		return v.SharedDRAManager.ResourceSlices().ListWithDeviceTaintRules()
	}
	all, err := v.slices.list(v.SharedDRAManager)
	if err != nil {
		return nil, err
	}
	shown, err := cycle.plan.restrict(all)
	if err != nil {
		return nil, err
	}
	if cycle.onlyPlanned { // the allocator then sees no allocations, so it must see no other devices
		shown = slices.DeleteFunc(shown, func(slice *resourceapi.ResourceSlice) bool { return !cycle.plan.hasDriver(slice.Spec.Driver) })
	}
	return v.slices.inTree(shown), nil
}

var errNotPlanned = errors.New("device is not planned")

// Get returns a claim as the member's plan has it: with one subrequest in place of several.
func (v *cycleView) Get(namespace, name string) (*resourceapi.ResourceClaim, error) {
	if claim := v.cycle().claims[types.NamespacedName{Namespace: namespace, Name: name}]; claim != nil {
		return claim, nil
	}
	return v.ResourceClaimTracker.Get(namespace, name)
}

// List returns only the pod's own claims if the cycle needs only planned devices. The in-tree plugin calls List to find
// a claim that an earlier cycle left.
func (v *cycleView) List() ([]*resourceapi.ResourceClaim, error) {
	cycle := v.cycle()
	if !cycle.onlyPlanned {
		return v.ResourceClaimTracker.List()
	}
	objects, err := v.claims.ByIndex(byPod, keyOf(cycle.pod.Namespace, cycle.pod.UID))
	claims := make([]*resourceapi.ResourceClaim, 0, len(objects))
	for _, obj := range objects {
		claims = append(claims, obj.(*resourceapi.ResourceClaim))
	}
	return claims, err
}

// newAllocatedState returns the state in which these devices are allocated as a whole.
func newAllocatedState(devices sets.Set[structured.DeviceID]) *structured.AllocatedState {
	return &structured.AllocatedState{
		AllocatedDevices:         devices,
		AllocatedSharedDeviceIDs: sets.New[sharedID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
}

// GatherAllocatedState returns an empty state if it is certain that no device that the allocator sees is allocated.
func (v *cycleView) GatherAllocatedState() (*structured.AllocatedState, error) {
	cycle := v.cycle()
	if cycle.onlyPlanned && v.allocated.areFree(cycle.plan, v.competingDevices(cycle.plan)) {
		return newAllocatedState(sets.New[structured.DeviceID]()), nil
	}
	state, err := v.ResourceClaimTracker.GatherAllocatedState()
	if err != nil {
		return nil, err
	}
	cycle.addPlannedForOthers(state)
	return state, v.addShownUnplanned(cycle.plan, state.AllocatedDevices)
}

// ListAllAllocatedDevices is called in place of GatherAllocatedState by some settings of the in-tree plugin.
func (v *cycleView) ListAllAllocatedDevices() (sets.Set[structured.DeviceID], error) {
	devices, err := v.ResourceClaimTracker.ListAllAllocatedDevices()
	if err != nil {
		return nil, err
	}
	cycle := v.cycle()
	cycle.addPlannedForOthers(&structured.AllocatedState{AllocatedDevices: devices})
	return devices, v.addShownUnplanned(cycle.plan, devices)
}

// addShownUnplanned adds the devices that are shown but not planned to the allocated ones. The tracker has created this
// set for this call alone.
func (v *cycleView) addShownUnplanned(p *plan, allocated sets.Set[structured.DeviceID]) error {
	if p == nil || !p.showUnplanned {
		return nil
	}
	all, err := v.slices.list(v.SharedDRAManager)
	if err != nil {
		return err
	}
	for _, shown := range p.shownUnplanned(all) {
		allocated.Insert(structured.MakeDeviceID(shown.driver, shown.pool, shown.name))
	}
	return nil
}

// SignalClaimPendingAllocation receives the allocation that the in-tree plugin will write, and compares it with the
// plan. This is the last chance: an error fails the cycle before anything is written.
func (v *cycleView) SignalClaimPendingAllocation(uid types.UID, claim *resourceapi.ResourceClaim) error {
	if plan := v.cycle().plan; plan != nil {
		if err := plan.checkAllocation(claim); err != nil {
			return fmt.Errorf("claim %s/%s: %w", claim.Namespace, claim.Name, err)
		}
	}
	v.allocated.recordSignalled(uid, claim)
	return v.ResourceClaimTracker.SignalClaimPendingAllocation(uid, claim)
}

// AssumeClaimAfterAPICall receives a claim that a PreBind has written.
func (v *cycleView) AssumeClaimAfterAPICall(claim *resourceapi.ResourceClaim) error {
	v.allocated.recordWritten(claim)
	return v.ResourceClaimTracker.AssumeClaimAfterAPICall(claim)
}

// MaybeRemoveClaimPendingAllocation receives the end of a signalled allocation.
func (v *cycleView) MaybeRemoveClaimPendingAllocation(uid types.UID, force bool) bool {
	removed := v.ResourceClaimTracker.MaybeRemoveClaimPendingAllocation(uid, force)
	if removed {
		v.allocated.forgetSignalled(uid)
	}
	return removed
}
