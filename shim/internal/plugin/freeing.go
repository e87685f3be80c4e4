package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"muster.dev/shim/internal/devices"
	"muster.dev/shim/internal/gangs"
)

// maxFreed bounds the pods of one gang whose devices are freed at the same time.
const maxFreed = 8

// freeDevices frees the devices that an earlier plan has left allocated to members of a gang. The members are gated
// meanwhile. It returns an error that says why the gang cannot start. A member keeps its devices if its Binding may still
// be sent. Otherwise that Binding would start the pod without its claim.
func (c *core) freeDevices(ctx context.Context, g *gangs.Gang) error {
	var pods []*v1.Pod
	for i := range g.UIDs {
		// the claims of a deleted pod are deleted with it
		if pod := c.memberPod(g, i); pod != nil && c.stale.HasDevices(pod) {
			pods = append(pods, pod)
		}
	}
	if err := c.freeGroupClaims(ctx, g); err != nil || len(pods) == 0 {
		return err
	}
	failed := make([]error, len(pods))
	workqueue.ParallelizeUntil(ctx, maxFreed, len(pods), func(index int) {
		if pod := pods[index]; c.store.MayBeSent(pod.UID) {
			failed[index] = fmt.Errorf("pod %s: its devices are kept, because a Binding may still be sent", pod.Name)
		} else {
			failed[index] = c.stale.Free(ctx, pod)
		}
	})
	return errors.Join(failed...)
}

// freeGroupClaims frees the claims of the members' PodGroups that no pod uses. It keeps them while a Binding of any pod of
// the PodGroup may still be sent.
func (c *core) freeGroupClaims(ctx context.Context, g *gangs.Gang) error {
	isOurs := func(pod *v1.Pod) bool { return c.profiles.Has(pod.Spec.SchedulerName) }
	seen := sets.New[types.UID]()
	for i := range g.UIDs {
		pod := c.memberPod(g, i)
		if pod == nil {
			continue
		}
		for _, claim := range c.stale.IdleGroupClaims(pod) {
			if seen.Has(claim.UID) {
				continue
			}
			seen.Insert(claim.UID)
			if slices.ContainsFunc(c.stale.PodsOfGroup(pod), func(member *v1.Pod) bool { return c.store.MayBeSent(member.UID) }) {
				return fmt.Errorf("ResourceClaim %s: its devices are kept, because a Binding of its PodGroup may still be sent", claim.Name)
			}
			if err := c.stale.FreeGroupClaim(ctx, pod, claim, isOurs); err != nil {
				return err
			}
		}
	}
	return nil
}

// freeAgain retries freeDevices until a refused gang holds no devices, or has its next verdict. Such a gang may get no
// verdict for a long time, and meanwhile other gangs, or its own other members, may need the devices.
func (c *core) freeAgain(ctx context.Context, g *gangs.Gang) {
	ctx, cancel := untilClosed(ctx, g)
	defer cancel()
	for delay := minBackoff; sleep(ctx, delay) && c.freeDevices(ctx, g) != nil; {
		delay = nextBackoff(delay)
	}
}

// freeLeakedDevices frees devices that are still allocated, by an earlier process, to our unbound pods. Such pods are
// planned again and hold no capacity until then. The in-tree plugin frees the devices of other pods: their Bindings
// carry no resourceVersion, so our write to the pod could not stop a Binding that is still under way.
func (c *core) freeLeakedDevices(ctx context.Context, claims []*resourceapi.ResourceClaim) {
	for _, claim := range claims {
		owner := metav1.GetControllerOf(claim)
		pod, err := c.pods.Pods(claim.Namespace).Get(owner.Name)
		if err != nil || pod.UID != owner.UID || pod.Spec.NodeName != "" || !c.profiles.Has(pod.Spec.SchedulerName) || !c.args.schedules(pod) {
			continue
		}
		if err := c.stale.FreeClaim(ctx, pod, claim); err != nil && !errors.Is(err, devices.ErrBound) {
			klog.FromContext(ctx).Error(err, "Devices of an earlier process not freed", "pod", klog.KObj(pod))
		}
	}
}
