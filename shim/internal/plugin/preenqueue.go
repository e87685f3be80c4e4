package plugin

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

const reasonGated = "waiting for a verdict on the gang"

// PreEnqueue holds a gang's pods until a verdict lets them through: from memory, never a call, since
// it runs under the scheduling queue's lock (backend/queue/scheduling_queue.go, Add). A pod held
// here has neither condition nor event.
func (p *Plugin) PreEnqueue(_ context.Context, pod *v1.Pod) *fwk.Status {
	if !p.ours(pod) || hasSchedulingGroup(pod) || p.store.Enter(pod.UID) {
		return nil
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reasonGated)
}

// hasSchedulingGroup: kube-scheduler would schedule such a pod by its own PodGroup cycle, beside
// ours (GenericWorkload, off by default). PreFilter refuses it, so that its owner learns why.
func hasSchedulingGroup(pod *v1.Pod) bool { return pod.Spec.SchedulingGroup != nil }
