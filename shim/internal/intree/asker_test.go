package intree

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
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

// noClasses is a DRA manager without device classes.
type noClasses struct{ fwk.SharedDRAManager }

func (n noClasses) DeviceClassResolver() fwk.DeviceClassResolver { return n }

func (noClasses) GetDeviceClass(v1.ResourceName) *resourceapi.DeviceClass { return nil }

// askerOf returns an asker on these objects, with a snapshot.
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
		frameworkruntime.WithSharedDRAManager(noClasses{}),
		frameworkruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(factory.Storage().V1().CSINodes().Lister())))
	if err != nil {
		t.Fatal(err)
	}
	a := New(handle, nil, []string{"nvidia.com/gpu"})
	if err := a.prepare(ctx, plugins, scoring); err != nil {
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	cache.WaitForCacheSync(ctx.Done(), a.synced...)
	a.sliceFor = time.Hour
	if err := a.startRound(); err != nil {
		t.Fatal(err)
	}
	return a
}

func nodesOf(count int) (result []runtime.Object) {
	for i := range count {
		name := fmt.Sprintf("n%d", i)
		result = append(result, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}}})
	}
	return result
}

// onNode returns a pod with a volume on one node.
func onNode(i int, node string) []runtime.Object {
	return []runtime.Object{
		userOf(i, fmt.Sprintf("c%d", i), ""), claim(i, "by-hand", fmt.Sprintf("pv%d", i)), volumeOf(i, node),
	}
}

// volumeAsker returns an asker on three nodes, and on as many pods with a volume each, on one node after the other.
func volumeAsker(t testing.TB, pods int) *Asker {
	t.Helper()
	objects := nodesOf(3)
	for i := range pods {
		objects = append(objects, onNode(i, fmt.Sprintf("n%d", i%3))...)
	}
	return askerOf(t.Context(), t, volumePlugins, nil, objects...)
}

func questionOf(gang string, pods ...int) *musterv1.InTreeQuestion {
	q := &musterv1.InTreeQuestion{Gang: gang, Question: 1, Namespace: "ns"}
	for _, i := range pods {
		q.Names, q.Uids = append(q.Names, fmt.Sprintf("p%d", i)), append(q.Uids, fmt.Sprintf("p%d", i))
	}
	return q
}

// run answers the questions that are due at a time, in slices, each question once.
func run(t testing.TB, a *Asker, now time.Time) {
	t.Helper()
	done := map[*question]bool{}
	for range 10000 {
		a.restUntil = time.Time{}
		q, reason, _ := a.nextQuestion(now)
		if q == nil || done[q] {
			return
		}
		a.runSlice(t.Context(), q, reason)
		done[q] = a.jobs[q] == nil
	}
	t.Fatal("it does not end")
}

// listen keeps the reports. fails returns the error for each one.
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

func gangsOf(reports []*musterv1.ReportInTreeRequest) (result []string) {
	for _, report := range reports {
		result = append(result, report.Gang)
	}
	return result
}

func upTo(count int) (result []int) {
	for i := range count {
		result = append(result, i)
	}
	return result
}

func TestQuestionsAreAnsweredInTurns(t *testing.T) {
	a := volumeAsker(t, 21)
	a.sliceFor = 0
	heard := listen(a, fine)
	a.Ask(questionOf("large", upTo(20)...))
	for range 3 {
		q, reason, _ := a.nextQuestion(time.Now())
		a.runSlice(t.Context(), q, reason)
	}
	a.Ask(questionOf("small", 20))
	run(t, a, time.Now())
	if got := gangsOf(*heard); !slices.Equal(got, []string{"small", "large"}) {
		t.Errorf("answered: %v", got)
	}
}

func TestWorkOnAQuestionThatIsReplacedEnds(t *testing.T) {
	a := volumeAsker(t, 4)
	a.sliceFor = 0
	heard := listen(a, fine)
	a.Ask(questionOf("g", 0, 1))
	q, reason, _ := a.nextQuestion(time.Now())
	a.runSlice(t.Context(), q, reason)
	again := questionOf("g", 2, 3)
	again.Question = 2
	a.Ask(again)
	run(t, a, time.Now())
	if len(*heard) != 1 || (*heard)[0].Question != 2 || len(a.jobs) > 0 {
		t.Errorf("reports %v, works %v", *heard, a.jobs)
	}
}

// Work of an ended session, and a pause of renewals, do not delay a new question.
func TestANewQuestionBeginsThoughMuchIsWorkedOn(t *testing.T) {
	for name, over := range map[string]bool{"renewals that rest": false, "a session that is over": true} {
		t.Run(name, func(t *testing.T) {
			a := volumeAsker(t, maxJobsOfNamespace+1)
			heard := listen(a, fine)
			for i := range maxJobsOfNamespace {
				a.Ask(questionOf(fmt.Sprint(i), i))
			}
			run(t, a, time.Now())
			a.recordCause()
			a.sliceFor = 0
			for _, q := range a.questions {
				a.runSlice(t.Context(), q, otherChange)
			}
			if len(a.jobs) != maxJobsOfNamespace {
				t.Fatalf("%d questions are worked on", len(a.jobs))
			}
			a.restUntil = time.Now().Add(time.Hour)
			if over {
				a.Begin(2)
			}
			a.Ask(questionOf("new", maxJobsOfNamespace))
			for q, reason, _ := a.nextQuestion(time.Now()); q != nil; q, reason, _ = a.nextQuestion(time.Now()) {
				a.runSlice(t.Context(), q, reason)
			}
			if got := gangsOf(*heard); got[len(got)-1] != "new" {
				t.Errorf("answered: %v", got)
			}
		})
	}
}

// A user with many questions, in one namespace or for one gang, cannot delay all others.
func TestTurnsGoRoundByNamespaces(t *testing.T) {
	a := askerOf(t.Context(), t, volumePlugins, nil, nodesOf(1)...)
	listen(a, fine)
	for i := range 10 {
		a.Ask(questionOf(fmt.Sprint(i), i))
	}
	for _, namespace := range []string{"x", "y"} {
		otherQuestion := questionOf(namespace, 10)
		otherQuestion.Namespace = namespace
		a.Ask(otherQuestion)
	}
	turns := map[string]int{}
	for range 30 {
		q, reason, _ := a.nextQuestion(time.Now())
		turns[q.message.Namespace]++
		a.turns.record(q, reason)
	}
	if turns["ns"] != 10 || turns["x"] != 10 || turns["y"] != 10 {
		t.Errorf("turns: %v", turns)
	}
}

func TestRenewalsRestAndNewQuestionsDoNot(t *testing.T) {
	a := volumeAsker(t, 2)
	heard := listen(a, fine)
	a.Ask(questionOf("old", 0))
	run(t, a, time.Now())
	a.recordCause()
	later := time.Now().Add(time.Hour)
	a.restUntil = later.Add(time.Second)
	if q, _, wait := a.nextQuestion(later); q != nil || wait != time.Second {
		t.Fatalf("a renewal begins at once: %v, wait %s", q, wait)
	}
	a.Ask(questionOf("new", 1))
	if q, reason, _ := a.nextQuestion(later); q == nil || q.message.Gang != "new" || reason != unanswered {
		t.Fatalf("next: %v, %v", q, reason)
	}
	before := a.restUntil
	q, reason, _ := a.nextQuestion(later)
	a.runSlice(t.Context(), q, reason)
	if got := gangsOf(*heard); a.restUntil != before || !slices.Equal(got, []string{"old", "new"}) {
		t.Errorf("answered %v, rest until %s", got, a.restUntil)
	}
}

func TestARareRenewalIsFollowedByNoPause(t *testing.T) {
	a := volumeAsker(t, 1)
	listen(a, fine)
	a.Ask(questionOf("g", 0))
	run(t, a, time.Now())
	for _, rested := range []bool{true, false} {
		a.recordCause()
		if a.restUntil = time.Now(); rested {
			a.restUntil = time.Time{}
		}
		before := time.Now()
		a.runSlice(t.Context(), a.questions["g"], otherChange)
		if pauses := a.restUntil.After(before); pauses == rested {
			t.Errorf("after a long rest: %v, a pause: %v", rested, pauses)
		}
	}
}

// Renewals because of a named object come before other renewals, but not always.
func TestACauseThatNamesAClaimGoesFirst(t *testing.T) {
	a := volumeAsker(t, 8)
	listen(a, fine)
	for i := range 8 {
		a.Ask(questionOf(fmt.Sprint(i), i))
	}
	run(t, a, time.Now())
	a.recordCause()
	a.recordClaimChange("ns", "c5")
	a.recordClaimChange("ns", "c6")
	later := time.Now().Add(time.Hour)
	var order []workReason
	for range 4 {
		a.restUntil = time.Time{}
		q, reason, _ := a.nextQuestion(later)
		order = append(order, reason)
		a.runSlice(t.Context(), q, reason)
	}
	if !slices.Equal(order, []workReason{claimChanged, otherChange, claimChanged, otherChange}) {
		t.Errorf("order: %v", order)
	}
}

// The handler that fills a plugin's cache may be called after ours.
func TestAQuestionIsAnsweredOnceMoreAfterAChange(t *testing.T) {
	for name, change := range map[string]func(*Asker){
		"any":   (*Asker).recordCause,
		"claim": func(a *Asker) { a.recordClaimChange("ns", "c0") },
	} {
		a := volumeAsker(t, 1)
		heard := listen(a, fine)
		a.Ask(questionOf("g", 0))
		run(t, a, time.Now())
		change(a)
		run(t, a, time.Now().Add(renewAfter)) // nothing is new as yet
		if got := len(*heard); got != 1 {
			t.Fatalf("%s: %d reports before the cache is filled, want 1", name, got)
		}
		late := claim(0, "by-hand", "pv1")
		stored := a.handle.SharedInformerFactory().Core().V1().PersistentVolumeClaims().Informer().GetStore()
		if err := stored.Update(late); err != nil { // late, and without an event
			t.Fatal(err)
		}
		a.round.began = a.round.began.Add(-onceMoreAfter)
		run(t, a, time.Now().Add(onceMoreAfter))
		if got := len(*heard); got != 2 {
			t.Errorf("%s: %d reports, want 2", name, got)
		}
		if q, _, _ := a.nextQuestion(time.Now().Add(time.Hour)); q != nil {
			t.Errorf("%s: it is answered again without an end", name)
		}
	}
}

func TestAClaimThatNobodyNamesIsNoCause(t *testing.T) {
	a := volumeAsker(t, 1)
	listen(a, fine)
	a.Ask(questionOf("g", 0))
	run(t, a, time.Now())
	a.recordClaimChange("ns", "c9")
	if q, _, _ := a.nextQuestion(time.Now().Add(time.Hour)); q != nil {
		t.Error("it is answered again")
	}
}

func TestAQuestionWithoutPodsTakesItBack(t *testing.T) {
	a := volumeAsker(t, 1)
	heard := listen(a, fine)
	a.Ask(questionOf("g", 0))
	a.Ask(questionOf("h", 0))
	a.Ask(questionOf("g"))
	if open := a.Open(); open != 1 {
		t.Errorf("%d questions are open, want 1", open)
	}
	run(t, a, time.Now())
	if got := gangsOf(*heard); !slices.Equal(got, []string{"h"}) {
		t.Errorf("answered: %v", got)
	}
}

func TestReportsThatFailAreTriedAgainEverLater(t *testing.T) {
	a := volumeAsker(t, 1)
	heard := listen(a, func() error { return status.Error(codes.ResourceExhausted, "too large") })
	a.Ask(questionOf("g", 0))
	now := time.Now()
	for i := range 10 {
		run(t, a, now)
		if len(*heard) != i+1 {
			t.Fatalf("%d reports, want %d", len(*heard), i+1)
		}
		_, _, wait := a.nextQuestion(time.Now())
		if least := min(reportAfter<<i, maxReportPause) - time.Second/2; wait < least {
			t.Errorf("after %d failures a pause of %s, want %s", i+1, wait, least)
		}
		now = now.Add(2 * maxReportPause)
	}
}
