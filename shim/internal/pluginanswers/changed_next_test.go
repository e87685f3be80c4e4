//go:build next

package pluginanswers

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/podtopologyspread"
)

// isChanged returns whether the answer of a plugin may differ from the file. For a spread constraint with an empty
// selector, 1.38 counts all pods and 1.37 counts none.
func isChanged(plugin string, pod *v1.Pod) bool {
	return plugin == podtopologyspread.Name && slices.ContainsFunc(pod.Spec.TopologySpreadConstraints, func(c v1.TopologySpreadConstraint) bool {
		return c.LabelSelector != nil && len(c.LabelSelector.MatchLabels)+len(c.LabelSelector.MatchExpressions)+len(c.MatchLabelKeys) == 0
	})
}
