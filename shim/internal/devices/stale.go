package devices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

const (
	// byPod is the index of claims for extended resources by the namespace and the UID of their pod.
	byPod = "muster.dev/extended-resource-claim-by-pod"
	// freeTimeout bounds the calls that free the claims of one pod, and the wait until the allocator sees the change.
	freeTimeout = 5 * time.Second
	seenPoll    = 5 * time.Millisecond
	// maxLeaked is how many claims for extended resources of one pod are freed. Kubernetes makes one claim for each
	// attempt. But a user can create thousands for a pod, and to free a claim costs four requests.
	maxLeaked = 8
	// reasonFreed is the reason of the condition that a pod gets when its claim is freed.
	reasonFreed = "SchedulerError"
)

// ErrBound means that the pod is bound, so its claim is in use.
var ErrBound = errors.New("the pod is bound")

var errInUse = errors.New("it is reserved for others")

// StaleDevices frees devices that are still allocated to an unbound pod by an earlier scheduling cycle. The process may
// have been killed between the claim and the Binding, for example.
//
// A claim for extended resources is deleted. Otherwise the in-tree plugin would refuse every node to the pod, until its
// PostFilter has deleted the claim; but our PostFilter ends that chain. A claim from a template is deallocated.
// Otherwise the pod would get the claim's devices, whatever is planned.
type StaleDevices struct {
	client kubernetes.Interface
	claims cache.Indexer
	pods   cache.Indexer
	synced cache.InformerSynced
	// tracker is the source of the allocator. It follows the informer.
	tracker fwk.ResourceClaimTracker
}

// NewStaleDevices must be called before the informers start.
func NewStaleDevices(handle fwk.Handle) (*StaleDevices, error) {
	informer := handle.SharedInformerFactory().Resource().V1().ResourceClaims().Informer()
	pods := handle.SharedInformerFactory().Core().V1().Pods().Informer()
	tracker := handle.SharedDRAManager().ResourceClaims()
	stale := &StaleDevices{handle.ClientSet(), informer.GetIndexer(), pods.GetIndexer(), informer.HasSynced, tracker}
	return stale, errors.Join(indexByPod(informer), indexByPodGroup(pods))
}

// addIndex adds an index to the informer, unless it has been added.
func addIndex(informer cache.SharedIndexInformer, name string, keys cache.IndexFunc) error {
	if _, has := informer.GetIndexer().GetIndexers()[name]; has {
		return nil
	}
	return informer.AddIndexers(cache.Indexers{name: keys})
}

// indexByPod adds the index byPod to the informer of ResourceClaims.
func indexByPod(claims cache.SharedIndexInformer) error {
	return addIndex(claims, byPod, func(obj any) ([]string, error) { return podKeys(obj.(*resourceapi.ResourceClaim)), nil })
}

// podKeys returns the index key of the pod that owns a claim for extended resources. It returns nil for any other claim.
func podKeys(claim *resourceapi.ResourceClaim) []string {
	owner := metav1.GetControllerOf(claim)
	if !isExtended(claim) || owner == nil || !belongsOnlyTo(claim, owner.UID) {
		return nil
	}
	return []string{keyOf(claim.Namespace, owner.UID)}
}

// isExtended returns whether kube-scheduler made the claim for a pod's extended resources.
func isExtended(claim *resourceapi.ResourceClaim) bool {
	return claim.Annotations[resourceapi.ExtendedResourceClaimAnnotation] == "true"
}

// belongsOnlyTo returns whether a claim was made for a pod and no other pod uses it.
//
// A user who can create claims can write the annotation and the owner. So a claim counts only for pods of its own
// namespace. It does not count while it is reserved for another pod, because that pod may be using the devices.
func belongsOnlyTo(claim *resourceapi.ResourceClaim, pod types.UID) bool {
	owner := metav1.GetControllerOf(claim)
	return owner != nil && owner.Kind == "Pod" && owner.UID == pod &&
		!slices.ContainsFunc(claim.Status.ReservedFor, func(user resourceapi.ResourceClaimConsumerReference) bool { return user.UID != pod })
}

// keyOf returns the key of a pod in the index byPod.
func keyOf(namespace string, uid types.UID) string { return namespace + "/" + string(uid) }

// LeakedClaims returns the claims whose devices an earlier process may have left allocated to unbound pods. It waits
// until the informer is synced. If a pod has more than maxLeaked claims for extended resources, it omits all of these.
func (s *StaleDevices) LeakedClaims(ctx context.Context) (claims []*resourceapi.ResourceClaim) {
	if !cache.WaitForCacheSync(ctx.Done(), s.synced) {
		return nil
	}
	for _, obj := range s.claims.List() {
		claim := obj.(*resourceapi.ResourceClaim)
		owner := metav1.GetControllerOf(claim)
		switch key := podKeys(claim); {
		case len(key) > 0 && len(s.extendedClaims(key[0])) <= maxLeaked:
			claims = append(claims, claim)
		case owner != nil && !isExtended(claim) && claim.Status.Allocation != nil && belongsOnlyTo(claim, owner.UID):
			claims = append(claims, claim)
		}
	}
	return claims
}

// HasDevices returns whether an unbound pod has devices. It reads memory only.
func (s *StaleDevices) HasDevices(pod *v1.Pod) bool {
	return len(s.extendedClaims(keyOf(pod.Namespace, pod.UID))) > 0 || len(s.allocatedClaims(pod)) > 0
}

// extendedClaims returns the claims for extended resources of a pod.
func (s *StaleDevices) extendedClaims(key string) []any {
	claims, err := s.claims.ByIndex(byPod, key)
	if err != nil {
		return nil // only if the index does not exist
	}
	return claims
}

// allocatedClaims returns the allocated claims that were made for the pod from templates. It asks the tracker, which
// knows this process's writes before the informer does.
func (s *StaleDevices) allocatedClaims(pod *v1.Pod) (claims []*resourceapi.ResourceClaim) {
	for _, template := range pod.Status.ResourceClaimStatuses {
		if template.ResourceClaimName == nil {
			continue
		}
		claim, err := s.tracker.Get(pod.Namespace, *template.ResourceClaimName)
		if err == nil && claim.Status.Allocation != nil && belongsOnlyTo(claim, pod.UID) {
			claims = append(claims, claim)
		}
	}
	return claims
}

// Free frees the devices of a pod that is not bound, and returns when the allocator sees the change. If the pod is bound,
// it returns ErrBound.
func (s *StaleDevices) Free(ctx context.Context, pod *v1.Pod) error {
	leaked := s.extendedClaims(keyOf(pod.Namespace, pod.UID))
	if len(leaked) > maxLeaked {
		return fmt.Errorf("pod %s/%s owns %d ResourceClaims with the annotation %s, of which Kubernetes makes one: delete them",
			pod.Namespace, pod.Name, len(leaked), resourceapi.ExtendedResourceClaimAnnotation)
	}
	claims := s.allocatedClaims(pod)
	for _, obj := range leaked {
		claims = append(claims, obj.(*resourceapi.ResourceClaim))
	}
	for _, claim := range claims {
		if err := s.FreeClaim(ctx, pod, claim); err != nil {
			return err
		}
	}
	return nil
}

// FreeClaim frees the devices of one claim, as Free does.
//
// First it writes to the pod. A Binding that an earlier process has sent may still be under way. It carries the pod's
// earlier resourceVersion, so it now meets a conflict. Only then is it safe to free the devices.
func (s *StaleDevices) FreeClaim(ctx context.Context, pod *v1.Pod, claim *resourceapi.ResourceClaim) error {
	ctx, cancel := context.WithTimeout(ctx, freeTimeout)
	defer cancel()
	err := s.fence(ctx, pod, claim.Name)
	if apierrors.IsNotFound(err) {
		return nil // the claim goes with its pod
	}
	if err == nil && isExtended(claim) {
		err = s.deleteClaim(ctx, claim)
	} else if err == nil {
		err = s.deallocate(ctx, claim, func(live *resourceapi.ResourceClaim) bool { return belongsOnlyTo(live, pod.UID) })
	}
	if err != nil {
		return fmt.Errorf("freeing ResourceClaim %s/%s of an earlier attempt: %w", claim.Namespace, claim.Name, err)
	}
	klog.FromContext(ctx).Info("Devices of an earlier attempt freed", "pod", klog.KObj(pod), "claim", klog.KObj(claim))
	return nil
}

// fence changes the pod's resourceVersion, if the pod is not bound.
func (s *StaleDevices) fence(ctx context.Context, pod *v1.Pod, claim string) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		live, err := s.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		switch {
		case err != nil:
			return err
		case live.UID != pod.UID:
			return apierrors.NewNotFound(v1.Resource("pods"), pod.Name)
		case live.Spec.NodeName != "":
			return ErrBound
		}
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": live.UID, "resourceVersion": live.ResourceVersion},
			"status": map[string]any{"conditions": []v1.PodCondition{{
				Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: reasonFreed, LastTransitionTime: metav1.Now(),
				Message: freedMessage(claim),
			}}},
		})
		if err != nil {
			return err
		}
		_, err = s.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	})
}

// freedMessage returns the message of the condition that a pod gets when this claim is freed.
func freedMessage(claim string) string {
	return fmt.Sprintf("an earlier attempt was cut off; its devices (ResourceClaim %s) are freed", claim)
}

// WasFreed returns whether a claim in the pod's status was freed after the scheduling cycle had begun. `before` is the pod
// at the beginning of the cycle. If a claim was freed, the Binding must not be sent again: this process was suspended,
// and its successor has freed the claim. A claim from a template remains after it was freed. So a condition that the pod
// already had before does not count.
func WasFreed(before, pod *v1.Pod) bool {
	var names []string
	if extended := pod.Status.ExtendedResourceClaimStatus; extended != nil {
		names = append(names, extended.ResourceClaimName)
	}
	for _, template := range pod.Status.ResourceClaimStatuses {
		if template.ResourceClaimName != nil {
			names = append(names, *template.ResourceClaimName)
		}
	}
	return slices.ContainsFunc(pod.Status.Conditions, func(c v1.PodCondition) bool {
		isIts := func(name string) bool { return c.Message == freedMessage(name) }
		isOld := func(old v1.PodCondition) bool {
			return old.Message == c.Message && old.LastTransitionTime.Equal(&c.LastTransitionTime)
		}
		return c.Type == v1.PodScheduled && c.Reason == reasonFreed && slices.ContainsFunc(names, isIts) &&
			!slices.ContainsFunc(before.Status.Conditions, isOld)
	})
}

// deleteClaim removes the finalizer, which would keep the claim, and deletes the claim, but no later claim of the same
// name.
func (s *StaleDevices) deleteClaim(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	api := s.client.ResourceV1().ResourceClaims(claim.Namespace)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		live, err := api.Get(ctx, claim.Name, metav1.GetOptions{})
		if err != nil || live.UID != claim.UID || !slices.Contains(live.Finalizers, resourceapi.Finalizer) {
			return err
		}
		live.Finalizers = slices.DeleteFunc(live.Finalizers, func(name string) bool { return name == resourceapi.Finalizer })
		_, err = api.Update(ctx, live, metav1.UpdateOptions{})
		return err
	})
	if err == nil {
		err = api.Delete(ctx, claim.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &claim.UID}})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return s.waitUntil(ctx, claim, func(*resourceapi.ResourceClaim) bool { return false })
}

// deallocate takes the devices from a claim that was made from a template, if mayFree is true for the claim as the API
// server has it. The claim goes with its owner.
func (s *StaleDevices) deallocate(ctx context.Context, claim *resourceapi.ResourceClaim, mayFree func(*resourceapi.ResourceClaim) bool) error {
	api := s.client.ResourceV1().ResourceClaims(claim.Namespace)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		live, err := api.Get(ctx, claim.Name, metav1.GetOptions{})
		if err != nil || live.UID != claim.UID || live.Status.Allocation == nil {
			return err
		}
		if !mayFree(live) {
			return errInUse
		}
		live.Status = resourceapi.ResourceClaimStatus{}
		_, err = api.UpdateStatus(ctx, live, metav1.UpdateOptions{})
		return err
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return s.waitUntil(ctx, claim, func(current *resourceapi.ResourceClaim) bool { return current.Status.Allocation == nil })
}

// waitUntil waits until isDone is true for the claim as the allocator sees it, or until the claim is gone.
func (s *StaleDevices) waitUntil(ctx context.Context, claim *resourceapi.ResourceClaim, isDone func(*resourceapi.ResourceClaim) bool) error {
	return wait.PollUntilContextCancel(ctx, seenPoll, true, func(context.Context) (bool, error) {
		current, err := s.tracker.Get(claim.Namespace, claim.Name)
		return err != nil || current.UID != claim.UID || isDone(current), nil
	})
}
