package plugin

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// SignPod lets pods that are not ours be scheduled in batches as they would be without us: one plugin that
// can't sign ends that for its whole profile (framework/runtime/framework.go, computeBatchablePlugins). Ours are
// never alike, each has its own node in the plan.
func (p *Plugin) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	if p.args.concerns(pod) {
		return nil, fwk.NewStatus(fwk.Unschedulable, "placed by the plan of its gang")
	}
	return nil, nil
}
