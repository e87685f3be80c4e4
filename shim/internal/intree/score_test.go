package intree

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"muster.dev/shim/internal/musterv1"
)

// weights are the weights in the default profile.
var weights = []config.Plugin{
	{Name: names.TaintToleration, Weight: 3}, {Name: names.NodeAffinity, Weight: 2}, {Name: names.PodTopologySpread, Weight: 2},
	{Name: names.InterPodAffinity, Weight: 2}, {Name: names.ImageLocality, Weight: 1},
}

// scoringAsker returns an asker with snapshots that runs no filter plugin.
func scoringAsker(ctx context.Context, t testing.TB, objects ...runtime.Object) *Asker {
	t.Helper()
	return askerOf(ctx, t, nil, weights, objects...)
}

// diskNode returns a node in a zone, with a disk.
func diskNode(name, zone, disk string, change ...func(*v1.Node)) *v1.Node {
	object := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		v1.LabelHostname: name, v1.LabelTopologyZone: zone, "disk": disk,
	}}}
	for _, apply := range change {
		apply(object)
	}
	return object
}

func tainted(effect v1.TaintEffect) func(*v1.Node) {
	return func(n *v1.Node) { n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: "old", Effect: effect}) }
}

func running(name, node, app string, change ...func(*v1.Pod)) *v1.Pod {
	object := member(name, change...)
	object.Spec.NodeName, object.Labels = node, map[string]string{"app": app}
	return object
}

func member(name string, change ...func(*v1.Pod)) *v1.Pod {
	object := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Labels: map[string]string{"app": "web"}},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "web"}}, Affinity: &v1.Affinity{}},
	}
	for _, apply := range change {
		apply(object)
	}
	return object
}

func likes(weight int32, key, value string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		near := &v1.NodeAffinity{}
		if p.Spec.Affinity.NodeAffinity != nil {
			near = p.Spec.Affinity.NodeAffinity
		}
		near.PreferredDuringSchedulingIgnoredDuringExecution = append(near.PreferredDuringSchedulingIgnoredDuringExecution, v1.PreferredSchedulingTerm{
			Weight: weight, Preference: v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{Key: key, Operator: v1.NodeSelectorOpIn, Values: []string{value}}}},
		})
		p.Spec.Affinity.NodeAffinity = near
	}
}

func term(app, key string) v1.WeightedPodAffinityTerm {
	return v1.WeightedPodAffinityTerm{Weight: 100, PodAffinityTerm: v1.PodAffinityTerm{
		TopologyKey: key, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
	}}
}

func near(app, key string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Affinity.PodAffinity = &v1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.WeightedPodAffinityTerm{term(app, key)}}
	}
}

func apart(app, key string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Affinity.PodAntiAffinity = &v1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.WeightedPodAffinityTerm{term(app, key)}}
	}
}

func spread(when v1.UnsatisfiableConstraintAction) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: when,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		}}
	}
}

func TestScores(t *testing.T) {
	finished := running("old", "d", "db")
	finished.Status.Phase = v1.PodSucceeded
	for name, row := range map[string]struct {
		pod  *v1.Pod
		more []runtime.Object
		want map[string]uint32
	}{
		"no preferences":          {pod: member("m")},
		"spread that is required": {pod: member("m", spread(v1.DoNotSchedule)), more: []runtime.Object{running("x", "a", "web")}},
		"node affinity":           {pod: member("m", likes(5, "disk", "hdd")), want: map[string]uint32{"b": 100, "d": 100}},
		"node affinity that all nodes satisfy": {
			pod: member("m", likes(1, "disk", "ssd"), likes(1, "disk", "hdd")),
		},
		"two terms of node affinity": {
			pod:  member("m", likes(30, "disk", "hdd"), likes(10, v1.LabelTopologyZone, "z1")),
			want: map[string]uint32{"b": 75, "c": 25, "d": 100},
		},
		"pod affinity":               {pod: member("m", near("db", v1.LabelHostname)), more: []runtime.Object{running("x", "c", "db")}, want: map[string]uint32{"c": 100}},
		"pod affinity to nobody":     {pod: member("m", near("db", v1.LabelHostname)), more: []runtime.Object{running("x", "c", "else"), finished}},
		"pod anti-affinity":          {pod: member("m", apart("db", v1.LabelTopologyZone)), more: []runtime.Object{running("x", "c", "db")}, want: map[string]uint32{"a": 100, "b": 100}},
		"spread":                     {pod: member("m", spread(v1.ScheduleAnyway)), more: []runtime.Object{running("x", "a", "web")}, want: map[string]uint32{"c": 100, "d": 100}},
		"preferences of a bound pod": {pod: member("m", likes(1, "none", "none")), more: []runtime.Object{running("x", "b", "db", near("web", v1.LabelHostname))}, want: map[string]uint32{"b": 100}},
		"node affinity (2) and a taint that is avoided (3)": {
			pod:  member("m", likes(1, "disk", "hdd")),
			more: []runtime.Object{diskNode("e", "z1", "hdd", tainted(v1.TaintEffectPreferNoSchedule))},
			want: map[string]uint32{"a": 60, "b": 100, "c": 60, "d": 100, "e": 40},
		},
		"closed nodes do not count": {
			pod: member("m", likes(1, "disk", "nvme")),
			more: []runtime.Object{
				diskNode("e", "z1", "nvme", tainted(v1.TaintEffectNoSchedule)),
				diskNode("f", "z1", "nvme", func(n *v1.Node) { n.Spec.Unschedulable = true }),
			},
		},
		"node affinity (2) and an image (1)": {
			pod: member("m", likes(1, "disk", "hdd")),
			more: []runtime.Object{diskNode("e", "z1", "ssd", func(n *v1.Node) {
				n.Status.Images = []v1.ContainerImage{{Names: []string{"web:latest"}, SizeBytes: 10 << 30}}
			})},
			want: map[string]uint32{"b": 67, "d": 67, "e": 33},
		},
	} {
		t.Run(name, func(t *testing.T) {
			objects := append([]runtime.Object{
				&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}},
				diskNode("a", "z0", "ssd"), diskNode("b", "z0", "hdd"), diskNode("c", "z1", "ssd"), diskNode("d", "z1", "hdd"),
			}, row.more...)
			a := scoringAsker(t.Context(), t, objects...)
			got := scoresOf(t, a, row.pod)[0]
			if !maps.Equal(got, row.want) {
				t.Errorf("scores %v, want %v", got, row.want)
			}
		})
	}
}

// scoresOf returns the scores of each answer, by the names of nodes.
func scoresOf(t testing.TB, a *Asker, pods ...*v1.Pod) (result []map[string]uint32) {
	t.Helper()
	kinds, _ := a.sorter.groupPods(pods, a.isUnique, always)
	report := a.buildReport(t.Context(), pods, kinds, a.cachedAnswers("ns"), always)[0]
	for _, answer := range report.Answers {
		scores := map[string]uint32{}
		for i, score := range answer.Scores {
			if score > 0 {
				scores[report.Nodes[i]] = uint32(score)
			}
		}
		result = append(result, scores)
	}
	return result
}

func TestScoresLeaveOutWhatThePluginsRefuse(t *testing.T) {
	a := scoringAsker(t.Context(), t, diskNode("a", "z0", "hdd"), diskNode("b", "z0", "hdd"), diskNode("c", "z1", "ssd"))
	pod := member("m", likes(1, "disk", "hdd"))
	podScores := &scores{scorer: a.scorer, byPreferences: map[string]map[string]uint32{}}
	if got := podScores.scoresOf(t.Context(), pod, map[string]refusal{"a": {}}); !maps.Equal(got, map[string]uint32{"b": 100}) {
		t.Errorf("scores: %v", got)
	}
	if got := podScores.scoresOf(t.Context(), pod, map[string]refusal{"c": {}}); got != nil {
		t.Errorf("scores of nodes that are alike: %v", got)
	}
}

func TestScoresOfManyKindsAreBounded(t *testing.T) {
	a := scoringAsker(t.Context(), t, diskNode("a", "z0", "hdd"), diskNode("b", "z0", "hdd"), diskNode("c", "z1", "ssd"))
	pod := member("m", likes(1, "disk", "hdd"))
	podScores := &scores{scorer: a.scorer, byPreferences: map[string]map[string]uint32{}}
	for range 3 * maxScored {
		if got := podScores.scoresOf(t.Context(), pod, map[string]refusal{"other": {}}); len(got) != 2 {
			t.Fatalf("scores: %v", got)
		}
	}
	if podScores.scoredCount != maxScored {
		t.Errorf("scored %d times", podScores.scoredCount)
	}
}

// Many gangs of one template are scored once per round. Pods with other labels may have other scores.
func TestScoresAreSharedByQuestionsOfOneRound(t *testing.T) {
	a := scoringAsker(t.Context(), t, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}},
		diskNode("a", "z0", "hdd"), diskNode("b", "z0", "ssd"), running("x", "b", "db", near("web", v1.LabelHostname)))
	otherPod := member("other", likes(1, "none", "none"))
	otherPod.Labels = map[string]string{"app": "else"}
	total := 0
	for i, pod := range []*v1.Pod{member("m0", likes(1, "none", "none")), member("m1", likes(1, "none", "none")), otherPod} {
		podScores := &scores{scorer: a.scorer, byPreferences: map[string]map[string]uint32{}}
		if got := podScores.scoresOf(t.Context(), pod, nil); got["b"] != []uint32{100, 100, 0}[i] {
			t.Errorf("%s: scores %v", pod.Name, got)
		}
		total += podScores.scoredCount
	}
	if total != 2 {
		t.Errorf("scored %d times", total)
	}
}

func TestScoresOfPodsThatDifferInPreferences(t *testing.T) {
	a := scoringAsker(t.Context(), t, diskNode("a", "z0", "ssd"), diskNode("b", "z0", "hdd"))
	got := scoresOf(t, a, member("m0", likes(1, "disk", "hdd")), member("m1", likes(1, "disk", "ssd")), member("m2", likes(1, "disk", "hdd")))
	want := []map[string]uint32{{"b": 100}, {"a": 100}}
	if !slices.EqualFunc(got, want, func(x, y map[string]uint32) bool { return maps.Equal(x, y) }) {
		t.Errorf("scores %v, want %v", got, want)
	}
}

// Scores follow changes: the snapshot is renewed, and unchanged nodes keep their NodeInfo.
func TestScoresAreRenewed(t *testing.T) {
	a := scoringAsker(t.Context(), t, diskNode("a", "z0", "ssd"), diskNode("b", "z0", "hdd"))
	pod := member("m", near("db", v1.LabelHostname))
	if got := scoresOf(t, a, pod)[0]; len(got) != 0 {
		t.Fatalf("scores: %v", got)
	}
	factory := a.handle.SharedInformerFactory().Core().V1()
	if err := factory.Pods().Informer().GetIndexer().Add(running("x", "b", "db")); err != nil {
		t.Fatal(err)
	}
	if err := a.startRound(); err != nil {
		t.Fatal(err)
	}
	if got := scoresOf(t, a, pod)[0]; !maps.Equal(got, map[string]uint32{"b": 100}) {
		t.Errorf("scores: %v", got)
	}
}

// BenchmarkScores measures the scoring of 5,000 nodes with 50,000 bound pods and 40 images each.
func BenchmarkScores(b *testing.B) {
	objects := []runtime.Object{&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}}
	for i := range benchNodes {
		objects = append(objects, diskNode(fmt.Sprintf("n%d", i), fmt.Sprintf("z%d", i%3), "ssd", func(n *v1.Node) {
			for image := range 40 {
				n.Status.Images = append(n.Status.Images, v1.ContainerImage{Names: []string{fmt.Sprintf("i%d:latest", image)}, SizeBytes: 1 << 30})
			}
		}))
	}
	for i := range 10 * benchNodes {
		objects = append(objects, running(fmt.Sprintf("p%d", i), fmt.Sprintf("n%d", i%benchNodes), fmt.Sprintf("a%d", i%7)))
	}
	a := scoringAsker(b.Context(), b, objects...)
	pod := member("m", likes(1, v1.LabelTopologyZone, "z1"), near("a1", v1.LabelHostname), spread(v1.ScheduleAnyway))
	b.Run("first snapshot", func(b *testing.B) {
		for b.Loop() {
			a.scorer.snapshot.byName = nil
			if err := a.scorer.snapshot.refresh(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("next snapshot", func(b *testing.B) {
		for b.Loop() {
			if err := a.scorer.snapshot.refresh(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("scores", func(b *testing.B) {
		for b.Loop() {
			if result, err := a.scorer.score(b.Context(), pod, nil); err != nil || len(result) == 0 {
				b.Fatal(result, err)
			}
		}
	})
}

// A question with preferences is answered again after some time, although no cause has changed. Others are not.
func TestScoresAreAnsweredAgain(t *testing.T) {
	plain, picky := member("plain"), member("picky", near("db", v1.LabelHostname))
	a := scoringAsker(t.Context(), t, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}},
		diskNode("a", "z0", "ssd"), diskNode("b", "z0", "hdd"), plain, picky)
	var reports []*musterv1.ReportInTreeRequest
	a.report = func(_ context.Context, report *musterv1.ReportInTreeRequest) error {
		reports = append(reports, report)
		return nil
	}
	a.Begin(1)
	for _, pod := range []*v1.Pod{plain, picky} {
		a.Ask(&musterv1.InTreeQuestion{Gang: pod.Name, Question: 1, Namespace: "ns", Names: []string{pod.Name}, Uids: []string{string(pod.UID)}})
	}
	began := time.Now()
	run(t, a, began)
	if len(reports) != 2 {
		t.Fatalf("reports: %v", reports)
	}
	for gang, q := range a.questions {
		if soon, late := began.Add(scoresAfter), began.Add(time.Hour); q.due.Before(soon) || q.due.Before(late) != (gang == "picky") {
			t.Errorf("%s is answered again after %s", gang, q.due.Sub(began))
		}
	}
	run(t, a, began.Add(2*scoresAfter))
	if len(reports) != 2 {
		t.Errorf("the same scores are reported again: %v", reports[2])
	}
	if err := a.handle.SharedInformerFactory().Core().V1().Pods().Informer().GetIndexer().Add(running("x", "b", "db")); err != nil {
		t.Fatal(err)
	}
	a.round.began = time.Time{} // a second has passed
	run(t, a, began.Add(4*scoresAfter))
	if len(reports) != 3 || !slices.Equal(reports[2].Answers[0].Scores, []byte{0, 100}) {
		t.Errorf("reports: %v", reports)
	}
}
