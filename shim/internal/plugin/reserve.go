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
// that lands elsewhere. What fails here is an Error, not Unschedulable: the pod goes to the back-off
// queue, whose entrance gates it again, and the autoscaler takes no note.
func (p *Plugin) Reserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	c := cycleOf(state)
	if c == nil {
		return p.mustNotBeOurs(pod)
	}
	ask, err := c.Gang.NeedsClaim(c.Member, node)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if ask {
		if err := p.claim(ctx, c, node); err != nil {
			return fwk.AsStatus(err)
		}
	}
	if err := c.Gang.Reserve(c.Member, node); err != nil {
		return fwk.AsStatus(err)
	}
	return nil
}

func (p *Plugin) claim(ctx context.Context, c *cycle, node string) error {
	answer, err := p.client.Reserve(ctx, &musterv1.ReserveRequest{
		Plan: c.Gang.Plan, Member: uint32(c.Member), Node: node,
	})
	if service.IsStale(err) {
		p.carryOut(ctx, c.Gang.Stale())
	}
	if err != nil {
		return fmt.Errorf("reserving for gang %s: %w", c.Gang.Plan.Gang, err)
	}
	if !answer.Claimed {
		return fmt.Errorf("gang %s not reserved on %s: %s", c.Gang.Plan.Gang, node, answer.Reason)
	}
	return nil
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
