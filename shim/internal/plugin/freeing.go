package plugin

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"muster.dev/shim/internal/devices"
	"muster.dev/shim/internal/gangs"
)

// maxFreed bounds the pods of one gang whose devices are freed at the same time.
const maxFreed = 8

// freeDevices frees the devices that an earlier plan has left to members of a gang. The members are gated meanwhile.
// It returns why the gang cannot start. A member whose Binding may still be sent keeps its devices: it would be sent for
// the changed pod, which would run without its claim.
func (c *core) freeDevices(ctx context.Context, g *gangs.Gang) error {
	var left []*v1.Pod
	for i := range g.UIDs {
		// the claims of a pod that is gone go with it
		if pod := c.pod(g, i); pod != nil && c.stale.Has(pod) {
			left = append(left, pod)
		}
	}
	if len(left) == 0 {
		return nil
	}
	failed := make([]error, len(left))
	workqueue.ParallelizeUntil(ctx, maxFreed, len(left), func(at int) {
		if pod := left[at]; c.store.MayBeSent(pod.UID) {
			failed[at] = fmt.Errorf("pod %s: its devices are kept, because a Binding may still be sent", pod.Name)
		} else {
			failed[at] = c.stale.Free(ctx, pod)
		}
	})
	return errors.Join(failed...)
}

// freeAgain tries again until a refused gang holds no devices, or has its next verdict. A gang that waits may get none for
// a long time, and other gangs, or its own other members, may need the devices.
func (c *core) freeAgain(ctx context.Context, g *gangs.Gang) {
	ctx, cancel := untilClosed(ctx, g)
	defer cancel()
	for delay := minBackoff; sleep(ctx, delay) && c.freeDevices(ctx, g) != nil; {
		delay = nextBackoff(delay)
	}
}

// freeLeftDevices frees the devices that an earlier process has left to pods of ours that are not bound. These pods are
// planned anew, and hold nothing until then. The in-tree plugin frees those of other pods, whose Bindings no write to the
// pod can stop.
func (c *core) freeLeftDevices(ctx context.Context, left []*resourceapi.ResourceClaim) {
	for _, claim := range left {
		owner := metav1.GetControllerOf(claim)
		pod, err := c.pods.Pods(claim.Namespace).Get(owner.Name)
		if err != nil || pod.UID != owner.UID || pod.Spec.NodeName != "" || !c.profiles.Has(pod.Spec.SchedulerName) || !c.args.concerns(pod) {
			continue
		}
		if err := c.stale.FreeClaim(ctx, pod, claim); err != nil && !errors.Is(err, devices.ErrBound) {
			klog.FromContext(ctx).Error(err, "Devices of an earlier process not freed", "pod", klog.KObj(pod))
		}
	}
}
