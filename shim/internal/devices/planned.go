// Package devices gives the members of a gang the devices that are planned for them, by dynamic resource allocation.
//
// PlannedResources takes the place of DynamicResources in a profile. It is the in-tree plugin, which is shown the
// planned devices alone while it looks at a member. So the in-tree allocator checks everything and keeps the last
// word, but can only choose what is planned.
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
	"k8s.io/dynamic-resource-allocation/resourceclaim"
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

// Member is what the cycle of a gang's member says about its devices.
type Member interface {
	// Planned returns the devices that the member gets on its planned node, as driver/pool/name, in the order of its
	// GPUs. It is empty if no DRA driver serves them.
	Planned() []string
	// Node returns the planned node.
	Node() string
	// Subrequest returns the number of the subrequest by which the member gets them, from 1; 0 if its claims leave no
	// choice.
	Subrequest() int
	// GPUs returns the resources that count GPUs.
	GPUs() []string
	// Memory returns the GiB of each of these devices that the member shares with others, or 0 if it gets them whole.
	Memory() uint32
	// MayBeBound returns whether a Binding was sent that the API server may have written.
	MayBeBound() bool
}

// MemberOf returns the member of a scheduling cycle, or nil if the pod is no member of a gang.
type MemberOf func(fwk.CycleState) Member

// PlannedForOthers returns the devices of these drivers that live plans have for other pods than that of the cycle, as
// driver/pool/name. Without drivers it returns those of all.
type PlannedForOthers func(state fwk.CycleState, pod *v1.Pod, drivers sets.Set[string]) []string

// Plugin is the in-tree plugin on a filtered view of the cluster's devices.
type Plugin struct {
	*dynamicresources.DynamicResources
	view      *view
	memberOf  MemberOf
	forOthers PlannedForOthers
}

var (
	_ fwk.PreFilterPlugin = &Plugin{}
	_ fwk.FilterPlugin    = &Plugin{}
	_ fwk.ReservePlugin   = &Plugin{}
)

// NewFactory returns the plugin's constructor.
//
// All profiles of a process must list the plugin in place of DynamicResources, since each tells the others what it
// allocates.
func NewFactory(memberOf MemberOf, forOthers PlannedForOthers) frameworkruntime.PluginFactory {
	var (
		mu     sync.Mutex
		shared *taken
	)
	return func(ctx context.Context, _ runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		mu.Lock()
		defer mu.Unlock()
		claims := handle.SharedInformerFactory().Resource().V1().ResourceClaims().Informer()
		if shared == nil {
			shared = newTaken()
			if err := shared.follow(claims); err != nil {
				return nil, err
			}
			if err := indexByPod(claims); err != nil {
				return nil, err
			}
		}
		published := handle.SharedInformerFactory().Resource().V1().ResourceSlices().Informer()
		if err := indexByPool(published); err != nil {
			return nil, err
		}
		features := feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
		view := &view{
			SharedDRAManager: handle.SharedDRAManager(), taken: shared, claims: claims.GetIndexer(),
			published: published.GetIndexer(), matcher: newMatcher(features),
		}
		args := &config.DynamicResourcesArgs{
			FilterTimeout:  &metav1.Duration{Duration: config.DynamicResourcesFilterTimeoutDefault},
			BindingTimeout: &metav1.Duration{Duration: config.DynamicResourcesBindingTimeoutDefault},
		}
		inTree, err := dynamicresources.New(ctx, args, &viewing{handle, view}, features)
		if err != nil {
			return nil, err
		}
		return &Plugin{inTree.(*dynamicresources.DynamicResources), view, memberOf, forOthers}, nil
	}
}

// Name implements fwk.Plugin.
func (p *Plugin) Name() string { return Name }

// PreFilter lets the in-tree plugin list the slices that its allocator will use in this cycle.
func (p *Plugin) PreFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	plan, hide, err := p.show(state, pod)
	if errors.Is(err, errNotPlanned) { // the gang is planned again, and its claims are freed before
		return nil, fwk.NewStatus(fwk.Unschedulable, err.Error())
	}
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	defer hide()
	if plan != nil && plan.subrequest > 0 {
		p.view.narrowed.Store(p.view.narrow(pod, plan, narrowedIn(state)))
		defer p.view.narrowed.Store(nil)
	}
	return p.DynamicResources.PreFilter(ctx, state, pod, nodes)
}

// Filter bounds the allocator for members, whose claims have been asked about with the same bound. A claim that was made
// again since then must not hold the scheduling thread. If the in-tree plugin refuses a node, planned devices that are
// gone are named: it was not shown them, and says only that devices lack.
func (p *Plugin) Filter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	member := p.memberOf(state)
	if member == nil {
		return p.DynamicResources.Filter(ctx, state, pod, node)
	}
	bound, cancel := context.WithTimeout(ctx, askingTimeout)
	defer cancel()
	status := p.DynamicResources.Filter(bound, state, pod, node)
	if !status.IsRejected() {
		return status
	}
	if said := p.gone(member); said != "" {
		return fwk.NewStatus(status.Code(), append(status.Reasons(), said)...)
	}
	return status
}

// gone returns which planned devices are in no ResourceSlice, or "".
func (p *Plugin) gone(member Member) string {
	plan, err := planOf(member)
	if err != nil || plan.count == 0 {
		return ""
	}
	all, err := p.view.SharedDRAManager.ResourceSlices().ListWithDeviceTaintRules()
	if err != nil {
		return ""
	}
	return gone(plan.missing(all))
}

// Reserve lets the in-tree plugin record what it will write, which is compared with the plan.
func (p *Plugin) Reserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	plan, hide, err := p.show(state, pod)
	if err != nil {
		return fwk.AsStatus(err)
	}
	defer hide()
	restore(state) // PreBind writes the claims
	status := p.DynamicResources.Reserve(ctx, state, pod, node)
	if status.IsSuccess() && plan != nil {
		return fwk.AsStatus(plan.complete())
	}
	return status
}

// show restricts the view to the plan of a member, until hide is called. Other pods see everything, and have no plan. To
// all of them the devices of other pods' plans are allocated.
func (p *Plugin) show(state fwk.CycleState, pod *v1.Pod) (of *plan, hide func(), err error) {
	forOthers := func() []string { return p.forOthers(state, pod, p.view.drivers(pod)) }
	member := p.memberOf(state)
	if member == nil {
		return nil, p.view.show(pod, nil, false, forOthers), nil
	}
	plan, err := planOf(member)
	if err != nil {
		return nil, nil, err
	}
	plan.subrequest = member.Subrequest()
	plan.isGPUs = func(name string) bool {
		class, err := p.view.DeviceClasses().Get(name)
		return err == nil && class.Spec.ExtendedResourceName != nil && slices.Contains(member.GPUs(), *class.Spec.ExtendedResourceName)
	}
	plan.isGPU = p.view.gpus(member.GPUs())
	all, err := p.view.compare(pod, plan)
	if err != nil {
		return nil, nil, err
	}
	return plan, p.view.show(pod, plan, all, forOthers), nil
}

// Unreserve keeps the claim of a member that may be bound. The in-tree plugin would delete the claim for an extended
// resource, and its devices would be given to another pod while the member runs. Stale frees such a claim when the
// fate of the Binding is known.
func (p *Plugin) Unreserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) {
	if member := p.memberOf(state); member != nil && member.MayBeBound() {
		return
	}
	p.DynamicResources.Unreserve(ctx, state, pod, node)
}

// viewing is a handle whose DRA manager is the view.
type viewing struct {
	fwk.Handle
	view *view
}

func (h *viewing) SharedDRAManager() fwk.SharedDRAManager { return h.view }

// view shows the cluster's DRA objects, less what the plan of the running cycle leaves out.
type view struct {
	fwk.SharedDRAManager
	taken     *taken
	claims    cache.Indexer
	published cache.Indexer // all slices, without what DeviceTaintRules say
	matcher   *matcher
	// mu is held while a plan is shown. There is one scheduling thread, so no cycle waits for it.
	mu  sync.Mutex
	now *plan // nil: everything is shown
	pod *v1.Pod
	// alone: the allocator deals with planned devices and nothing else in this cycle
	alone bool
	// forOthers returns the devices that are planned for other pods
	forOthers func() []string
	// narrowed are claims of the running cycle's pod, as they are shown. The queue and binding cycles read claims too, in
	// other goroutines and without mu. So nothing but this pointer changes, and no other pod's claim is in it.
	narrowed atomic.Pointer[shownClaims]
}

func (v *view) show(pod *v1.Pod, p *plan, alone bool, forOthers func() []string) (hide func()) {
	v.mu.Lock()
	v.pod, v.now, v.alone, v.forOthers = pod, p, alone, forOthers
	return func() {
		v.pod, v.now, v.alone, v.forOthers = nil, nil, false, nil
		v.mu.Unlock()
	}
}

// compare returns whether the pod asks for planned devices and no others, and notes in the plan whether its allocator
// must see other devices too. It returns an error if a claim of the pod still has others of their driver: the in-tree
// plugin would keep these.
func (v *view) compare(pod *v1.Pod, p *plan) (alone bool, err error) {
	if p.count == 0 || len(pod.Spec.ResourceClaims) == 0 {
		return p.count > 0 && !v.asksForOthers(pod, p), nil
	}
	asked, exact := v.extended(pod), true
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil || name == nil {
			return false, nil // the in-tree plugin says what is wrong
		}
		claim, err := v.SharedDRAManager.ResourceClaims().Get(pod.Namespace, *name)
		if err != nil {
			return false, nil
		}
		if hasItsDevices(claim) {
			continue
		}
		p.noteOthers(claim)
		if claim.Status.Allocation != nil {
			if err := p.check(claim); err != nil {
				return false, fmt.Errorf("claim %s/%s of an earlier attempt: %w", claim.Namespace, claim.Name, err)
			}
		}
		for _, request := range claim.Spec.Devices.Requests {
			mode, count, gpus := p.asks(request)
			switch {
			case watches(request), gpus && mode == resourceapi.DeviceAllocationModeAll:
				p.others, exact = true, false
			case mode != resourceapi.DeviceAllocationModeExactCount:
				exact = false
			default:
				asked += count
			}
		}
	}
	// The service counts the requests for GPUs. If these are all, then there are no requests for other devices.
	return exact && asked == int64(p.count), nil
}

// watches returns whether a request is for adminAccess: it takes no device, and may have one that others have.
func watches(request resourceapi.DeviceRequest) bool {
	return request.Exactly != nil && request.Exactly.AdminAccess != nil && *request.Exactly.AdminAccess
}

// extended returns how many devices a pod asks for by extended resources, over all of its containers.
func (v *view) extended(pod *v1.Pod) (count int64) {
	for _, containers := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			for name, amount := range containers[i].Resources.Requests {
				if v.DeviceClassResolver().GetDeviceClass(name) != nil {
					count += amount.Value()
				}
			}
		}
	}
	return count
}

// asksForOthers returns whether the pod asks by extended resources for devices that are no GPUs, such as network cards.
func (v *view) asksForOthers(pod *v1.Pod, p *plan) bool {
	for _, containers := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			for name := range containers[i].Resources.Requests {
				if class := v.DeviceClassResolver().GetDeviceClass(name); class != nil && !p.isGPUs(class.Name) {
					return true
				}
			}
		}
	}
	return false
}

func (v *view) ResourceSlices() fwk.ResourceSliceLister { return slicesOf{v} }

func (v *view) ResourceClaims() fwk.ResourceClaimTracker {
	return claimsOf{v.SharedDRAManager.ResourceClaims(), v}
}

type slicesOf struct{ *view }

func (s slicesOf) ListWithDeviceTaintRules() ([]*resourceapi.ResourceSlice, error) {
	all, err := s.SharedDRAManager.ResourceSlices().ListWithDeviceTaintRules()
	if err != nil || s.now == nil {
		return all, err
	}
	shown, err := s.now.restrict(all)
	if s.alone { // nothing counts as allocated then, so nothing else may be chosen
		shown = slices.DeleteFunc(shown, func(of *resourceapi.ResourceSlice) bool { return !s.now.drives(of.Spec.Driver) })
	}
	return shown, err
}

type claimsOf struct {
	fwk.ResourceClaimTracker
	view *view
}

var errNotPlanned = errors.New("device is not planned")

// Get returns a claim as the member's plan has it: with one subrequest in place of several.
func (c claimsOf) Get(namespace, name string) (*resourceapi.ResourceClaim, error) {
	if shown := c.view.narrowed.Load(); shown != nil {
		if claim := (*shown)[types.NamespacedName{Namespace: namespace, Name: name}]; claim != nil {
			return claim, nil
		}
	}
	return c.ResourceClaimTracker.Get(namespace, name)
}

// List returns the pod's own claims if nothing else matters in this cycle: the in-tree plugin looks for one that an
// earlier cycle has left.
func (c claimsOf) List() ([]*resourceapi.ResourceClaim, error) {
	if !c.view.alone {
		return c.ResourceClaimTracker.List()
	}
	found, err := c.view.claims.ByIndex(byPod, keyOf(c.view.pod.Namespace, c.view.pod.UID))
	own := make([]*resourceapi.ResourceClaim, 0, len(found))
	for _, obj := range found {
		own = append(own, obj.(*resourceapi.ResourceClaim))
	}
	return own, err
}

// GatherAllocatedState returns that nothing is allocated of what the allocator sees, if that is certain.
func (c claimsOf) GatherAllocatedState() (*structured.AllocatedState, error) {
	if c.view.alone && c.view.taken.free(c.view.now, c.view.rivals(c.view.now)) {
		return &structured.AllocatedState{
			AllocatedDevices:         sets.New[structured.DeviceID](),
			AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
			AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
		}, nil
	}
	state, err := c.ResourceClaimTracker.GatherAllocatedState()
	if err != nil {
		return nil, err
	}
	c.withPlanned(state)
	return state, c.withWatched(state.AllocatedDevices)
}

// ListAllAllocatedDevices is called in place of GatherAllocatedState by some settings of the in-tree plugin.
func (c claimsOf) ListAllAllocatedDevices() (sets.Set[structured.DeviceID], error) {
	devices, err := c.ResourceClaimTracker.ListAllAllocatedDevices()
	if err != nil {
		return nil, err
	}
	c.withPlanned(&structured.AllocatedState{AllocatedDevices: devices})
	return devices, c.withWatched(devices)
}

// withWatched adds the devices that are shown and not planned. The tracker has made the set for this call.
func (c claimsOf) withWatched(allocated sets.Set[structured.DeviceID]) error {
	if c.view.now == nil || !c.view.now.others {
		return nil
	}
	all, err := c.view.SharedDRAManager.ResourceSlices().ListWithDeviceTaintRules()
	if err != nil {
		return err
	}
	for _, of := range c.view.now.watched(all) {
		allocated.Insert(structured.MakeDeviceID(of.driver, of.pool, of.name))
	}
	return nil
}

// SignalClaimPendingAllocation receives what the in-tree plugin will write: the last chance to compare it with the
// plan. An error fails the cycle before anything is written.
func (c claimsOf) SignalClaimPendingAllocation(uid types.UID, claim *resourceapi.ResourceClaim) error {
	if plan := c.view.now; plan != nil {
		if err := plan.check(claim); err != nil {
			return fmt.Errorf("claim %s/%s: %w", claim.Namespace, claim.Name, err)
		}
	}
	c.view.taken.signal(uid, claim)
	return c.ResourceClaimTracker.SignalClaimPendingAllocation(uid, claim)
}

// AssumeClaimAfterAPICall receives what a PreBind has written.
func (c claimsOf) AssumeClaimAfterAPICall(claim *resourceapi.ResourceClaim) error {
	c.view.taken.written(claim)
	return c.ResourceClaimTracker.AssumeClaimAfterAPICall(claim)
}

// MaybeRemoveClaimPendingAllocation receives the end of what was signalled.
func (c claimsOf) MaybeRemoveClaimPendingAllocation(uid types.UID, force bool) bool {
	removed := c.ResourceClaimTracker.MaybeRemoveClaimPendingAllocation(uid, force)
	if removed {
		c.view.taken.unsignal(uid)
	}
	return removed
}
