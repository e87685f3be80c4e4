package plugin

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

const (
	reasonGated = "waiting for a verdict on the gang"
	// reasonOvertaken comes as a Warning event, so it says that there is nothing to do.
	reasonOvertaken = "the gang's plan changed while this pod was on its way; it goes back to the queue and waits for the next plan"
)

// PreEnqueue gates a gang's pods until a verdict lets them through. It reads memory only and makes no call, because
// it runs under the lock of the scheduling queue (backend/queue/scheduling_queue.go, Add). A pod that it gates has
// neither condition nor event.
func (p *Plugin) PreEnqueue(_ context.Context, pod *v1.Pod) *fwk.Status {
	if !p.isOurs(pod) {
		return nil
	}
	if pod.Size() > largestTold {
		p.store.HoldWhileRefused(pod.UID)
	}
	if p.store.Enter(pod.UID) {
		return nil
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reasonGated)
}
