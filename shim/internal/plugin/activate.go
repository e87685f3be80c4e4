package plugin

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"muster.dev/shim/internal/gangs"
	"muster.dev/shim/internal/musterv1"
	"muster.dev/shim/internal/service"
)

const (
	// activateInterval is the pause between two calls of Activate. Activate ignores a pod that the queue does not
	// know yet. A pod in a running cycle returns through the back-off queue (backend/queue/scheduling_queue.go,
	// Activate).
	activateInterval = 250 * time.Millisecond
)

// followVerdict handles one verdict from its arrival until the gang needs no deadline any more. It runs off the scheduling
// thread.
func (c *core) followVerdict(session context.Context, g *gangs.Gang) {
	ctx, cancel := untilClosed(session, g)
	defer cancel()
	if g.Refused {
		if c.freeDevices(ctx, g) != nil {
			go c.freeAgain(session, g)
		}
		c.letRefusedThrough(ctx, g)
		return
	}
	answer, err := c.fetchAnswer(ctx, g)
	if err != nil {
		if ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "The service's answer can't be used", "gang", g.Plan.Gang, "generation", g.Plan.Generation)
			c.carryOut(ctx, g.Stall(err.Error()))
		}
		return
	}
	g.StorePending(answer)
	if reason := c.requestSharedVolumes(ctx, g, answer); reason != "" {
		c.carryOut(ctx, g.Stall(reason))
		return
	}
	if err := c.freeDevices(ctx, g); err != nil {
		c.carryOut(ctx, g.Stall(err.Error()))
		return
	}
	c.nominate(ctx, g, answer)
	ticket, ok := c.limits.inFlight.Take(ctx, g.Namespace, len(g.UIDs))
	if !ok {
		return
	}
	c.limits.tickets.Store(g, ticket)
	go c.watchTicket(g, ticket)
	if g.Open(answer, c.oldestCreation(g)) {
		c.addSpanEvent(g, "members activated")
		c.activateAll(ctx, g)
	}
}

func untilClosed(ctx context.Context, g *gangs.Gang) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-g.Closed():
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// requestSharedVolumes returns why the gang cannot start yet, or "". While a claim that several members share has no
// volume, the gang cannot start. Then the volume is requested for a node of the plan, and the plan ends, because a gang
// that waits for a volume must hold no capacity.
func (c *core) requestSharedVolumes(ctx context.Context, g *gangs.Gang, answer *gangs.Answer) string {
	if c.inTree == nil {
		return ""
	}
	pods := make([]*v1.Pod, len(g.UIDs))
	for i := range pods {
		pods[i] = c.memberPod(g, i)
	}
	return c.inTree.RequestSharedVolumes(ctx, pods, answer.Planned)
}

// fetchAnswer calls Filter and then Score, each until it is answered or the verdict is void.
func (c *core) fetchAnswer(ctx context.Context, g *gangs.Gang) (*gangs.Answer, error) {
	filter, err := retryCall(ctx, c, g, c.client.Filter)
	if err != nil {
		return nil, err
	}
	score, err := retryCall(ctx, c, g, c.client.Score)
	if err != nil {
		return nil, err
	}
	return gangs.NewAnswer(len(g.UIDs), filter, score)
}

// retryCall calls the service until it gets an answer, with a growing pause between two calls. If the service has a newer
// plan, it closes the gang. It returns an error only if the context ended.
func retryCall[Answer any](ctx context.Context, c *core, g *gangs.Gang, ask func(context.Context, *musterv1.PlanRef) (Answer, error)) (Answer, error) {
	var answer Answer
	for delay := minBackoff; ; delay = nextBackoff(delay) {
		turn, ok := c.limits.fetches.Take(ctx, g.Namespace, 1)
		if !ok {
			return answer, ctx.Err()
		}
		var err error
		answer, err = ask(ctx, g.Plan)
		c.limits.fetches.Leave(turn) // during the pause, so that a failing gang does not block others
		if err == nil {
			return answer, nil
		}
		if service.IsStale(err) {
			c.carryOut(ctx, g.CloseAsStale())
		}
		klog.FromContext(ctx).V(3).Info("Asking again", "gang", g.Plan.Gang, "error", err)
		if !sleep(ctx, delay) || ctx.Err() != nil {
			return answer, ctx.Err()
		}
	}
}

// nominate nominates each member for its planned node in memory, without an API write. Then pods of equal or lower
// priority see the capacity as taken, in every profile of this process. The nomination ends when the member is
// assumed or fails (framework/runtime/framework.go, addGENominatedPods).
//
// Nominations cost other pods time. On a nominated node each of their cycles copies the pods nominated there and runs
// every Filter twice. The period is short, because QueueSort's Less puts the members next to each other.
//
// Call nominate before Open. A gated pod cannot be popped, so no nomination is written after its pod was assumed.
func (c *core) nominate(ctx context.Context, g *gangs.Gang, answer *gangs.Answer) {
	c.nominations.Lock()
	defer c.nominations.Unlock()
	if g.Phase() == gangs.Closed {
		return // its nominations have already been removed
	}
	logger := klog.FromContext(ctx)
	repeated := c.repeatedNodes(g, answer)
	for i := range g.UIDs {
		pod := c.memberPod(g, i)
		if pod == nil {
			continue // the informer is behind: the member gets no nomination
		}
		if repeated.Has(answer.Planned(i)) {
			continue
		}
		info, err := framework.NewPodInfo(pod)
		if err != nil {
			// An affinity term could not be parsed. The scheduling queue accepts such a pod too.
			logger.V(3).Info("Pod nominated in spite of an error", "pod", klog.KObj(pod), "gang", g.Plan.Gang, "error", err)
		}
		c.handle.AddNominatedPod(logger, info, &fwk.NominatingInfo{
			NominatingMode: fwk.ModeOverride, NominatedNodeName: answer.Planned(i),
		})
	}
}

// repeatedNodes returns the planned nodes of several members, for a gang with spread constraints. Members are not
// nominated for these nodes, because PodTopologySpread counts nominated pods. It would refuse the node to the first
// member: its siblings would already be on that node, and none anywhere else (framework/runtime/framework.go,
// addGENominatedPods).
func (c *core) repeatedNodes(g *gangs.Gang, answer *gangs.Answer) sets.Set[string] {
	repeated := sets.New[string]()
	if !c.hasSpreadConstraint(g) {
		return repeated
	}
	planned := sets.New[string]()
	for i := range g.UIDs {
		node := answer.Planned(i)
		if planned.Has(node) {
			repeated.Insert(node)
		}
		planned.Insert(node)
	}
	return repeated
}

// hasSpreadConstraint returns whether a member has a spread constraint that can refuse nodes.
func (c *core) hasSpreadConstraint(g *gangs.Gang) bool {
	for i := range g.UIDs {
		if pod := c.memberPod(g, i); pod != nil {
			for _, constraint := range pod.Spec.TopologySpreadConstraints {
				if constraint.WhenUnsatisfiable == v1.DoNotSchedule {
					return true
				}
			}
		}
	}
	return false
}

// removeNominations removes the members' nominations from memory, so that other pods see the capacity as free.
func (c *core) removeNominations(g *gangs.Gang) {
	c.nominations.Lock()
	defer c.nominations.Unlock()
	for i := range g.UIDs {
		pod := &v1.Pod{}
		pod.UID = g.UIDs[i] // the nominator reads only the UID (backend/queue/nominator.go)
		c.handle.DeleteNominatedPodIfExists(pod)
	}
}

// activateAll activates the members until PreFilter has seen each of them. It is also the watchdog for members that
// never reach Permit: an in-tree error before Reserve calls none of our hooks.
func (c *core) activateAll(ctx context.Context, g *gangs.Gang) {
	tick := time.NewTicker(activateInterval)
	defer tick.Stop()
	progress, since := g.Progress(), time.Now()
	for !g.IsSettled() {
		c.activate(ctx, g, g.MembersWithoutCycle())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if now := g.Progress(); now != progress {
			progress, since = now, time.Now()
		} else if time.Since(since) >= c.args.PermitTimeout.Duration {
			c.carryOut(ctx, g.Stall(fmt.Sprintf("members did not come within %v of the last", c.args.PermitTimeout.Duration)))
		}
	}
}

// activate moves members from the gated pods to the scheduling queue.
func (c *core) activate(ctx context.Context, g *gangs.Gang, members []int) {
	pods := map[string]*v1.Pod{}
	for _, i := range members {
		if pod := c.memberPod(g, i); pod != nil {
			pods[pod.Namespace+"/"+pod.Name] = pod
		}
	}
	if len(pods) > 0 {
		c.handle.Activate(klog.FromContext(ctx), pods)
	}
}

const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 5 * time.Second
)

func nextBackoff(delay time.Duration) time.Duration { return min(2*delay, maxBackoff) }

// sleep waits for the delay with jitter. It returns false if the context ended first.
func sleep(ctx context.Context, delay time.Duration) bool {
	timer := time.NewTimer(wait.Jitter(delay*4/5, 0.5))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
