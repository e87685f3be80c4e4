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

// fate is a Binding's, never sent unless Bind says otherwise.
type fate struct {
	is      musterv1.BindingFate
	message string
}

// Reserve claims the plan: one call for the gang, made by its first member, and one more for each
// that lands elsewhere. The scheduling thread does not wait for the answer, Permit does. What fails here is
// an Error, not Unschedulable: the pod goes to the back-off queue, whose entrance gates it again, and the
// autoscaler takes no note.
func (p *Plugin) Reserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	c := cycleOf(state)
	if c == nil {
		return p.mustNotBeOurs(pod)
	}
	claim, err := c.Gang.Reserve(c.Member, node)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if claim {
		go p.claim(context.WithoutCancel(ctx), c, node) // the context ends with the cycle
	}
	return nil
}

// claim asks the service for a member's node, and for Permit if that was all it took.
func (p *Plugin) claim(ctx context.Context, c *cycle, node string) {
	g := c.Gang
	answer, err := p.client.Reserve(ctx, &musterv1.ReserveRequest{Plan: g.Plan, Member: uint32(c.Member), Node: node})
	switch {
	case service.IsStale(err):
		p.carryOut(ctx, g.Stale())
	case err != nil:
		p.carryOut(ctx, g.Abort(fmt.Sprintf("reserving for gang %s: %v", g.Plan.Gang, err)))
	case !answer.Claimed:
		p.carryOut(ctx, g.Abort(fmt.Sprintf("gang %s not reserved on %s: %s", g.Plan.Gang, node, answer.Reason)))
	case g.Claimed():
		p.permit(ctx, g)
	}
}

// mustNotBeOurs: every cycle of a pod of ours begins with a verdict in PreFilter. Without one it may
// not go on, least of all to DefaultBinder, which would bind it without GPUs.
func (p *Plugin) mustNotBeOurs(pod *v1.Pod) *fwk.Status {
	if p.args.concerns(pod) {
		return fwk.NewStatus(fwk.Error, reasonGated)
	}
	return nil
}

// Unreserve runs in the reverse order of the plugins, for whatever failed, without a Reserve too,
// and for a Binding that may have landed. Memory only: the report goes through a queue.
func (p *Plugin) Unreserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) {
	c := cycleOf(state)
	if c == nil {
		return
	}
	is, message := c.fate.is, c.fate.message
	if is == musterv1.BindingFate_BINDING_FATE_UNSPECIFIED {
		is = musterv1.BindingFate_BINDING_FATE_NEVER_SENT
	}
	if message == "" {
		message = "the scheduling cycle ended before Bind"
		if why := c.Gang.Why(); why != "" {
			message = why
		}
	}
	klog.FromContext(ctx).V(3).Info("Member unreserved", "pod", klog.KObj(pod), "gang", c.Gang.Plan.Gang, "node", node, "fate", is, "reason", message)
	p.carryOut(ctx, c.Gang.Fail(c.Member, node, is, "", message))
}
