package plugin

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
)

const reasonOtherNode = "node is not a candidate of the gang's plan"

// PreFilter returns the nodes that the plan gives this member. It looks up the verdict again, by UID, because
// PreEnqueue is skipped for pods popped out of the back-off queue (backend/queue/scheduling_queue.go, moveToActiveQ).
func (p *Plugin) PreFilter(_ context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	state.Write(cycleDataKey, &cycleData{core: p.core})
	if !p.isOurs(pod) {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	admission, ok := p.store.Admit(pod.UID)
	if !ok {
		// After an Error the pod goes to the back-off queue, where PreEnqueue gates it again. Unschedulable would
		// leave it ungated, and the cluster autoscaler could add nodes for it.
		return nil, fwk.NewStatus(fwk.Error, reasonOvertaken)
	}
	state.Write(cycleKey, &cycle{Admission: admission, gpus: p.args.Resources})
	if admission.Gang.Refused {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, admission.Reason)
	}
	nodes := sets.New[string]()
	for node := range admission.Scores {
		nodes.Insert(node)
	}
	return &fwk.PreFilterResult{NodeNames: nodes}, nil
}

// PreFilterExtensions implements fwk.PreFilterPlugin. It is nil because pods that are added or removed do not change
// a plan.
func (p *Plugin) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter applies PreFilter's result again, because a nominated node is tried before NodeNames applies
// (schedule_one.go, findNodesThatFitPod).
func (p *Plugin) Filter(_ context.Context, state fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	c := cycleOf(state)
	if c == nil {
		return nil
	}
	if _, candidate := c.Scores[node.Node().Name]; !candidate {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reasonOtherNode)
	}
	return nil
}
