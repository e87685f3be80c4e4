package plugin

import (
	"context"
	"slices"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/wait"

	"muster.dev/shim/internal/fair"
	"muster.dev/shim/internal/gangs"
)

const (
	pollInterval = 20 * time.Millisecond
	// maxRefused bounds the members of refused gangs that are let through at a time. The cycle of each ends with a
	// write to the API server, which takes some 10 ms on the one scheduling thread. Thousands at once would block
	// that thread for minutes. One namespace has half of them at most.
	maxRefused = 16
	// refusedTurn is how many members of one gang are let through in one turn of its namespace.
	refusedTurn = 4
	// refusedPerSecond and refusedBurst bound the members of one namespace over time, because each costs the API server a
	// write. A user who creates thousands of pods that cannot fit waits longer for the reasons. All namespaces together
	// may have refusedTogether times as much, so that one namespace alone does not delay the others.
	refusedPerSecond = 10
	refusedBurst     = 100
	refusedTogether  = 2
	// A pod counts once more in the rate for each refusedBytes of its size. The write costs the API server time in
	// proportion to the pod's size, about 0.5 s for each MiB. A pod larger than largestTold is not let through at all: the
	// event on its gang contains the reason.
	refusedBytes = 16 << 10
	largestTold  = 128 << 10
	// refusedYields is how long a turn waits for planned gangs to be bound, because their Bindings come first.
	refusedYields = time.Second
	// activateSlowly is how long a turn waits for its members, and the pause between two later tries for members that
	// did not arrive. No capacity is held for them.
	activateSlowly = 5 * time.Second
)

func newRefusedRate() *fair.Rate {
	return fair.NewRate(refusedPerSecond, refusedBurst,
		rate.NewLimiter(refusedTogether*refusedPerSecond, refusedTogether*refusedBurst))
}

// letRefusedThrough lets the members of a refused gang through, a few at a time, to fail with the gang's reason. It waits
// for the namespace's rate first. Only then does it use resources that other namespaces need: a call of the service, and
// some of the maxRefused places.
func (c *core) letRefusedThrough(ctx context.Context, g *gangs.Gang) {
	for members := range slices.Chunk(g.MembersWithoutCycle(), refusedTurn) {
		if !c.limits.refusedRate.Wait(ctx, g.Namespace, c.rateCost(g, members)) {
			return
		}
		if g.Phase() == gangs.Pending {
			filter, err := retryCall(ctx, c, g, c.client.Filter)
			if err != nil || !g.Open(gangs.NewRefusal(filter.Reason), c.oldestCreation(g)) {
				return
			}
		}
		ticket, ok := c.limits.refused.Take(ctx, g.Namespace, len(members))
		if !ok {
			return
		}
		c.limits.inFlight.WaitUntilIdle(ctx, refusedYields)
		c.activateUntilSeen(ctx, g, members)
		c.limits.refused.LeaveAll(ticket)
	}
	for late := g.MembersWithoutCycle(); len(late) > 0; late = g.MembersWithoutCycle() {
		c.activate(ctx, g, late[:min(len(late), maxRefused)])
		if !sleep(ctx, activateSlowly) {
			return
		}
	}
}

// rateCost returns how many times these members count in the rate: large pods count more than once.
func (c *core) rateCost(g *gangs.Gang, members []int) int {
	cost := len(members)
	for _, i := range members {
		if pod := c.memberPod(g, i); pod != nil {
			cost += min(pod.Size(), largestTold) / refusedBytes
		}
	}
	return cost
}

// activateUntilSeen activates members until PreFilter has seen each of them, for activateSlowly at most.
func (c *core) activateUntilSeen(ctx context.Context, g *gangs.Gang, members []int) {
	ctx, cancel := context.WithTimeout(ctx, activateSlowly)
	defer cancel()
	var activated time.Time
	_ = wait.PollUntilContextCancel(ctx, pollInterval, true, func(context.Context) (bool, error) {
		unseen := slices.DeleteFunc(slices.Clone(members), g.CycleRan)
		if len(unseen) > 0 && time.Since(activated) >= activateInterval {
			c.activate(ctx, g, unseen)
			activated = time.Now()
		}
		return len(unseen) == 0, nil
	})
}
