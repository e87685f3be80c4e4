package plugin

import (
	"time"

	"muster.dev/shim/internal/fair"
	"muster.dev/shim/internal/gangs"
)

// hangsAfter is how long after Permit a gang's members count as in flight while they are on their way to Bind. A member
// that takes longer waits for volumes or devices, perhaps for minutes, and not for the scheduler or the API server.
const hangsAfter = 2 * time.Second

// watchTicket gives back a gang's places in limits.inFlight when its verdict is void, when it hangs, or when no Binding can
// be sent any more. Until then each member gives back its place with the answer to its Binding.
func (c *core) watchTicket(g *gangs.Gang, t *fair.Ticket) {
	defer c.limits.tickets.Delete(g)
	defer c.limits.inFlight.LeaveAll(t)
	select {
	case <-g.Permitted():
	case <-g.Closed():
		return
	}
	hangs := time.NewTimer(hangsAfter)
	defer hangs.Stop()
	select {
	case <-g.Committed():
	case <-g.Closed():
		return
	case <-hangs.C:
		return
	}
	late := time.NewTimer(time.Until(g.SendBy().Add(c.args.BindTimeout.Duration)))
	defer late.Stop()
	select {
	case <-t.Empty():
	case <-late.C:
	}
}

// recordBindingAnswer records that a member of the gang is no longer in flight, which makes room for another member.
func (c *core) recordBindingAnswer(g *gangs.Gang) {
	if t, ok := c.limits.tickets.Load(g); ok {
		c.limits.inFlight.Leave(t.(*fair.Ticket))
	}
	c.countAnswerInSpan(g)
}
