package intree

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"

	"muster.dev/shim/internal/devices"
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
	if kinds, _ := a.sorter.groupPods(pods, a.isUnique, always); len(kinds) != 1 || len(kinds[0].pods) != 256 {
		t.Errorf("%d kinds", len(kinds))
	}
	pods[7].Spec.Affinity = &v1.Affinity{}
	likes(1, "disk", "ssd")(pods[7])
	pods[8].Spec.HostNetwork, pods[8].Spec.HostUsers = true, new(bool)
	if kinds, _ := a.sorter.groupPods(pods, a.isUnique, always); len(kinds) != 3 {
		t.Errorf("%d kinds, want 3: preferences and declared features tell kinds apart", len(kinds))
	}
}

func TestKindsOfAQuestionAreBounded(t *testing.T) {
	objects := nodesOf(1)
	var pods []*v1.Pod
	for i := range 3 * maxKinds {
		objects = append(objects, claim(i, "by-hand", fmt.Sprintf("pv%d", i)), volumeOf(i, fmt.Sprintf("n%d", i)))
		pods = append(pods, userOf(i, fmt.Sprintf("c%d", i), ""))
	}
	lacking := userOf(1000, "none", "")
	crowded := userOf(1001, "c0", "")
	for range maxVolumes {
		crowded.Spec.Volumes = append(crowded.Spec.Volumes, crowded.Spec.Volumes[0])
	}
	a := askerOf(t.Context(), t, volumePlugins, nil, objects...)
	kinds, _ := a.sorter.groupPods(append(pods, lacking, crowded), a.isUnique, always)
	if len(kinds) != maxKinds+1 || len(kinds[maxKinds].missing) != 1 {
		t.Errorf("%d kinds, want %d and one of pods whose claim is missing", len(kinds), maxKinds)
	}
}

func TestPodsThatLackClaimsAreOneKindWithTheFirstNames(t *testing.T) {
	var pods []*v1.Pod
	for i := range 200 {
		pods = append(pods, userOf(i, fmt.Sprintf("c%03d", 199-i), ""))
	}
	a := askerOf(t.Context(), t, volumePlugins, nil)
	kinds, _ := a.sorter.groupPods(pods, a.isUnique, always)
	if len(kinds) != 1 || len(kinds[0].pods) != 200 {
		t.Fatalf("%d kinds", len(kinds))
	}
	if got := kinds[0].missing; len(got) != maxMissing || got[0] != "c000" || got[1] != "c001" {
		t.Errorf("missing: %v", got)
	}
	if got := kinds[0].furtherMissing; got != 200-maxMissing {
		t.Errorf("%d more are missing, want %d", got, 200-maxMissing)
	}
}

func TestSortingPausesAfterEachPodAndReadsEachClaimOnce(t *testing.T) {
	a := askerOf(t.Context(), t, volumePlugins, nil, claim(0, "by-hand", "pv0"), volumeOf(0, "n0"))
	var pods []*v1.Pod
	for i := range 9 {
		pods = append(pods, userOf(i, "c0", ""))
	}
	read, paused := 0, 0
	single := func(string) bool { read++; return false }
	pause := func() bool { paused++; return paused != 12 }
	if kinds, ok := a.sorter.groupPods(pods, single, pause); !ok || len(kinds) != 1 || read != 1 || paused != 9 {
		t.Errorf("%d kinds, %d reads of the claim, %d pauses", len(kinds), read, paused)
	}
	if _, ok := a.sorter.groupPods(pods, single, pause); ok || paused != 12 {
		t.Errorf("went on after pause returned false: %d pauses", paused)
	}
}

// counting is an extender that counts its calls.
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
	a.recordCause()
	run(t, a, time.Now().Add(time.Hour))
	if extender.calls != 2 {
		t.Errorf("%d inspections after a cause, want 2", extender.calls)
	}
}

// A user who may change a claim in one namespace cannot void the cached answers of other namespaces.
func TestAChangedClaimVoidsKeptAnswersOfItsNamespaceAlone(t *testing.T) {
	objects := append(nodesOf(3), claim(0, "by-hand", "pv0"), volumeOf(0, "n1"))
	for i := range 9 {
		objects = append(objects, userOf(i, "c0", ""))
	}
	elsewhere := claim(0, "by-hand", "pv1")
	user := userOf(0, "c0", "")
	elsewhere.Namespace, user.Namespace = "x", "x"
	a := askerOf(t.Context(), t, volumePlugins, nil, append(objects, elsewhere, user, volumeOf(1, "n1"))...)
	extender := &counting{}
	a.inspector.extenders = []fwk.Extender{extender}
	listen(a, fine)
	asks := func(gang, namespace string, pod int) {
		q := questionOf(gang, pod)
		q.Namespace = namespace
		a.Ask(q)
		run(t, a, time.Now())
	}
	asks("first", "ns", 0)
	asks("changes", "x", 0)
	for name, row := range map[string]struct {
		namespace string
		want      int
	}{"of another namespace": {"x", 0}, "its own": {"ns", 1}} {
		before := extender.calls
		a.recordClaimChange(row.namespace, "c0")
		asks(name, "ns", 1)
		if got := extender.calls - before; got != row.want {
			t.Errorf("a claim has changed, %s: %d inspections, want %d", name, got, row.want)
		}
	}
}

// Every user's volumes come and go. A volume without a claim may be for anybody.
func TestAVolumeOfAClaimIsACauseForThisClaimAlone(t *testing.T) {
	a := volumeAsker(t, 2)
	listen(a, fine)
	a.Ask(questionOf("g", 0))
	run(t, a, time.Now())
	of := func(claim string) *v1.PersistentVolume {
		pv := volumeOf(7, "n1")
		if pv.ResourceVersion = claim; claim == "" {
			pv.Spec.ClaimRef = nil
		} else {
			pv.Spec.ClaimRef.Name = claim
		}
		return pv
	}
	for name, row := range map[string]struct {
		before, after *v1.PersistentVolume
		want          bool
	}{
		"another claim's":       {nil, of("c1"), false},
		"stays another claim's": {volumeOf(7, "n2"), of("c7"), false},
		"its own":               {nil, of("c0"), true},
		"becomes its own":       {of("c1"), of("c0"), true},
		"comes free":            {of("c1"), of(""), true},
		"is taken":              {of(""), of("c1"), true},
		"goes":                  {of(""), nil, true},
	} {
		if again := answersAgain(a, a.volumeHandler(), row.before, row.after); again != row.want {
			t.Errorf("a volume that %s: answered again: %v", name, again)
		}
	}
}

// Users can make claims at will. Only devices that are allocated or freed concern others.
func TestADeviceClaimIsACauseForOthersOnlyByItsDevices(t *testing.T) {
	pod, name := userOf(0, "c0", ""), "mine"
	pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "d", ResourceClaimName: &name}}
	a := askerOf(t.Context(), t, volumePlugins, nil, append(nodesOf(1), pod, claim(0, "by-hand", "pv0"), volumeOf(0, "n0"))...)
	listen(a, fine)
	a.Ask(questionOf("g", 0))
	run(t, a, time.Now())
	of := func(name, version string, devices ...string) *resourceapi.ResourceClaim {
		result := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, ResourceVersion: version}}
		if len(devices) > 0 {
			result.Status.Allocation = &resourceapi.AllocationResult{}
		}
		for _, device := range devices {
			result.Status.Allocation.Devices.Results = append(result.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{Device: device})
		}
		return result
	}
	for name, row := range map[string]struct {
		before, after *resourceapi.ResourceClaim
		want          bool
	}{
		"is made":               {nil, of("other", "1"), false},
		"changes":               {of("other", "1"), of("other", "2"), false},
		"goes":                  {of("other", "1"), nil, false},
		"gets devices":          {of("other", "1"), of("other", "2", "d"), true},
		"frees devices":         {of("other", "1", "d"), of("other", "2"), true},
		"goes with its devices": {of("other", "1", "d"), nil, true},
		"keeps its devices":     {of("other", "1", "d"), of("other", "2", "d"), false},
		"is made, its own":      {nil, of("mine", "1"), true},
		"changes, its own":      {of("mine", "1"), of("mine", "2"), true},
		"goes, its own":         {of("mine", "1"), nil, true},
	} {
		if again := answersAgain(a, a.deviceClaimHandler(), row.before, row.after); again != row.want {
			t.Errorf("a claim that %s: answered again: %v", name, again)
		}
	}
}

// answersAgain tells whether the question of gang g is answered again after a change of an object. A nil object
// before the change means that the object is new, and nil after it that the object is gone.
func answersAgain[T any](a *Asker, handler cache.ResourceEventHandler, before, after *T) bool {
	a.questions["g"].claimChanged, a.questions["g"].causes = false, a.causes
	switch {
	case before == nil:
		handler.OnAdd(after, false)
	case after == nil:
		handler.OnDelete(before)
	default:
		handler.OnUpdate(before, after)
	}
	q, _, _ := a.nextQuestion(time.Now().Add(time.Hour))
	return q != nil
}

// The node n0 has attachments for two volumes. Pods 0 to 3 share a claim, and pods 11 to 14 have one each.
func roomAsker(t *testing.T) *Asker {
	t.Helper()
	objects := nodesOf(1)
	for i := range 5 {
		pv := volumeOf(i, "n0")
		pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: fmt.Sprint(i)}}
		objects = append(objects, claim(i, "by-hand", fmt.Sprintf("pv%d", i)), pv)
		objects = append(objects, userOf(i, "c0", ""), userOf(10+i, fmt.Sprintf("c%d", i), ""))
	}
	limit := int32(2)
	return askerOf(t.Context(), t, volumePlugins, nil, append(objects, &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: "n0"},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
			Name: "d", NodeID: "n0", Allocatable: &storagev1.VolumeNodeResources{Count: &limit},
		}}},
	})...)
}

// A trial may take long, so other questions may be worked on before each trial.
func TestMeasuringRoomPausesBeforeEachTrial(t *testing.T) {
	a := roomAsker(t)
	var pods []*v1.Pod
	for i := range 4 {
		pods = append(pods, userOf(11+i, fmt.Sprintf("c%d", 1+i), ""))
	}
	pauses := 0
	count := func() bool { pauses++; return true }
	result := a.inspector.inspect(t.Context(), pods, count)
	if result.room["n0"] != 2 {
		t.Fatalf("room %v, want 2 on n0", result.room)
	}
	if pauses != 4 { // after the nodes were inspected, and before trials of 4, 2 and 3 pods
		t.Errorf("%d pauses, want 4", pauses)
	}
	for pauses := range 4 {
		if result := a.inspector.inspect(t.Context(), pods, func() bool { pauses--; return pauses >= 0 }); pauses != -1 {
			t.Errorf("goes on after a pause that ends it: %v", result)
		}
	}
}

func TestADeviceTaintRuleIsACause(t *testing.T) {
	a := volumeAsker(t, 1)
	factory := a.handle.SharedInformerFactory()
	if err := a.watch(factory, []config.Plugin{{Name: devices.Name}}); err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	cache.WaitForCacheSync(t.Context().Done(), a.synced...)
	listen(a, fine)
	a.Ask(questionOf("g", 0))
	run(t, a, time.Now())
	answered := func() bool {
		q, _, _ := a.nextQuestion(time.Now().Add(time.Hour))
		return q == nil
	}
	if !answered() {
		t.Fatal("the question is still open before there is a rule")
	}
	rule := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "r"}}
	if _, err := a.handle.ClientSet().ResourceV1().DeviceTaintRules().Create(t.Context(), rule, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for answered() {
		select {
		case <-a.wake:
		case <-time.After(time.Minute):
			t.Fatal("the rule is no cause")
		}
	}
}

func TestGangsThatShareAClaimGetRoomOfTheirOwn(t *testing.T) {
	gangs := map[string][]int{"shared": {0, 1, 2, 3}, "own": {11, 12, 13, 14}}
	rooms := func(order ...string) (result []string) {
		a := roomAsker(t)
		heard := listen(a, fine)
		for _, gang := range order {
			a.Ask(questionOf(gang, gangs[gang]...))
			run(t, a, time.Now())
		}
		for _, report := range *heard {
			result = append(result, fmt.Sprint(report.Answers[0].Room))
		}
		return result
	}
	shared, separate := rooms("shared")[0], rooms("own")[0]
	if shared == separate {
		t.Fatalf("both have room %s", separate)
	}
	if got := rooms("own", "shared")[1]; got != shared {
		t.Errorf("after the other gang: room %s, want %v", got, shared)
	}
	if got := rooms("shared", "own")[1]; got != separate {
		t.Errorf("after the other gang: room %s, want %v", got, separate)
	}
}

func TestPodsOfOneQuestionThatShareAClaimAreAKind(t *testing.T) {
	a := roomAsker(t)
	var pods []*v1.Pod
	for _, i := range []int{0, 1, 2, 3, 11, 12, 13, 14} {
		pods = append(pods, userOf(i, map[bool]string{true: "c0", false: fmt.Sprintf("c%d", i-10)}[i < 4], ""))
	}
	if kinds, _ := a.sorter.groupPods(pods, a.isUnique, always); len(kinds) != 2 {
		t.Errorf("%d kinds, want 2", len(kinds))
	}
}
