package plugin

import (
	"strings"

	v1 "k8s.io/api/core/v1"
)

// concerns returns whether this plugin schedules a pod: it requests a GPU, or it names a gang. A gang member may
// request no GPU, for example the master of a job. Only the service interprets the values of the keys.
func (a *Args) concerns(pod *v1.Pod) bool {
	return a.namesGang(pod.Labels) || a.namesGang(pod.Annotations) ||
		a.wantsGPU(pod.Spec.InitContainers) || a.wantsGPU(pod.Spec.Containers)
}

func (a *Args) namesGang(keys map[string]string) bool {
	for _, wanted := range a.GangKeys {
		if !strings.HasSuffix(wanted, "/") {
			if _, found := keys[wanted]; found {
				return true
			}
			continue
		}
		for key := range keys {
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
