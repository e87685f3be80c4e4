package plugin

import (
	"context"
	"fmt"
	"sync"
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
	// activateInterval: Activate ignores a pod that the queue does not know yet, and one in flight
	// comes back through the back-off queue (backend/queue/scheduling_queue.go, Activate).
	activateInterval = 250 * time.Millisecond
	// activateSlowly is for refused gangs whose members do not come: nothing is held for them.
	activateSlowly = 5 * time.Second
	// maxTelling bounds the members of refused gangs that are let through at a time. The cycle of each ends
	// with a write to the API server, some 10 ms on the one scheduling thread: of thousands at once the last
	// would keep that thread from everybody else for minutes.
	maxTelling = 16
)

// follow takes one verdict from its arrival to the point where no deadline has to watch it. All of
// it is off the scheduling thread.
func (c *core) follow(ctx context.Context, g *gangs.Gang) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-g.Closed():
			cancel()
		case <-ctx.Done():
		}
	}()
	answer, err := c.fetch(ctx, g)
	if err != nil {
		if ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "The service's answer can't be used", "gang", g.Plan.Gang, "generation", g.Plan.Generation)
			c.carryOut(ctx, g.Stall(err.Error()))
		}
		return
	}
	leave := func() {}
	if g.Refused {
		var ok bool
		if leave, ok = c.telling.take(ctx, len(g.UIDs)); !ok {
			return
		}
		leave = sync.OnceFunc(leave)
		defer leave()
	} else {
		if why := c.volumesFirst(ctx, g, answer); why != "" {
			c.carryOut(ctx, g.Stall(why))
			return
		}
		c.nominate(ctx, g, answer)
		leave, ok := c.admission.take(ctx, len(g.UIDs))
		if !ok {
			return
		}
		go func() {
			defer leave() // from here its Bindings are counted, one by one
			select {
			case <-g.Committed():
			case <-g.Closed():
			}
		}()
	}
	if !g.Open(answer, c.oldest(g)) {
		return
	}
	c.activateAll(ctx, g, leave)
}

// volumesFirst says why the gang can't start yet: a claim that members share has no volume. The plan says where one
// is to be made, and ends; a gang that waits for its volume holds nothing.
func (c *core) volumesFirst(ctx context.Context, g *gangs.Gang, answer *gangs.Answer) string {
	if c.inTree == nil {
		return ""
	}
	pods := make([]*v1.Pod, len(g.UIDs))
	for i := range pods {
		pods[i] = c.pod(g, i)
	}
	return c.inTree.VolumesFirst(ctx, pods, answer.Planned)
}

// fetch asks Filter, then Score, until they are answered or the verdict is void.
func (c *core) fetch(ctx context.Context, g *gangs.Gang) (*gangs.Answer, error) {
	filter, err := persist(ctx, c, g, c.client.Filter)
	if err != nil {
		return nil, err
	}
	if g.Refused {
		return gangs.Refusal(filter.Reason), nil
	}
	score, err := persist(ctx, c, g, c.client.Score)
	if err != nil {
		return nil, err
	}
	return gangs.NewAnswer(len(g.UIDs), filter, score)
}

func persist[Answer any](ctx context.Context, c *core, g *gangs.Gang, ask func(context.Context, *musterv1.PlanRef) (Answer, error)) (Answer, error) {
	var answer Answer
	for delay := minBackoff; ; delay = nextBackoff(delay) {
		select {
		case c.fetches <- struct{}{}:
		case <-ctx.Done():
			return answer, ctx.Err()
		}
		var err error
		answer, err = ask(ctx, g.Plan)
		<-c.fetches // not kept over the pause: one gang's trouble must not hold up the others
		if err == nil {
			return answer, nil
		}
		if service.IsStale(err) {
			c.carryOut(ctx, g.Stale())
		}
		klog.FromContext(ctx).V(3).Info("Asking again", "gang", g.Plan.Gang, "error", err)
		if !sleep(ctx, delay) || ctx.Err() != nil {
			return answer, ctx.Err()
		}
	}
}

// nominate makes pods of equal or lower priority see the capacity taken, in every profile of this
// process, until the member is assumed or fails (framework/runtime/framework.go,
// addGENominatedPods). No API write. It costs them: on such a node each of their cycles copies the pods
// nominated there and runs every Filter twice; Less keeps the time short. It comes before Open: a gated
// pod can't be popped, so that no nomination is written after its pod was assumed.
func (c *core) nominate(ctx context.Context, g *gangs.Gang, answer *gangs.Answer) {
	c.nominations.Lock()
	defer c.nominations.Unlock()
	if g.Phase() == gangs.Closed {
		return // its nominations have been removed already
	}
	logger := klog.FromContext(ctx)
	crowded := c.crowded(g, answer)
	for i := range g.UIDs {
		pod := c.pod(g, i)
		if pod == nil {
			continue // the informer is behind: it goes without
		}
		if crowded.Has(answer.Planned(i)) {
			continue
		}
		info, err := framework.NewPodInfo(pod)
		if err != nil {
			// An affinity term that can't be read; the queue takes such a pod too.
			logger.V(3).Info("Pod nominated in spite of an error", "pod", klog.KObj(pod), "gang", g.Plan.Gang, "error", err)
		}
		c.handle.AddNominatedPod(logger, info, &fwk.NominatingInfo{
			NominatingMode: fwk.ModeOverride, NominatedNodeName: answer.Planned(i),
		})
	}
}

// crowded are the planned nodes of several members, for a gang with spread constraints. Nominations count for
// these: the first member to come would find its siblings on its node already, and none anywhere else, and
// PodTopologySpread would refuse the node (framework/runtime/framework.go, addGENominatedPods).
func (c *core) crowded(g *gangs.Gang, answer *gangs.Answer) sets.Set[string] {
	crowded := sets.New[string]()
	if !c.spreads(g) {
		return crowded
	}
	planned := sets.New[string]()
	for i := range g.UIDs {
		node := answer.Planned(i)
		if planned.Has(node) {
			crowded.Insert(node)
		}
		planned.Insert(node)
	}
	return crowded
}

// spreads says whether a member has a spread constraint that refuses nodes.
func (c *core) spreads(g *gangs.Gang) bool {
	for i := range g.UIDs {
		if pod := c.pod(g, i); pod != nil {
			for _, constraint := range pod.Spec.TopologySpreadConstraints {
				if constraint.WhenUnsatisfiable == v1.DoNotSchedule {
					return true
				}
			}
		}
	}
	return false
}

func (c *core) unnominate(g *gangs.Gang) {
	c.nominations.Lock()
	defer c.nominations.Unlock()
	for i := range g.UIDs {
		pod := &v1.Pod{}
		pod.UID = g.UIDs[i] // the nominator looks at nothing else (backend/queue/nominator.go)
		c.handle.DeleteNominatedPodIfExists(pod)
	}
}

// activateAll wakes the members again and again until PreFilter has seen them, and is the watchdog
// of those that never reach Permit: an in-tree error before Reserve shows in no hook of ours. It calls leave
// where the members of a refused gang do not come, so that other gangs can be told.
func (c *core) activateAll(ctx context.Context, g *gangs.Gang, leave func()) {
	interval := activateInterval
	tick := time.NewTicker(interval)
	defer tick.Stop()
	progress, since := g.Progress(), time.Now()
	for !g.Settled() {
		c.activate(ctx, g)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if now := g.Progress(); now != progress {
			progress, since = now, time.Now()
			continue
		}
		if g.Refused && time.Since(since) >= activateSlowly {
			leave()
		}
		if time.Since(since) < c.args.PermitTimeout.Duration {
			continue
		}
		if g.Refused {
			if interval != activateSlowly {
				interval = activateSlowly
				tick.Reset(interval)
			}
			continue
		}
		c.carryOut(ctx, g.Stall(fmt.Sprintf("members did not come within %v of the last", c.args.PermitTimeout.Duration)))
	}
}

func (c *core) activate(ctx context.Context, g *gangs.Gang) {
	pods := map[string]*v1.Pod{}
	unseen := g.Unseen()
	if g.Refused && len(unseen) > maxTelling {
		unseen = unseen[:maxTelling]
	}
	for _, i := range unseen {
		if pod := c.pod(g, i); pod != nil {
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

// sleep with jitter; false when the context ended first.
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
