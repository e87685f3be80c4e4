package plugin

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// PreScore skips Score for pods that are not ours.
func (p *Plugin) PreScore(_ context.Context, state fwk.CycleState, _ *v1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	if cycleOf(state) == nil {
		return fwk.NewStatus(fwk.Skip)
	}
	return nil
}

// Score is the service's, planned node first. The plugin's weight in the profile must exceed the sum
// of the others', or a node that they like better would win over the planned one.
func (p *Plugin) Score(_ context.Context, state fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	c := cycleOf(state)
	if c == nil {
		return 0, nil
	}
	return c.Scores[node.Node().Name], nil
}

// ScoreExtensions implements fwk.ScorePlugin: the scores are in range as they come.
func (p *Plugin) ScoreExtensions() fwk.ScoreExtensions { return nil }
