package intree

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	schedulermetrics "k8s.io/kubernetes/pkg/scheduler/metrics"

	"muster.dev/shim/internal/musterv1"
)

var volumePlugins = []config.Plugin{
	{Name: names.VolumeRestrictions}, {Name: names.NodeVolumeLimits}, {Name: names.VolumeBinding}, {Name: names.VolumeZone},
}

func always() bool { return true }

// askerOf makes an asker on these objects; its snapshot is made.
func askerOf(ctx context.Context, t testing.TB, plugins, scoring []config.Plugin, objects ...runtime.Object) *Asker {
	t.Helper()
	schedulermetrics.Register()
	client := fake.NewClientset()
	for _, object := range objects {
		if err := client.Tracker().Add(object); err != nil {
			t.Fatal(err)
		}
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	handle, err := frameworkruntime.NewFramework(ctx, nil, nil,
		frameworkruntime.WithClientSet(client), frameworkruntime.WithInformerFactory(factory),
		frameworkruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(factory.Storage().V1().CSINodes().Lister())))
	if err != nil {
		t.Fatal(err)
	}
	a := New(handle, nil)
	if err := a.prepare(ctx, plugins, scoring); err != nil {
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	cache.WaitForCacheSync(ctx.Done(), a.heard...)
	a.sliceFor = time.Hour
	if err := a.renew(); err != nil {
		t.Fatal(err)
	}
	return a
}

func nodesOf(count int) (found []runtime.Object) {
	for i := range count {
		name := fmt.Sprintf("n%d", i)
		found = append(found, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}}})
	}
	return found
}

// onNode is a pod with a volume on one node.
func onNode(i int, node string) []runtime.Object {
	return []runtime.Object{
		userOf(i, fmt.Sprintf("c%d", i), ""), claim(i, "by-hand", fmt.Sprintf("pv%d", i)), volumeOf(i, node),
	}
}

func questionOf(gang string, pods ...int) *musterv1.InTreeQuestion {
	q := &musterv1.InTreeQuestion{Gang: gang, Question: 1, Namespace: "ns"}
	for _, i := range pods {
		q.Names, q.Uids = append(q.Names, fmt.Sprintf("p%d", i)), append(q.Uids, fmt.Sprintf("p%d", i))
	}
	return q
}

// run answers what is due at a time, in slices, each question once.
func run(t testing.TB, a *Asker, now time.Time) {
	t.Helper()
	done := map[*question]bool{}
	for range 10000 {
		a.restUntil = time.Time{}
		q, because, _ := a.next(now)
		if q == nil || done[q] {
			return
		}
		a.slice(t.Context(), q, because)
		done[q] = a.works[q] == nil
	}
	t.Fatal("it does not end")
}

// listen keeps the reports; `fails` says how to answer one.
func listen(a *Asker, fails func() error) *[]*musterv1.ReportInTreeRequest {
	heard := &[]*musterv1.ReportInTreeRequest{}
	a.report = func(_ context.Context, report *musterv1.ReportInTreeRequest) error {
		*heard = append(*heard, report)
		return fails()
	}
	a.Begin(1)
	return heard
}

func fine() error { return nil }

func gangsOf(reports []*musterv1.ReportInTreeRequest) (found []string) {
	for _, report := range reports {
		found = append(found, report.Gang)
	}
	return found
}

func upTo(count int) (found []int) {
	for i := range count {
		found = append(found, i)
	}
	return found
}

func TestQuestionsAreAnsweredInTurns(t *testing.T) {
	objects := nodesOf(3)
	for i := range 21 {
		objects = append(objects, onNode(i, fmt.Sprintf("n%d", i%3))...)
	}
	a := askerOf(t.Context(), t, volumePlugins, nil, objects...)
	a.sliceFor = 0
	heard := listen(a, fine)
	a.Ask(questionOf("large", upTo(20)...))
	for range 3 {
		q, because, _ := a.next(time.Now())
		a.slice(t.Context(), q, because)
	}
	a.Ask(questionOf("small", 20))
	run(t, a, time.Now())
	if got := gangsOf(*heard); !slices.Equal(got, []string{"small", "large"}) {
		t.Errorf("answered: %v", got)
	}
}

func TestWorkOnAQuestionThatIsReplacedEnds(t *testing.T) {
	objects := nodesOf(3)
	for i := range 4 {
		objects = append(objects, onNode(i, "n1")...)
	}
	a := askerOf(t.Context(), t, volumePlugins, nil, objects...)
	a.sliceFor = 0
	heard := listen(a, fine)
	a.Ask(questionOf("g", 0, 1))
	q, because, _ := a.next(time.Now())
	a.slice(t.Context(), q, because)
	again := questionOf("g", 2, 3)
	again.Question = 2
	a.Ask(again)
	run(t, a, time.Now())
	if len(*heard) != 1 || (*heard)[0].Question != 2 || len(a.works) > 0 {
		t.Errorf("reports %v, works %v", *heard, a.works)
	}
}

// A user can't have all turns by asking much, in one namespace or with one gang.
func TestTurnsGoRoundByNamespaces(t *testing.T) {
	a := askerOf(t.Context(), t, volumePlugins, nil, nodesOf(1)...)
	listen(a, fine)
	for i := range 10 {
		a.Ask(questionOf(fmt.Sprint(i), i))
	}
	for _, namespace := range []string{"x", "y"} {
		other := questionOf(namespace, 10)
		other.Namespace = namespace
		a.Ask(other)
	}
	turns := map[string]int{}
	for range 30 {
		q, because, _ := a.next(time.Now())
		turns[q.asked.Namespace]++
		a.turns.take(q, because)
	}
	if turns["ns"] != 10 || turns["x"] != 10 || turns["y"] != 10 {
		t.Errorf("turns: %v", turns)
	}
}

func TestRenewalsRestAndNewQuestionsDoNot(t *testing.T) {
	objects := append(nodesOf(2), onNode(0, "n0")...)
	a := askerOf(t.Context(), t, volumePlugins, nil, append(objects, onNode(1, "n1")...)...)
	heard := listen(a, fine)
	a.Ask(questionOf("old", 0))
	run(t, a, time.Now())
	a.touched()
	later := time.Now().Add(time.Hour)
	a.restUntil = later.Add(time.Second)
	if q, _, wait := a.next(later); q != nil || wait != time.Second {
		t.Fatalf("a renewal begins at once: %v, wait %s", q, wait)
	}
	a.Ask(questionOf("new", 1))
	if q, because, _ := a.next(later); q == nil || q.asked.Gang != "new" || because != first {
		t.Fatalf("next: %v, %v", q, because)
	}
	before := a.restUntil
	q, because, _ := a.next(later)
	a.slice(t.Context(), q, because)
	if got := gangsOf(*heard); a.restUntil != before || !slices.Equal(got, []string{"old", "new"}) {
		t.Errorf("answered %v, rest until %s", got, a.restUntil)
	}
}

// What an object names goes before what may be the cause of anything, but not always.
func TestACauseThatNamesAClaimGoesFirst(t *testing.T) {
	objects := nodesOf(2)
	for i := range 8 {
		objects = append(objects, onNode(i, "n0")...)
	}
	a := askerOf(t.Context(), t, volumePlugins, nil, objects...)
	listen(a, fine)
	for i := range 8 {
		a.Ask(questionOf(fmt.Sprint(i), i))
	}
	run(t, a, time.Now())
	a.touched()
	a.claimTouched("ns/c5")
	a.claimTouched("ns/c6")
	later := time.Now().Add(time.Hour)
	var order []why
	for range 4 {
		a.restUntil = time.Time{}
		q, because, _ := a.next(later)
		order = append(order, because)
		a.slice(t.Context(), q, because)
	}
	if !slices.Equal(order, []why{named, changed, named, changed}) {
		t.Errorf("order: %v", order)
	}
}

func TestAClaimThatNobodyNamesIsNoCause(t *testing.T) {
	a := askerOf(t.Context(), t, volumePlugins, nil, append(nodesOf(2), onNode(0, "n0")...)...)
	listen(a, fine)
	a.Ask(questionOf("g", 0))
	run(t, a, time.Now())
	a.claimTouched("ns/c9")
	if q, _, _ := a.next(time.Now().Add(time.Hour)); q != nil {
		t.Error("it is answered again")
	}
}

func TestReportsThatFailAreTriedAgainEverLater(t *testing.T) {
	a := askerOf(t.Context(), t, volumePlugins, nil, append(nodesOf(2), onNode(0, "n0")...)...)
	heard := listen(a, func() error { return status.Error(codes.ResourceExhausted, "too large") })
	a.Ask(questionOf("g", 0))
	now := time.Now()
	for i := range 10 {
		run(t, a, now)
		if len(*heard) != i+1 {
			t.Fatalf("%d reports, want %d", len(*heard), i+1)
		}
		_, _, wait := a.next(time.Now())
		if least := min(reportAfter<<i, reportAtMost) - time.Second/2; wait < least {
			t.Errorf("after %d failures a pause of %s, want %s", i+1, wait, least)
		}
		now = now.Add(2 * reportAtMost)
	}
}

// --- kinds ---------------------------------------------------------------------------------------------

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

// --- reports -------------------------------------------------------------------------------------------

func TestAReportComesInPartsOfBoundedSize(t *testing.T) {
	nodes := make([]string, 5000)
	for i := range nodes {
		nodes[i] = fmt.Sprintf("node-%05d", i)
	}
	r := &reporter{}
	for i := range kindsAtMost {
		found := answer{refused: map[string]refusal{}}
		for _, node := range nodes {
			found.refused[node] = refusal{"Plugin", "why"}
		}
		delete(found.refused, nodes[i])
		r.add(&kind{pods: []int{i}}, pack(found, nodes))
	}
	parts := r.report()
	var pods []uint32
	for i, part := range parts {
		if size := proto.Size(part); size > partAtMost+len(nodes)*20 {
			t.Errorf("part %d has %d bytes", i, size)
		}
		if int(part.Part) != i || part.More != (i+1 < len(parts)) {
			t.Errorf("part %d is number %d, more %v", i, part.Part, part.More)
		}
		for _, said := range part.Answers {
			pods = append(pods, said.Pods...)
			if open := slices.Index(said.Refused, 0); open != int(said.Pods[0]) || part.Refusals[said.Refused[4999]-1].Reason != "why" {
				t.Errorf("pods %v: node %d is open", said.Pods, open)
			}
		}
	}
	if len(parts) < 2 || len(pods) != kindsAtMost {
		t.Errorf("%d parts with %d pods", len(parts), len(pods))
	}
}

func TestAReportTellsApartAsManyRefusalsAsAByteCan(t *testing.T) {
	nodes := make([]string, 1000)
	found := answer{refused: map[string]refusal{}}
	other := answer{refused: map[string]refusal{}}
	for i := range nodes {
		nodes[i] = fmt.Sprintf("n%04d", i)
		found.refused[nodes[i]] = refusal{"Extender", fmt.Sprint("why ", i)}
		other.refused[nodes[i]] = refusal{"Extender", fmt.Sprint("else ", i%10)}
	}
	r := &reporter{}
	r.add(&kind{pods: []int{0}}, pack(found, nodes))
	r.add(&kind{pods: []int{1}}, pack(other, nodes))
	parts := r.report()
	if len(parts) != 2 || len(parts[0].Refusals) != refusalsAtMost || len(parts[1].Refusals) != 10 {
		t.Fatalf("%d parts", len(parts))
	}
	told := func(part, node int) string {
		return parts[part].Refusals[parts[part].Answers[0].Refused[node]-1].Reason
	}
	if told(0, 0) != "why 0" || told(0, 253) != "why 253" || told(0, 254) != further.reason || told(0, 999) != further.reason || told(1, 999) != "else 9" {
		t.Errorf("told: %s, %s, %s, %s", told(0, 253), told(0, 254), told(0, 999), told(1, 999))
	}
}

func TestAReportNamesSomeOfManyMissingClaims(t *testing.T) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p0", UID: types.UID("p0")}}
	for i := range 100 {
		pod.Spec.Volumes = append(pod.Spec.Volumes, userOf(0, fmt.Sprintf("c%d", i), "").Spec.Volumes...)
	}
	a := askerOf(t.Context(), t, volumePlugins, nil, append(nodesOf(1), pod)...)
	report := a.inspect(t.Context(), []*v1.Pod{pod}, a.sorter.kinds([]*v1.Pod{pod}, a.single), always)
	if len(report) != 1 || len(report[0].Answers[0].MissingClaims) != missingAtMost {
		t.Errorf("report: %v", report)
	}
}
