package plugin

import (
	"context"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"muster.dev/shim/internal/gangs"
	"muster.dev/shim/internal/metrics"
	"muster.dev/shim/internal/musterv1"
	"muster.dev/shim/internal/service"
)

// permitBackstop is the framework's deadline for one waiting pod. It marks the pod Unschedulable and leaves it in the
// queue ungated (framework/runtime/waiting_pods_map.go). So our own deadline, args.permitTimeout, must come first. It
// counts from the gang's last progress.
const permitBackstop = 10 * time.Minute

// deviceTime is the additional time for a member with devices. Four writes precede its Binding: the claim, its finalizer,
// its allocation, and the pod's status. The service adds the same time to its bind_s (gangs.device_s).
const deviceTime = 100 * time.Millisecond

// allowInterval is the pause between two tries to allow a pod. The scheduling thread puts a pod into the waiting map
// right after its Permit.
const allowInterval = 5 * time.Millisecond

// Permit holds the members until the service has allowed the gang. It calls the service when the last required member
// has arrived. That member waits like the others, so that no call blocks the scheduling thread.
func (p *Plugin) Permit(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) (*fwk.Status, time.Duration) {
	c := cycleOf(state)
	if c == nil {
		return p.failIfOurs(pod), 0
	}
	arrival, err := c.Gang.Arrive(c.Member, p.livePod(pod).ResourceVersion)
	if err != nil {
		return fwk.AsStatus(err), 0
	}
	switch arrival {
	case gangs.Pass:
		annotations, _ := c.Gang.Binding(c.Member)
		if err := checkAnnotations(pod, annotations); err != nil {
			return fwk.AsStatus(err), 0
		}
		return nil, 0
	case gangs.Ask:
		go p.requestPermit(context.WithoutCancel(ctx), c.Gang) // the context ends with the cycle
	}
	return fwk.NewStatus(fwk.Wait), permitBackstop
}

// requestPermit calls the service's Permit for the gang, and releases its members or closes the gang.
func (p *Plugin) requestPermit(ctx context.Context, g *gangs.Gang) {
	ctx = p.contextWithSpan(ctx, g)
	release, err := p.askPermit(ctx, g)
	if err != nil {
		p.carryOut(ctx, g.Abort(err.Error()))
		return
	}
	metrics.CountGang("permitted")
	klog.FromContext(ctx).V(2).Info("Gang permitted", "gang", g.Plan.Gang, "generation", g.Plan.Generation, "members", len(release))
	p.releaseAllowed(g, release)
}

// askPermit calls the service's Permit, and returns the members to release. If the answer is no, it returns an error.
func (p *Plugin) askPermit(ctx context.Context, g *gangs.Gang) (release []types.UID, err error) {
	requestTime := time.Now()
	answer, err := p.client.Permit(ctx, &musterv1.PermitRequest{Plan: g.Plan})
	if service.IsStale(err) {
		p.carryOut(ctx, g.CloseAsStale())
	}
	if err != nil {
		return nil, fmt.Errorf("permit for gang %s: %w", g.Plan.Gang, err)
	}
	if !answer.Allowed {
		metrics.CountGang("denied")
		return nil, fmt.Errorf("gang %s denied: %s", g.Plan.Gang, answer.Reason)
	}
	if err := p.checkGang(g, answer); err != nil {
		return nil, fmt.Errorf("gang %s: %w", g.Plan.Gang, err)
	}
	sendBy, err := p.sendBy(requestTime, answer, g.DeviceMembers())
	if err != nil {
		return nil, fmt.Errorf("gang %s: %w", g.Plan.Gang, err)
	}
	versions := make([]string, len(g.UIDs))
	for i := range g.UIDs {
		if pod := p.memberPod(g, i); pod != nil {
			versions[i] = pod.ResourceVersion
		}
	}
	return g.Allow(answer, versions, sendBy)
}

// sendBy returns the time after which no Binding may be sent. It is within commitTimeout, which is extended by
// deviceTime for each member with devices. It also leaves enough time for the answer before the service may give the
// GPUs to other pods.
func (p *Plugin) sendBy(requestTime time.Time, answer *musterv1.PermitResponse, withDevices int) (time.Time, error) {
	commit, bind := p.args.CommitTimeout.Duration+time.Duration(withDevices)*deviceTime, p.args.BindTimeout.Duration
	within := time.Duration(answer.BindWithinMs) * time.Millisecond
	switch {
	case within == 0:
		return requestTime.Add(commit), nil
	case within <= bind:
		return requestTime, fmt.Errorf("the service gives %v to bind, which bindTimeout, %v, uses up: raise its gangs.bind_s", within, bind)
	}
	return requestTime.Add(min(commit, within-bind)), nil
}

// releaseAllowed releases these members from Permit. The last member may still be between Permit and the waiting map. So
// releaseAllowed tries again until it has released all, or the gang is committed or closed. The gang closes if a member
// was removed from the waiting map.
func (p *Plugin) releaseAllowed(g *gangs.Gang, uids []types.UID) {
	_ = wait.PollUntilContextCancel(wait.ContextForChannel(p.stop), allowInterval, true, func(context.Context) (bool, error) {
		uids = slices.DeleteFunc(uids, func(uid types.UID) bool {
			waiter := p.handle.GetWaitingPod(uid)
			if waiter != nil {
				waiter.Allow(Name)
			}
			return waiter != nil
		})
		return len(uids) == 0 || g.Phase() >= gangs.Committed, nil
	})
}

// checkGang checks the annotations of each Binding, while the gang can still be stopped as a whole.
func (p *Plugin) checkGang(g *gangs.Gang, answer *musterv1.PermitResponse) error {
	keys := answer.AnnotationKeys
	if len(answer.AnnotationValues) != len(keys)*len(g.UIDs) {
		return fmt.Errorf("%d annotation values for %d keys of %d members", len(answer.AnnotationValues), len(keys), len(g.UIDs))
	}
	for i := range g.UIDs {
		pod := p.memberPod(g, i)
		if pod == nil {
			continue // its own cycle will fail
		}
		annotations := make(map[string]string, len(keys))
		for k, key := range keys {
			annotations[key] = answer.AnnotationValues[i*len(keys)+k]
		}
		if err := checkAnnotations(pod, annotations); err != nil {
			return err
		}
	}
	return nil
}

// livePod returns the pod as the informer has it, which is newer than the queue's copy. It returns the queue's copy if the
// informer has no such pod.
func (c *core) livePod(pod *v1.Pod) *v1.Pod {
	if live, err := c.pods.Pods(pod.Namespace).Get(pod.Name); err == nil && live.UID == pod.UID {
		return live
	}
	return pod
}
