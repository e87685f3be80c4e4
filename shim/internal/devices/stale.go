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
	// maxLeft is how many such claims of one pod are freed. Kubernetes makes one for each attempt. Each costs four
	// requests, and a user can create thousands for a pod.
	maxLeft = 8
	// reasonFreed is the reason of the condition that a pod gets when its claim is freed.
	reasonFreed = "SchedulerError"
)

// ErrBound means that the pod is bound, so its claim is in use.
var ErrBound = errors.New("the pod is bound")

// Stale frees the claims for extended resources that an earlier scheduling cycle has left, for example because the
// process was killed between the claim and the Binding. The in-tree plugin refuses every node to such a pod until its
// PostFilter has deleted the claim, and our PostFilter ends that chain.
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
//
// A user who can create claims can write the annotation and the owner. So a claim counts for pods of its namespace
// alone. It does not count while it is reserved for anything else than this pod, because that may be using the devices.
func podOf(claim *resourceapi.ResourceClaim) []string {
	owner := metav1.GetControllerOf(claim)
	if claim.Annotations[resourceapi.ExtendedResourceClaimAnnotation] != "true" || owner == nil || owner.Kind != "Pod" {
		return nil
	}
	for _, user := range claim.Status.ReservedFor {
		if user.UID != owner.UID {
			return nil
		}
	}
	return []string{keyOf(claim.Namespace, owner.UID)}
}

func keyOf(namespace string, uid types.UID) string { return namespace + "/" + string(uid) }

// Left returns the claims for extended resources that exist when this process begins, once the informer is synced. Of a
// pod with more than maxLeft there are none.
func (s *Stale) Left(ctx context.Context) (left []*resourceapi.ResourceClaim) {
	if !cache.WaitForCacheSync(ctx.Done(), s.synced) {
		return nil
	}
	for _, obj := range s.claims.List() {
		claim := obj.(*resourceapi.ResourceClaim)
		if key := podOf(claim); len(key) > 0 && len(s.of(key[0])) <= maxLeft {
			left = append(left, claim)
		}
	}
	return left
}

// Has returns whether a pod has such a claim. It reads memory only.
func (s *Stale) Has(namespace string, uid types.UID) bool {
	return len(s.of(keyOf(namespace, uid))) > 0
}

func (s *Stale) of(key string) []any {
	found, err := s.claims.ByIndex(byPod, key)
	if err != nil {
		return nil // only if the index does not exist
	}
	return found
}

// Free deletes the claims of a pod that is not bound. It returns once the allocator knows, or ErrBound.
func (s *Stale) Free(ctx context.Context, pod *v1.Pod) error {
	left := s.of(keyOf(pod.Namespace, pod.UID))
	if len(left) > maxLeft {
		return fmt.Errorf("pod %s/%s owns %d ResourceClaims with the annotation %s, of which Kubernetes makes one: delete them",
			pod.Namespace, pod.Name, len(left), resourceapi.ExtendedResourceClaimAnnotation)
	}
	for _, obj := range left {
		if err := s.FreeClaim(ctx, pod, obj.(*resourceapi.ResourceClaim)); err != nil {
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
	if err == nil {
		err = s.delete(ctx, claim)
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

// Freed returns whether the claim that a pod has by its status is being freed. Its Binding must not be sent again: a
// process that was suspended may find that its successor has written this.
func Freed(pod *v1.Pod) bool {
	of := pod.Status.ExtendedResourceClaimStatus
	return of != nil && slices.ContainsFunc(pod.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.PodScheduled && c.Reason == reasonFreed && c.Message == freedMessage(of.ResourceClaimName)
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
	return wait.PollUntilContextCancel(ctx, seenPoll, true, func(context.Context) (bool, error) {
		known, err := s.tracker.Get(claim.Namespace, claim.Name)
		return err != nil || known.UID != claim.UID, nil
	})
}
