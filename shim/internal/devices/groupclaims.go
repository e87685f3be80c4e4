package devices

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingapi "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// The resource claim controller makes one claim for all pods of a PodGroup that name the same template as the PodGroup.
// One of these pods, the holder, has the claim's GPUs in its plan. The holder is before the others in the order of the
// verdict. Its cycle allocates the claim, and its PreBind writes the allocation and reserves the claim for the PodGroup.
//
// The others are scheduled before that write. The in-tree plugin would refuse them while the allocation is pending. So the
// view shows them the claim as it will be: allocated, and reserved for the PodGroup. Then the in-tree plugin checks the
// node and writes nothing. Their PreBind waits until the holder's PreBind has written the claim.
//
// kube-scheduler's own way needs the feature gate GenericWorkload in this process, where it must be off (decision 0067).

const (
	// shareTimeout bounds the wait for the PreBind of another member. It does the same writes as a member's own PreBind.
	shareTimeout = 10 * time.Second
	podGroups    = "podgroups"
	// byPodGroup is the index of pods by the namespace and the name of their PodGroup.
	byPodGroup = "muster.dev/pod-by-podgroup"
)

// errNoHolder means that a pod shares a claim that no other pod has allocated.
var errNoHolder = errors.New("no other pod of the PodGroup has got the claim's devices")

// podGroupOf returns the PodGroup for which a pod's claim was made, or nil if the claim was not made for a PodGroup of the
// pod.
func podGroupOf(pod *v1.Pod, claim *resourceapi.ResourceClaim) *metav1.OwnerReference {
	if metav1.IsControlledBy(claim, pod) || resourceclaim.IsForPod(pod, claim, true) != nil {
		return nil
	}
	return metav1.GetControllerOf(claim)
}

// consumerOf returns the consumer for which a claim of this PodGroup is reserved.
func consumerOf(group *metav1.OwnerReference) resourceapi.ResourceClaimConsumerReference {
	return resourceapi.ResourceClaimConsumerReference{
		APIGroup: schedulingapi.GroupName, Resource: podGroups, Name: group.Name, UID: group.UID,
	}
}

// sharedLister answers for PodGroups, which this process does not watch. The in-tree plugin reads which claims of a pod
// are its PodGroup's. The claims' owners say so.
type sharedLister struct {
	fwk.SharedLister
	manager fwk.SharedDRAManager
	pod     *v1.Pod // of the running PreFilter
}

func (l sharedLister) PodGroups() fwk.PodGroupLister { return l }

// Get returns the PodGroup of the running PreFilter's pod, with the claims of this pod.
func (l sharedLister) Get(namespace, name string) (*schedulingapi.PodGroup, error) {
	group := &schedulingapi.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if l.pod == nil {
		return group, nil
	}
	for reference, claim := range claimsOf(l.manager, l.pod) {
		index := slices.IndexFunc(l.pod.Spec.ResourceClaims, func(entry v1.PodResourceClaim) bool { return entry.Name == reference })
		template := l.pod.Spec.ResourceClaims[index].ResourceClaimTemplateName
		if claim == nil || template == nil {
			continue
		}
		if owner := podGroupOf(l.pod, claim); owner != nil {
			group.UID = owner.UID
			group.Spec.ResourceClaims = append(group.Spec.ResourceClaims, schedulingapi.PodGroupResourceClaim{Name: reference, ResourceClaimTemplateName: template})
		}
	}
	return group, nil
}

// borrowedClaims are the claims of a cycle that another pod of the PodGroup allocates.
type borrowedClaims struct {
	claims   []*resourceapi.ResourceClaim
	reserved bool // Reserve has run
}

const borrowedKey fwk.StateKey = "muster.dev/borrowed-claims"

// Clone implements fwk.StateData. All clones share the claims.
func (b *borrowedClaims) Clone() fwk.StateData { return b }

// borrowedBy returns the borrowed claims of a cycle, or nil.
func borrowedBy(state fwk.CycleState) *borrowedClaims {
	data, err := state.Read(borrowedKey)
	if err != nil {
		return nil
	}
	return data.(*borrowedClaims)
}

// borrowClaims shows a member the claims of its PodGroup that another pod is about to write, and records them in the cycle.
// A member may not allocate a claim for GPUs if its plan has no devices: the holder must do this, with the planned devices.
func (v *cycleView) borrowClaims(state fwk.CycleState, cycle *shownCycle) error {
	borrowed := &borrowedClaims{}
	state.Write(borrowedKey, borrowed)
	for _, claim := range claimsOf(v.SharedDRAManager, cycle.pod) {
		if claim == nil || claim.Status.Allocation != nil {
			continue
		}
		group := podGroupOf(cycle.pod, claim)
		withGPUs := slices.ContainsFunc(claim.Spec.Devices.Requests, cycle.plan.takesGPUs)
		if group == nil || withGPUs && cycle.plan.plannedCount > 0 { // the holder's claims have all its GPUs
			continue
		}
		allocation := v.ResourceClaimTracker.GetPendingAllocation(claim.UID)
		if allocation == nil && (!withGPUs || v.isAllocated(claim)) {
			continue // this pod allocates it, or the PreBind of another pod has just written it
		}
		if allocation == nil {
			return fmt.Errorf("claim %s/%s: %w", claim.Namespace, claim.Name, errNoHolder)
		}
		shown := claim.DeepCopy()
		shown.Status.Allocation = allocation
		shown.Status.ReservedFor = append(shown.Status.ReservedFor, consumerOf(group))
		if cycle.claims == nil {
			cycle.claims = shownClaims{}
		}
		cycle.claims[types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}] = shown
		borrowed.claims = append(borrowed.claims, shown)
	}
	return nil
}

// isAllocated returns whether a claim has an allocation by now.
func (v *cycleView) isAllocated(claim *resourceapi.ResourceClaim) bool {
	current, err := v.ResourceClaimTracker.Get(claim.Namespace, claim.Name)
	return err == nil && current.UID == claim.UID && current.Status.Allocation != nil
}

// takesGPUs returns whether a request is for GPUs, and does not only watch them.
func (p *plan) takesGPUs(request resourceapi.DeviceRequest) bool {
	return !hasAdminAccess(request) && p.isForGPUs(request)
}

// reserve counts this pod as a sharer of the borrowed claims' pending allocations. The in-tree Unreserve of each sharer
// takes back one count, and the last one ends the pending allocation.
func (b *borrowedClaims) reserve(tracker fwk.ResourceClaimTracker) error {
	b.reserved = true
	for _, claim := range b.claims {
		if err := tracker.SignalClaimPendingAllocation(claim.UID, claim); err != nil {
			return err
		}
	}
	return nil
}

// waitUntilWritten waits until another pod's PreBind has written the borrowed claims, or the plan is void.
func (b *borrowedClaims) waitUntilWritten(ctx context.Context, tracker fwk.ResourceClaimTracker, void <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, shareTimeout)
	defer cancel()
	for _, claim := range b.claims {
		err := wait.PollUntilContextCancel(ctx, seenPoll, true, func(context.Context) (bool, error) {
			current, err := tracker.Get(claim.Namespace, claim.Name)
			if err != nil {
				return false, err
			}
			if current.UID == claim.UID && current.Status.Allocation != nil {
				return true, nil
			}
			select {
			case <-void:
				return false, errNoHolder
			default:
				return false, nil
			}
		})
		if err != nil {
			return fmt.Errorf("waiting for the devices of claim %s/%s: %w", claim.Namespace, claim.Name, err)
		}
	}
	return nil
}

// indexByPodGroup adds the index byPodGroup to the informer of pods.
func indexByPodGroup(pods cache.SharedIndexInformer) error {
	return addIndex(pods, byPodGroup, func(obj any) ([]string, error) {
		pod := obj.(*v1.Pod)
		if !isInPodGroup(pod) {
			return nil, nil
		}
		return []string{pod.Namespace + "/" + *pod.Spec.SchedulingGroup.PodGroupName}, nil
	})
}

func isInPodGroup(pod *v1.Pod) bool {
	return pod.Spec.SchedulingGroup != nil && pod.Spec.SchedulingGroup.PodGroupName != nil
}

// isUsing returns whether a pod uses the claims of its PodGroup: it is bound and has not ended.
func isUsing(pod *v1.Pod) bool { return pod.Spec.NodeName != "" && !podutil.IsPodTerminal(pod) }

// podsOfGroup returns the pods of a pod's PodGroup, as the informer has them.
func podsOfGroup(pods cache.Indexer, pod *v1.Pod) (members []*v1.Pod) {
	if !isInPodGroup(pod) {
		return nil
	}
	objects, err := pods.ByIndex(byPodGroup, pod.Namespace+"/"+*pod.Spec.SchedulingGroup.PodGroupName)
	if err != nil {
		return nil // only if the index does not exist
	}
	for _, obj := range objects {
		members = append(members, obj.(*v1.Pod))
	}
	return members
}

// isInUse returns whether a pod of this pod's PodGroup uses the PodGroup's claims.
func isInUse(pods cache.Indexer, pod *v1.Pod) bool {
	return slices.ContainsFunc(podsOfGroup(pods, pod), isUsing)
}

// keepsDevices returns whether a pod gets the devices that its claim has, because other pods use the claim.
func (a *AdvanceCheck) keepsDevices(pod *v1.Pod, claim *resourceapi.ResourceClaim) bool {
	return isSharedAndAllocated(claim) ||
		claim.Status.Allocation != nil && podGroupOf(pod, claim) != nil && isInUse(a.pods, pod)
}

// isReservedOnlyFor returns whether a claim is reserved for no consumer but this PodGroup.
func isReservedOnlyFor(claim *resourceapi.ResourceClaim, group *metav1.OwnerReference) bool {
	return !slices.ContainsFunc(claim.Status.ReservedFor, func(user resourceapi.ResourceClaimConsumerReference) bool { return user.UID != group.UID })
}

// IdleGroupClaims returns the allocated claims of a pod's PodGroup that no pod of the PodGroup uses. It asks the tracker,
// which knows this process's writes before the informer does.
func (s *StaleDevices) IdleGroupClaims(pod *v1.Pod) (claims []*resourceapi.ResourceClaim) {
	if !isInPodGroup(pod) || len(pod.Spec.ResourceClaims) == 0 || isInUse(s.pods, pod) {
		return nil
	}
	for _, template := range pod.Status.ResourceClaimStatuses {
		if template.ResourceClaimName == nil {
			continue
		}
		claim, err := s.tracker.Get(pod.Namespace, *template.ResourceClaimName)
		if err != nil || claim.Status.Allocation == nil {
			continue
		}
		if group := podGroupOf(pod, claim); group != nil && isReservedOnlyFor(claim, group) {
			claims = append(claims, claim)
		}
	}
	return claims
}

// PodsOfGroup returns the pods of a pod's PodGroup, as the informer has them.
func (s *StaleDevices) PodsOfGroup(pod *v1.Pod) []*v1.Pod { return podsOfGroup(s.pods, pod) }

// FreeGroupClaim frees the devices of a claim of a pod's PodGroup that no pod of the PodGroup uses. It returns when the
// allocator sees the change. isOurs returns whether this scheduler binds a pod: the write to a pod that stops a Binding
// stops no other scheduler's.
func (s *StaleDevices) FreeGroupClaim(ctx context.Context, pod *v1.Pod, claim *resourceapi.ResourceClaim, isOurs func(*v1.Pod) bool) error {
	ctx, cancel := context.WithTimeout(ctx, freeTimeout)
	defer cancel()
	group := podGroupOf(pod, claim)
	err := s.fenceGroup(ctx, pod, claim.Name, isOurs)
	if err == nil {
		err = s.deallocate(ctx, claim, func(live *resourceapi.ResourceClaim) bool {
			return metav1.GetControllerOf(live) != nil && metav1.GetControllerOf(live).UID == group.UID && isReservedOnlyFor(live, group)
		})
	}
	if err != nil {
		return fmt.Errorf("freeing ResourceClaim %s/%s of PodGroup %s: %w", claim.Namespace, claim.Name, group.Name, err)
	}
	klog.FromContext(ctx).Info("Devices of an earlier attempt freed", "podGroup", klog.KRef(pod.Namespace, group.Name), "claim", klog.KObj(claim))
	return nil
}

// fenceGroup changes the resourceVersion of all pods of a pod's PodGroup that are not bound. It returns an error if a pod
// uses the claims of the PodGroup. It asks the API server, because a pod may be bound that the informer shows unbound.
func (s *StaleDevices) fenceGroup(ctx context.Context, pod *v1.Pod, claim string, isOurs func(*v1.Pod) bool) error {
	live, err := s.client.CoreV1().Pods(pod.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	members := slices.DeleteFunc(live.Items, func(other v1.Pod) bool {
		return !isInPodGroup(&other) || *other.Spec.SchedulingGroup.PodGroupName != *pod.Spec.SchedulingGroup.PodGroupName || podutil.IsPodTerminal(&other)
	})
	for i := range members {
		if isUsing(&members[i]) || !isOurs(&members[i]) {
			return fmt.Errorf("%w, such as pod %s", errInUse, members[i].Name)
		}
	}
	for i := range members {
		if err := s.fence(ctx, &members[i], claim); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}
