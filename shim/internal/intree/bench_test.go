package intree

import (
	"context"
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

const benchNodes, benchPods, benchMembers = 5000, 20000, 64

// BenchmarkAnswer measures one answer for a gang of 64 on 5,000 nodes, with 20,000 bound pods that use volumes. It
// also measures the snapshot for it.
func BenchmarkAnswer(b *testing.B) {
	for name, member := range map[string]func(i int) []runtime.Object{
		"bound to one node each": func(i int) []runtime.Object {
			return []runtime.Object{volumeOf(i, fmt.Sprintf("n%d", i*7)), claim(i, "by-hand", fmt.Sprintf("pv%d", i))}
		},
		"still to be made": func(i int) []runtime.Object { return []runtime.Object{claim(i, "late", "")} },
	} {
		b.Run(name, func(b *testing.B) {
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			var members []runtime.Object
			for i := range benchMembers {
				members = append(members, member(i)...)
			}
			a, pods := benchAsker(ctx, b, members)
			b.Run("snapshot", func(b *testing.B) {
				for b.Loop() {
					if err := a.startRound(); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run("answer", func(b *testing.B) {
				for b.Loop() {
					clear(a.cachedAnswers("ns"))
					kinds, _ := a.sorter.groupPods(pods, a.isUnique, always)
					if report := a.buildReport(ctx, pods, kinds, a.cachedAnswers("ns"), always); len(report) == 0 {
						b.Fatal("no answer")
					}
				}
			})
		})
	}
}

func volumeOf(i int, on string) *v1.PersistentVolume {
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pv%d", i)},
		Spec: v1.PersistentVolumeSpec{
			PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: "/x"}},
			ClaimRef:               &v1.ObjectReference{Namespace: "ns", Name: fmt.Sprintf("c%d", i), UID: types.UID(fmt.Sprintf("c%d", i))},
			NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{on}}},
			}}}},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound},
	}
}

func claim(i int, class, volume string) *v1.PersistentVolumeClaim {
	pvc := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("c%d", i), UID: types.UID(fmt.Sprintf("c%d", i))},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, StorageClassName: &class, VolumeName: volume,
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{"storage": resource.MustParse("1Gi")}},
		},
	}
	if volume != "" {
		pvc.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
	}
	return pvc
}

func userOf(i int, claim, node string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("p%d", i), UID: types.UID(fmt.Sprintf("p%d", i))},
		Spec: v1.PodSpec{NodeName: node, Containers: []v1.Container{{Name: "c"}}, Volumes: []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}}},
	}
}

func benchAsker(ctx context.Context, b *testing.B, members []runtime.Object) (*Asker, []*v1.Pod) {
	objects := members
	add := func(object runtime.Object) { objects = append(objects, object) }
	for i := range benchNodes {
		name := fmt.Sprintf("n%d", i)
		add(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name, v1.LabelTopologyZone: "z"}}})
		add(&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
			{Name: "csi.example.com", NodeID: name, Allocatable: &storagev1.VolumeNodeResources{Count: ptr.To[int32](8)}},
		}}})
	}
	add(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Provisioner: "csi.example.com", VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)})
	for i := benchMembers; i < benchMembers+benchPods; i++ {
		add(claim(i, "late", fmt.Sprintf("pv%d", i)))
		pv := volumeOf(i, "")
		pv.Spec.NodeAffinity, pv.Spec.PersistentVolumeSource = nil, v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: pv.Name}}
		add(pv)
		add(userOf(i, fmt.Sprintf("c%d", i), fmt.Sprintf("n%d", i%benchNodes)))
	}
	a := askerOf(ctx, b, volumePlugins, nil, objects...)
	var pods []*v1.Pod
	for i := range benchMembers {
		pods = append(pods, userOf(i, fmt.Sprintf("c%d", i), ""))
	}
	return a, pods
}
