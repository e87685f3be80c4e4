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

// Score returns the service's score for a node; the planned node has the highest. The plugin's weight in the profile
// must exceed the sum of the others' weights. Otherwise another node could win over the planned one.
func (p *Plugin) Score(_ context.Context, state fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	c := cycleOf(state)
	if c == nil {
		return 0, nil
	}
	return c.Scores[node.Node().Name], nil
}

// ScoreExtensions implements fwk.ScorePlugin. It is nil because the scores need no normalization.
func (p *Plugin) ScoreExtensions() fwk.ScoreExtensions { return nil }
