package plugin

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// SignPod lets kube-scheduler schedule other pods in batches as it would without this plugin. One plugin that cannot
// sign disables batches for its whole profile (framework/runtime/framework.go, computeBatchablePlugins). Our own pods
// are never batched, because the plan gives each its own node.
func (p *Plugin) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	if p.args.schedules(pod) {
		return nil, fwk.NewStatus(fwk.Unschedulable, "placed by the plan of its gang")
	}
	return nil, nil
}
