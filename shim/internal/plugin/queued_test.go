//go:build !next

package plugin

import "k8s.io/kubernetes/pkg/scheduler/framework"

// queued returns a pod of the scheduling queue.
func (h *harness) queued(name string) (*framework.QueuedPodInfo, bool) {
	return h.sched.SchedulingQueue.GetPod(name, "ns", nil)
}

// nominated returns how many pods are nominated to a node.
func (h *harness) nominated(node string) int {
	return len(h.plugin.handle.NominatedPodsForNode(node))
}
