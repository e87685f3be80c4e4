package plugin

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// schedules returns whether this plugin schedules a pod: it requests a GPU, or it names a gang. A gang member may
// request no GPU, for example the master of a job. Only the service interprets the values of the keys, and the PodGroup
// of Kubernetes that spec.schedulingGroup names.
func (a *Args) schedules(pod *v1.Pod) bool {
	return pod.Spec.SchedulingGroup != nil || a.namesGang(pod.Labels) || a.namesGang(pod.Annotations) ||
		a.wantsGPU(pod.Spec.InitContainers) || a.wantsGPU(pod.Spec.Containers)
}

// schedules returns whether this plugin schedules a pod, by the pod's newest state. The queue may still hold an older
// state: the pod may have left or joined a gang since.
func (c *core) schedules(pod *v1.Pod) bool { return c.args.schedules(c.livePod(pod)) }

// wakeLeaver puts a pod into the scheduling queue that is no longer ours, because its labels or annotations no longer
// name a gang. The service sends no further verdict for such a pod. A pod that becomes ours needs no call: PreEnqueue or
// PreFilter holds the pod at its next try, and its gang's verdict activates it.
func (c *core) wakeLeaver(before, after *v1.Pod) {
	waits := after.Spec.NodeName == "" && c.profiles.Has(after.Spec.SchedulerName)
	if waits && c.args.schedules(before) && !c.args.schedules(after) {
		c.handle.Activate(klog.Background(), map[string]*v1.Pod{after.Namespace + "/" + after.Name: after})
	}
}

// namesGang returns whether one of these labels or annotations is a gang key.
func (a *Args) namesGang(keys map[string]string) bool {
	for _, gangKey := range a.GangKeys {
		if !strings.HasSuffix(gangKey, "/") {
			if _, ok := keys[gangKey]; ok {
				return true
			}
			continue
		}
		for key := range keys {
			if strings.HasPrefix(key, gangKey) {
				return true
			}
		}
	}
	return false
}

// wantsGPU returns whether a container requests one of the resources that count GPUs.
func (a *Args) wantsGPU(containers []v1.Container) bool {
	for i := range containers {
		for _, name := range a.Resources {
			for _, list := range []v1.ResourceList{containers[i].Resources.Limits, containers[i].Resources.Requests} {
				if quantity, ok := list[v1.ResourceName(name)]; ok && !quantity.IsZero() {
					return true
				}
			}
		}
	}
	return false
}
