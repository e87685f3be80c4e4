package plugin

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"muster.dev/shim/internal/musterv1"
)

const zone = "topology.kubernetes.io/zone"

// zoned returns nodes n0 … in zones z0 … of four nodes each.
func zoned(count int) (nodes []*v1.Node) {
	for i := range count {
		n := node(fmt.Sprintf("n%d", i), "16")
		n.Labels = map[string]string{"kubernetes.io/hostname": n.Name, zone: fmt.Sprintf("z%d", i/4)}
		nodes = append(nodes, n)
	}
	return nodes
}

// localVolume returns a volume on one node. It is bound to the claim unless claim is "".
func localVolume(name, class, on, claim string) *v1.PersistentVolume {
	pv := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeSpec{
			Capacity: v1.ResourceList{"storage": resource.MustParse("1Gi")}, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			StorageClassName: class, PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: "/" + name}},
			NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchExpressions: []v1.NodeSelectorRequirement{{Key: "kubernetes.io/hostname", Operator: v1.NodeSelectorOpIn, Values: []string{on}}},
			}}}},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeAvailable},
	}
	if claim != "" {
		pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "ns", Name: claim, UID: types.UID("uid-" + claim)}
		pv.Status.Phase = v1.VolumeBound
	}
	return pv
}

// claimOf returns a claim of 1Gi. It is bound to the volume unless volume is "".
func claimOf(name, class, volume string) *v1.PersistentVolumeClaim {
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, StorageClassName: ptr.To(class), VolumeName: volume,
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{"storage": resource.MustParse("1Gi")}},
		},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending},
	}
	if volume != "" {
		claim.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
		claim.Status.Phase = v1.ClaimBound
	}
	return claim
}

func lateClass(name, provisioner string, zones ...string) *storagev1.StorageClass {
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)}
	if len(zones) > 0 {
		class.AllowedTopologies = []v1.TopologySelectorTerm{{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{{Key: zone, Values: zones}}}}
	}
	return class
}

// claimants creates members with one GPU each that use these claims. Several claims of a member are separated by commas.
func (h *harness) claimants(claims ...string) []string {
	h.t.Helper()
	names := members(len(claims))
	for i, name := range names {
		h.podsWith(func(pod *v1.Pod) {
			for _, claim := range strings.Split(claims[i], ",") {
				source := v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}
				pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: claim, VolumeSource: source})
			}
		}, "1", name)
	}
	return names
}

func inTreeQuestion(number uint64, names ...string) *musterv1.InTreeQuestion {
	q := &musterv1.InTreeQuestion{Gang: "ns/g", Question: number, Namespace: "ns", Names: names}
	for _, name := range names {
		q.Uids = append(q.Uids, "uid-"+name)
	}
	return q
}

// refusalsOf returns which nodes an answer refuses, as "plugin: reason", and the room of nodes.
func refusalsOf(r *musterv1.ReportInTreeRequest, at int) (refused map[string]string, room map[string]uint32) {
	refused, room = map[string]string{}, map[string]uint32{}
	a := r.Answers[at]
	for i, by := range a.Refused {
		if by > 0 {
			refused[r.Nodes[i]] = r.Refusals[by-1].Plugin + ": " + r.Refusals[by-1].Reason
		}
	}
	for i, members := range a.Room {
		if members > 0 {
			room[r.Nodes[i]] = uint32(members)
		}
	}
	return refused, room
}

func open(nodes int, refused map[string]string) (names []string) {
	for i := range nodes {
		if name := fmt.Sprintf("n%d", i); refused[name] == "" {
			names = append(names, name)
		}
	}
	return names
}

func TestInTreeAnswersNameAllNodesOfALocalVolume(t *testing.T) {
	h := newHarness(t, zoned(40)...)
	h.add(localVolume("pv", "local", "n39", "data"), claimOf("data", "local", "pv"))
	h.run("")
	names := h.claimants("data", "data")
	h.service.ask(inTreeQuestion(7, names...))
	report := next(t, "answer", h.service.inTree)
	if report.Epoch != 1 || report.Gang != "ns/g" || report.Question != 7 || len(report.Answers) != 1 || len(report.Answers[0].Pods) != 2 {
		t.Fatalf("report: %v", report)
	}
	refused, room := refusalsOf(report, 0)
	if got := open(40, refused); !slices.Equal(got, []string{"n39"}) || len(room) != 0 {
		t.Errorf("open: %v, room %v", got, room)
	}
	if want := "VolumeBinding: node(s) didn't match PersistentVolume's node affinity"; refused["n0"] != want {
		t.Errorf("n0: %q", refused["n0"])
	}
}

func TestInTreeAnswersNameAMissingClaimUntilItIsThere(t *testing.T) {
	h := newHarness(t, zoned(8)...)
	h.add(localVolume("pv", "local", "n3", "data"), localVolume("other", "local", "n2", "else"), claimOf("else", "local", "other"))
	h.run("")
	names := h.claimants("data", "else")
	h.service.ask(inTreeQuestion(1, names...))
	report := next(t, "answer", h.service.inTree)
	if missing := report.Answers[1].MissingClaims; !slices.Equal(missing, []string{"data"}) {
		t.Fatalf("report: %v", report)
	}
	if refused, _ := refusalsOf(report, 0); !slices.Equal(open(8, refused), []string{"n2"}) {
		t.Errorf("before it: %v", report.Answers[0])
	}
	if _, err := h.client.CoreV1().PersistentVolumeClaims("ns").Create(h.ctx, claimOf("data", "local", "pv"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	report = next(t, "answer, once the claim is there", h.service.inTree)
	if refused, _ := refusalsOf(report, 0); len(report.Answers[0].MissingClaims) > 0 || !slices.Equal(open(8, refused), []string{"n3"}) {
		t.Errorf("report: %v", report)
	}
}

func TestInTreeAnswersSayWhatRefusesAPodEverywhere(t *testing.T) {
	h := newHarness(t, zoned(4)...)
	class := lateClass("slow", "example.com/disks")
	class.VolumeBindingMode = ptr.To(storagev1.VolumeBindingImmediate)
	h.add(class, claimOf("data", "slow", ""))
	h.run("")
	h.service.ask(inTreeQuestion(1, h.claimants("data")...))
	got := next(t, "answer", h.service.inTree).Answers[0].Everywhere
	if got.GetPlugin() != "VolumeBinding" || !strings.Contains(got.GetReason(), "unbound immediate PersistentVolumeClaims") {
		t.Errorf("everywhere: %v", got)
	}
}

// Each plugin checks one pod alone. To it, three claims fit wherever there is a volume for one of them.
func TestInTreeAnswersCountTheRoomForUnboundClaims(t *testing.T) {
	h := newHarness(t, zoned(6)...)
	h.add(lateClass("local", "kubernetes.io/no-provisioner"), lateClass("zonal", "example.com/disks", "z1"))
	for i, on := range []string{"n1", "n2", "n2", "n4", "n4", "n4", "n5", "n5", "n5", "n5"} {
		h.add(localVolume(fmt.Sprintf("pv%d", i), "local", on, ""))
	}
	h.add(claimOf("a", "local", ""), claimOf("b", "local", ""), claimOf("c", "local", ""), claimOf("z", "zonal", ""))
	h.run("")
	h.service.ask(inTreeQuestion(1, h.claimants("a", "b", "c", "z")...))
	report := next(t, "answer", h.service.inTree)
	if len(report.Answers) != 2 || len(report.Answers[0].Pods) != 3 {
		t.Fatalf("kinds: %v", report.Answers)
	}
	refused, room := refusalsOf(report, 0)
	if got := open(6, refused); !slices.Equal(got, []string{"n1", "n2", "n4", "n5"}) {
		t.Errorf("open: %v", got)
	}
	if len(room) != 2 || room["n1"] != 1 || room["n2"] != 2 {
		t.Errorf("room: %v", room)
	}
	if refused, room := refusalsOf(report, 1); !slices.Equal(open(6, refused), []string{"n4", "n5"}) || len(room) != 0 {
		t.Errorf("the zonal one: open %v, room %v", open(6, refused), room)
	}
}

func TestInTreeAnswersCountAttachableVolumes(t *testing.T) {
	h := newHarness(t, zoned(3)...)
	const driver = "csi.example.com"
	for name, limit := range map[string]int32{"n0": 3, "n1": 0, "n2": 1} {
		h.add(&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
			{Name: driver, NodeID: name, Allocatable: &storagev1.VolumeNodeResources{Count: ptr.To(limit)}},
		}}})
	}
	volume := func(name, claim string) *v1.PersistentVolume {
		pv := localVolume(name, "disks", "", claim)
		pv.Spec.NodeAffinity, pv.Spec.PersistentVolumeSource = nil, v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: name}}
		return pv
	}
	for _, claim := range []string{"a", "b", "c", "used"} {
		h.add(volume("pv-"+claim, claim), claimOf(claim, "disks", "pv-"+claim))
	}
	h.add(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "running", UID: "running"}, Spec: v1.PodSpec{
		NodeName: "n0", Volumes: []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "used"}}}},
	}})
	h.run("")
	h.service.ask(inTreeQuestion(1, h.claimants("a", "b", "c")...))
	refused, room := refusalsOf(next(t, "answer", h.service.inTree), 0)
	if len(refused) != 1 || refused["n1"] != "NodeVolumeLimits: node(s) exceed max volume count" {
		t.Errorf("refused: %v", refused)
	}
	if len(room) != 2 || room["n0"] != 2 || room["n2"] != 1 {
		t.Errorf("room: %v", room)
	}
	// The pods on n0 finish.
	if err := h.client.CoreV1().Pods("ns").Delete(h.ctx, "running", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, room = refusalsOf(next(t, "answer, once the pod is gone", h.service.inTree), 0); len(room) != 1 || room["n2"] != 1 {
		t.Errorf("room, once the pod is gone: %v", room)
	}
}

// The weights of the profile are 3 for taints and 2 for node affinity.
func TestInTreeAnswersScoreNodesForAPodWithPreferences(t *testing.T) {
	nodes := zoned(8)
	for _, n := range nodes[6:] {
		n.Spec.Taints = []v1.Taint{{Key: "old", Effect: v1.TaintEffectPreferNoSchedule}}
	}
	h := newHarness(t, nodes...)
	h.run("")
	h.pods("1", "m0")
	h.podsWith(func(pod *v1.Pod) {
		pod.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.PreferredSchedulingTerm{
			{Weight: 1, Preference: v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{Key: zone, Operator: v1.NodeSelectorOpIn, Values: []string{"z1"}}}}},
		}}}
	}, "1", "m1")
	h.service.ask(inTreeQuestion(1, "m0", "m1"))
	report := next(t, "answer", h.service.inTree)
	got := map[string]uint32{}
	for i, score := range report.Answers[1].Scores {
		got[report.Nodes[i]] = uint32(score)
	}
	want := map[string]uint32{"n0": 60, "n1": 60, "n2": 60, "n3": 60, "n4": 100, "n5": 100, "n6": 40, "n7": 40}
	if len(report.Answers[0].Scores) > 0 || !maps.Equal(got, want) {
		t.Errorf("scores %v, report %v", got, report)
	}
}

func TestInTreeQuestionsEndWithTheirPods(t *testing.T) {
	h := newHarness(t, zoned(4)...)
	h.add(lateClass("zonal", "example.com/disks", "z0"), claimOf("a", "zonal", ""))
	h.run("")
	h.service.ask(inTreeQuestion(1, h.claimants("a")...))
	next(t, "answer", h.service.inTree)
	if err := h.client.CoreV1().Pods("ns").Delete(h.ctx, "m0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	h.until("the informer knows", func() bool { _, err := h.plugin.pods.Pods("ns").Get("m0"); return err != nil })
	h.add(lateClass("another", "example.com/disks")) // a cause for another answer
	h.until("no question is open", func() bool { return h.plugin.inTree.Open() == 0 })
	if len(h.service.inTree) != 0 {
		t.Errorf("report: %v", <-h.service.inTree)
	}
}
