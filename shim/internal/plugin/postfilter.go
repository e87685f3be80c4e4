package plugin

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"muster.dev/shim/internal/gangs"
	"muster.dev/shim/internal/musterv1"
)

// PostFilter stands first in its chain and ends it for gang pods: DefaultPreemption would evict pods
// for one member of a gang that may not fit as a whole. A member that its planned node refuses is sent
// on to its other candidates; of one that none takes the service is told which plugin refused the planned
// node. The result is not nil, which would keep a stale nomination
// (schedule_one.go, handleSchedulingFailure), and the status has no reason: it would be appended to
// the pod's condition. For other pods the chain goes on.
func (p *Plugin) PostFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, statuses fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	if !p.ours(pod) {
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	if admission, found := p.admissionOf(state, pod); found && !admission.Gang.Refused && !admission.Gang.Widen(admission.Member) {
		plugin, message := refusal(statuses, admission.Planned)
		p.carryOut(ctx, admission.Gang.Fail(admission.Member, admission.Planned,
			musterv1.BindingFate_BINDING_FATE_NEVER_SENT, plugin, message))
	}
	return framework.NewPostFilterResultWithNominatedNode(""), fwk.NewStatus(fwk.UnschedulableAndUnresolvable)
}

// admissionOf is the cycle's, or the store's where an in-tree PreFilter failed before ours was asked.
func (p *Plugin) admissionOf(state fwk.CycleState, pod *v1.Pod) (gangs.Admission, bool) {
	if c := cycleOf(state); c != nil {
		return c.Admission, true
	}
	if hasSchedulingGroup(pod) {
		return gangs.Admission{}, false
	}
	return p.store.Admit(pod.UID)
}

// refusal names the in-tree plugin that refused the planned node, and why. No plugin is named for a
// node that has gone, nor for our own Filter.
func refusal(statuses fwk.NodeToStatusReader, node string) (plugin, message string) {
	status := statuses.Get(node)
	if status == nil {
		return "", "no node passed"
	}
	if plugin = status.Plugin(); plugin == Name {
		plugin = ""
	}
	return plugin, status.Message()
}
