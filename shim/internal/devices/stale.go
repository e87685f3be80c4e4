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
	// freeTimeout bounds the calls that free the claims of one pod, and the wait until the allocator has seen it.
	freeTimeout = 5 * time.Second
	seenPoll    = 5 * time.Millisecond
	// maxLeft is how many claims for extended resources of one pod are freed. Kubernetes makes one for each attempt.
	// Each costs four requests, and a user can create thousands for a pod.
	maxLeft = 8
	// reasonFreed is the reason of the condition that a pod gets when its claim is freed.
	reasonFreed = "SchedulerError"
)

// ErrBound means that the pod is bound, so its claim is in use.
var ErrBound = errors.New("the pod is bound")

var errInUse = errors.New("it is reserved for others")

// Stale frees the devices that an earlier scheduling cycle has left to a pod, for example because the process was killed
// between the claim and the Binding. A claim for extended resources is deleted: the in-tree plugin refuses every node to
// its pod until its PostFilter has deleted the claim, and our PostFilter ends that chain. A claim that was made from a
// template is deallocated: otherwise the pod would get its devices whatever is planned.
type Stale struct {
	client kubernetes.Interface
	claims cache.Indexer
	synced cache.InformerSynced
	// tracker is what the allocator reads; it follows the informer.
	tracker fwk.ResourceClaimTracker
}

// NewStale must be called before the informers start.
func NewStale(handle fwk.Handle) (*Stale, error) {
	informer := handle.SharedInformerFactory().Resource().V1().ResourceClaims().Informer()
	tracker := handle.SharedDRAManager().ResourceClaims()
	return &Stale{handle.ClientSet(), informer.GetIndexer(), informer.HasSynced, tracker}, indexByPod(informer)
}

// indexByPod adds the index byPod to the informer, unless it has been added.
func indexByPod(claims cache.SharedIndexInformer) error {
	if _, has := claims.GetIndexer().GetIndexers()[byPod]; has {
		return nil
	}
	return claims.AddIndexers(cache.Indexers{byPod: func(obj any) ([]string, error) {
		if claim, ok := obj.(*resourceapi.ResourceClaim); ok {
			return podOf(claim), nil
		}
		return nil, nil
	}})
}

// podOf returns the pod that owns a claim for extended resources, as its key in the index; nothing for any other claim.
func podOf(claim *resourceapi.ResourceClaim) []string {
	owner := metav1.GetControllerOf(claim)
	if !extended(claim) || owner == nil || !onlyOf(claim, owner.UID) {
		return nil
	}
	return []string{keyOf(claim.Namespace, owner.UID)}
}

func extended(claim *resourceapi.ResourceClaim) bool {
	return claim.Annotations[resourceapi.ExtendedResourceClaimAnnotation] == "true"
}

// onlyOf returns whether a claim was made for a pod and nothing else uses it.
//
// A user who can create claims can write the annotation and the owner. So a claim counts for pods of its namespace
// alone. It does not count while it is reserved for anything else than this pod, because that may be using the devices.
func onlyOf(claim *resourceapi.ResourceClaim, pod types.UID) bool {
	owner := metav1.GetControllerOf(claim)
	return owner != nil && owner.Kind == "Pod" && owner.UID == pod &&
		!slices.ContainsFunc(claim.Status.ReservedFor, func(user resourceapi.ResourceClaimConsumerReference) bool { return user.UID != pod })
}

func keyOf(namespace string, uid types.UID) string { return namespace + "/" + string(uid) }

// Left returns the claims whose devices an earlier process may have left to unbound pods, once the informer is synced.
// Of a pod with more than maxLeft claims for extended resources there are none of these.
func (s *Stale) Left(ctx context.Context) (left []*resourceapi.ResourceClaim) {
	if !cache.WaitForCacheSync(ctx.Done(), s.synced) {
		return nil
	}
	for _, obj := range s.claims.List() {
		claim := obj.(*resourceapi.ResourceClaim)
		owner := metav1.GetControllerOf(claim)
		switch key := podOf(claim); {
		case len(key) > 0 && len(s.of(key[0])) <= maxLeft:
			left = append(left, claim)
		case owner != nil && !extended(claim) && claim.Status.Allocation != nil && onlyOf(claim, owner.UID):
			left = append(left, claim)
		}
	}
	return left
}

// Has returns whether an unbound pod has devices. It reads memory only.
func (s *Stale) Has(pod *v1.Pod) bool {
	return len(s.of(keyOf(pod.Namespace, pod.UID))) > 0 || len(s.allocated(pod)) > 0
}

// of returns the claims for extended resources of a pod.
func (s *Stale) of(key string) []any {
	found, err := s.claims.ByIndex(byPod, key)
	if err != nil {
		return nil // only if the index does not exist
	}
	return found
}

// allocated returns the claims that were made for the pod from templates and are allocated. The tracker knows what this
// process has written before the informer does.
func (s *Stale) allocated(pod *v1.Pod) (found []*resourceapi.ResourceClaim) {
	for _, made := range pod.Status.ResourceClaimStatuses {
		if made.ResourceClaimName == nil {
			continue
		}
		claim, err := s.tracker.Get(pod.Namespace, *made.ResourceClaimName)
		if err == nil && claim.Status.Allocation != nil && onlyOf(claim, pod.UID) {
			found = append(found, claim)
		}
	}
	return found
}

// Free frees the devices of a pod that is not bound. It returns once the allocator knows, or ErrBound.
func (s *Stale) Free(ctx context.Context, pod *v1.Pod) error {
	left := s.of(keyOf(pod.Namespace, pod.UID))
	if len(left) > maxLeft {
		return fmt.Errorf("pod %s/%s owns %d ResourceClaims with the annotation %s, of which Kubernetes makes one: delete them",
			pod.Namespace, pod.Name, len(left), resourceapi.ExtendedResourceClaimAnnotation)
	}
	claims := s.allocated(pod)
	for _, obj := range left {
		claims = append(claims, obj.(*resourceapi.ResourceClaim))
	}
	for _, claim := range claims {
		if err := s.FreeClaim(ctx, pod, claim); err != nil {
			return err
		}
	}
	return nil
}

// FreeClaim does the same for one claim.
//
// First it writes to the pod. So a Binding that an earlier process has sent and that is still under way meets a
// conflict, because it carries the pod's earlier resourceVersion. Only then it is safe to free the devices.
func (s *Stale) FreeClaim(ctx context.Context, pod *v1.Pod, claim *resourceapi.ResourceClaim) error {
	ctx, cancel := context.WithTimeout(ctx, freeTimeout)
	defer cancel()
	err := s.fence(ctx, pod, claim.Name)
	if apierrors.IsNotFound(err) {
		return nil // the claim goes with its pod
	}
	if err == nil && extended(claim) {
		err = s.delete(ctx, claim)
	} else if err == nil {
		err = s.deallocate(ctx, pod, claim)
	}
	if err != nil {
		return fmt.Errorf("freeing ResourceClaim %s/%s of an earlier attempt: %w", claim.Namespace, claim.Name, err)
	}
	klog.FromContext(ctx).Info("Devices of an earlier attempt freed", "pod", klog.KObj(pod), "claim", klog.KObj(claim))
	return nil
}

// fence changes the pod's resourceVersion, if the pod is not bound.
func (s *Stale) fence(ctx context.Context, pod *v1.Pod, claim string) error {
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

func freedMessage(claim string) string {
	return fmt.Sprintf("an earlier attempt was cut off; its devices (ResourceClaim %s) are freed", claim)
}

// Freed returns whether a claim that a pod has by its status was freed after the scheduling cycle had begun with the
// pod as it was before. Its Binding must not be sent again: a process that was suspended may find that its successor has
// written this. A claim from a template lives on after it was freed, so what the pod said before does not count.
func Freed(before, pod *v1.Pod) bool {
	var names []string
	if of := pod.Status.ExtendedResourceClaimStatus; of != nil {
		names = append(names, of.ResourceClaimName)
	}
	for _, made := range pod.Status.ResourceClaimStatuses {
		if made.ResourceClaimName != nil {
			names = append(names, *made.ResourceClaimName)
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

// delete removes the finalizer, so that nothing keeps the claim, and deletes this claim and no later one of its name.
func (s *Stale) delete(ctx context.Context, claim *resourceapi.ResourceClaim) error {
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
	return s.until(ctx, claim, func(*resourceapi.ResourceClaim) bool { return false })
}

// deallocate takes the devices from a claim that was made from a template. The claim goes with its pod.
func (s *Stale) deallocate(ctx context.Context, pod *v1.Pod, claim *resourceapi.ResourceClaim) error {
	api := s.client.ResourceV1().ResourceClaims(claim.Namespace)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		live, err := api.Get(ctx, claim.Name, metav1.GetOptions{})
		if err != nil || live.UID != claim.UID || live.Status.Allocation == nil {
			return err
		}
		if !onlyOf(live, pod.UID) {
			return errInUse
		}
		live.Status = resourceapi.ResourceClaimStatus{}
		_, err = api.UpdateStatus(ctx, live, metav1.UpdateOptions{})
		return err
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return s.until(ctx, claim, func(known *resourceapi.ResourceClaim) bool { return known.Status.Allocation == nil })
}

// until waits until the allocator sees the claim so, or does not see it any more.
func (s *Stale) until(ctx context.Context, claim *resourceapi.ResourceClaim, is func(*resourceapi.ResourceClaim) bool) error {
	return wait.PollUntilContextCancel(ctx, seenPoll, true, func(context.Context) (bool, error) {
		known, err := s.tracker.Get(claim.Namespace, claim.Name)
		return err != nil || known.UID != claim.UID || is(known), nil
	})
}
