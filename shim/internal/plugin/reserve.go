package plugin

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"muster.dev/shim/internal/musterv1"
	"muster.dev/shim/internal/service"
)

// fate is the fate of a Binding: never sent, unless Bind sets another one.
type fate struct {
	outcome musterv1.BindingFate
	message string
}

// Reserve calls the service's Reserve: once for the gang, for its first member, and once for each member that did not
// get its planned node. The scheduling thread does not wait for the answer; Permit does.
//
// A failure is an Error instead of Unschedulable. Then the pod goes to the back-off queue, where PreEnqueue gates it
// again, and the autoscaler ignores it.
func (p *Plugin) Reserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	c := cycleOf(state)
	if c == nil {
		return p.failIfOurs(pod)
	}
	claim, err := c.Gang.Reserve(c.Member, node)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if claim {
		go p.requestReserve(context.WithoutCancel(ctx), c, node) // the context ends with the cycle
	}
	return nil
}

// requestReserve asks the service to reserve a member's node, and calls Permit if that was the last condition.
func (p *Plugin) requestReserve(ctx context.Context, c *cycle, node string) {
	g := c.Gang
	ctx = p.contextWithSpan(ctx, g)
	answer, err := p.client.Reserve(ctx, &musterv1.ReserveRequest{Plan: g.Plan, Member: uint32(c.Member), Node: node})
	switch {
	case service.IsStale(err):
		p.carryOut(ctx, g.CloseAsStale())
	case err != nil:
		p.carryOut(ctx, g.Abort(fmt.Sprintf("reserving for gang %s: %v", g.Plan.Gang, err)))
	case !answer.Claimed:
		p.carryOut(ctx, g.Abort(fmt.Sprintf("gang %s not reserved on %s: %s", g.Plan.Gang, node, answer.Reason)))
	case g.RecordReserveAnswer():
		p.requestPermit(ctx, g)
	}
}

// failIfOurs returns an error for a pod of ours. Every cycle of such a pod begins with a verdict in PreFilter.
// Without one the cycle must not continue: DefaultBinder would bind the pod without GPUs.
func (p *Plugin) failIfOurs(pod *v1.Pod) *fwk.Status {
	if p.schedules(pod) {
		return fwk.NewStatus(fwk.Error, reasonOvertaken)
	}
	return nil
}

// Unreserve records that a member will not get its node, and queues a report. It changes memory only. The framework
// calls Unreserve in the reverse order of the plugins, after any failure. It also does so without a Reserve, and for
// a Binding that may have been written.
func (p *Plugin) Unreserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) {
	c := cycleOf(state)
	if c == nil {
		return
	}
	outcome, message := c.fate.outcome, c.fate.message
	if outcome == musterv1.BindingFate_BINDING_FATE_UNSPECIFIED {
		outcome = musterv1.BindingFate_BINDING_FATE_NEVER_SENT
	}
	if message == "" {
		message = "the scheduling cycle ended before Bind"
		if reason := c.Gang.VoidReason(); reason != "" {
			message = reason
		}
	}
	klog.FromContext(ctx).V(3).Info("Member unreserved", "pod", klog.KObj(pod), "gang", c.Gang.Plan.Gang, "node", node, "fate", outcome, "reason", message)
	p.carryOut(ctx, c.Gang.Fail(c.Member, node, outcome, "", message))
	p.retryWaiters(c.Gang)
}
