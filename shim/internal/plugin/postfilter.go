package plugin

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"muster.dev/shim/internal/gangs"
	"muster.dev/shim/internal/musterv1"
)

// PostFilter must be first in its chain, and ends the chain for gang pods. Otherwise DefaultPreemption would evict
// pods for one member of a gang that may not fit as a whole.
//
// If its planned node refuses a member, the member is scheduled again for its other candidates. If none accepts it,
// PostFilter reports to the service which plugin refused the planned node.
//
// The result is not nil, because nil would keep a stale nomination (schedule_one.go, handleSchedulingFailure). The
// status has no reason, because it would be appended to the pod's condition. For other pods the chain continues.
func (p *Plugin) PostFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, statuses fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	if !p.isOurs(pod) {
		p.addWaiter(state, pod, statuses)
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	if admission, ok := p.admissionOf(state, pod); ok && !admission.Gang.Refused && !admission.Gang.AllowCandidates(admission.Member) {
		plugin, message := refusalOf(statuses, admission.Planned)
		p.carryOut(ctx, admission.Gang.Fail(admission.Member, admission.Planned,
			musterv1.BindingFate_BINDING_FATE_NEVER_SENT, plugin, message))
	}
	return framework.NewPostFilterResultWithNominatedNode(""), fwk.NewStatus(fwk.UnschedulableAndUnresolvable)
}

// admissionOf returns the admission of the cycle. If an in-tree PreFilter failed before ours ran, it returns the
// store's.
func (p *Plugin) admissionOf(state fwk.CycleState, pod *v1.Pod) (gangs.Admission, bool) {
	if c := cycleOf(state); c != nil {
		return c.Admission, true
	}
	return p.store.Admit(pod.UID)
}

// refusalOf returns the in-tree plugin that refused the planned node, and its message. The plugin is empty if the node
// no longer exists, or if our own Filter refused it.
func refusalOf(statuses fwk.NodeToStatusReader, node string) (plugin, message string) {
	status := statuses.Get(node)
	if status == nil {
		return "", "no node passed"
	}
	if plugin = status.Plugin(); plugin == Name {
		plugin = ""
	}
	return plugin, status.Message()
}
