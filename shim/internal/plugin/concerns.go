package plugin

import (
	"strings"

	v1 "k8s.io/api/core/v1"
)

// concerns says whether a pod is ours to gate: it asks for a GPU, or says that it belongs to a gang
// (the master of a job may ask for none). What the keys mean is the service's business.
func (a *Args) concerns(pod *v1.Pod) bool {
	return a.namesGang(pod.Labels) || a.namesGang(pod.Annotations) ||
		a.wantsGPU(pod.Spec.InitContainers) || a.wantsGPU(pod.Spec.Containers)
}

func (a *Args) namesGang(said map[string]string) bool {
	for _, wanted := range a.GangKeys {
		if !strings.HasSuffix(wanted, "/") {
			if _, found := said[wanted]; found {
				return true
			}
			continue
		}
		for key := range said {
			if strings.HasPrefix(key, wanted) {
				return true
			}
		}
	}
	return false
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
