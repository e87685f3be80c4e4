package plugin

import (
	v1 "k8s.io/api/core/v1"
)

// concerns says whether a pod is ours to gate: it asks for a GPU, or says that it belongs to a gang
// (the master of a job may ask for none). What the keys mean is the service's business.
func (a *Args) concerns(pod *v1.Pod) bool {
	for _, key := range a.GangLabels {
		if _, found := pod.Labels[key]; found {
			return true
		}
	}
	for _, key := range a.GangAnnotations {
		if _, found := pod.Annotations[key]; found {
			return true
		}
	}
	return a.wantsGPU(pod.Spec.InitContainers) || a.wantsGPU(pod.Spec.Containers)
}

func (a *Args) wantsGPU(containers []v1.Container) bool {
	for i := range containers {
		for _, name := range a.Resources {
			for _, list := range []v1.ResourceList{containers[i].Resources.Limits, containers[i].Resources.Requests} {
				if quantity, found := list[v1.ResourceName(name)]; found && !quantity.IsZero() {
					return true
				}
			}
		}
	}
	return false
}
