package intree

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

func TestPodsThatDifferInWhatThePlannerCountsAreOneKind(t *testing.T) {
	a := askerOf(t.Context(), t, volumePlugins, weights, append(nodesOf(2), claim(0, "by-hand", "pv0"), volumeOf(0, "n0"))...)
	var pods []*v1.Pod
	for i := range 256 {
		pod := userOf(i, "c0", "")
		container := &pod.Spec.Containers[0]
		container.Resources.Requests = v1.ResourceList{
			v1.ResourceCPU: *resource.NewMilliQuantity(int64(i), resource.DecimalSI), "nvidia.com/gpu": resource.MustParse("1"),
		}
		container.Name, container.WorkingDir = fmt.Sprint("c", i), fmt.Sprint("/", i)
		pods = append(pods, pod)
	}
	if kinds := a.sorter.kinds(pods, a.single); len(kinds) != 1 || len(kinds[0].pods) != 256 {
		t.Errorf("%d kinds", len(kinds))
	}
	pods[7].Spec.Affinity = &v1.Affinity{}
	likes(1, "disk", "ssd")(pods[7])
	pods[8].Spec.HostNetwork, pods[8].Spec.HostUsers = true, new(bool)
	if kinds := a.sorter.kinds(pods, a.single); len(kinds) != 3 {
		t.Errorf("%d kinds, want 3: preferences and declared features tell kinds apart", len(kinds))
	}
}

func TestKindsOfAQuestionAreBounded(t *testing.T) {
	objects := nodesOf(1)
	var pods []*v1.Pod
	for i := range 3 * kindsAtMost {
		objects = append(objects, claim(i, "by-hand", fmt.Sprintf("pv%d", i)), volumeOf(i, fmt.Sprintf("n%d", i)))
		pods = append(pods, userOf(i, fmt.Sprintf("c%d", i), ""))
	}
	lacking := userOf(1000, "none", "")
	crowded := userOf(1001, "c0", "")
	for range volumesAtMost {
		crowded.Spec.Volumes = append(crowded.Spec.Volumes, crowded.Spec.Volumes[0])
	}
	a := askerOf(t.Context(), t, volumePlugins, nil, objects...)
	kinds := a.sorter.kinds(append(pods, lacking, crowded), a.single)
	if len(kinds) != kindsAtMost+1 || len(kinds[kindsAtMost].missing) != 1 {
		t.Errorf("%d kinds, want %d and one of pods whose claim is missing", len(kinds), kindsAtMost)
	}
}

// counting is an extender that counts how often it is asked.
type counting struct {
	fwk.Extender
	calls int
}

func (c *counting) IsFilter() bool            { return true }
func (c *counting) IsInterested(*v1.Pod) bool { return true }
func (c *counting) Filter(_ *v1.Pod, nodes []fwk.NodeInfo) ([]fwk.NodeInfo, extenderv1.FailedNodesMap, extenderv1.FailedNodesMap, error) {
	c.calls++
	return nodes, nil, nil, nil
}

func TestEqualKindsOfSeveralGangsAreInspectedOnce(t *testing.T) {
	objects := append(nodesOf(3), claim(0, "by-hand", "pv0"), volumeOf(0, "n1"))
	for i := range 9 {
		objects = append(objects, userOf(i, "c0", ""))
	}
	a := askerOf(t.Context(), t, volumePlugins, nil, objects...)
	extender := &counting{}
	a.inspector.extenders = []fwk.Extender{extender}
	heard := listen(a, fine)
	for i := range 9 {
		a.Ask(questionOf(fmt.Sprint(i), i))
	}
	run(t, a, time.Now())
	if len(*heard) != 9 || extender.calls != 1 {
		t.Errorf("%d reports after %d inspections", len(*heard), extender.calls)
	}
	a.touched()
	run(t, a, time.Now().Add(time.Hour))
	if extender.calls != 2 {
		t.Errorf("%d inspections after a cause, want 2", extender.calls)
	}
}
