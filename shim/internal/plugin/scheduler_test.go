package plugin

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"muster.dev/shim/internal/musterv1"
)

const (
	plannedOutcome = musterv1.Outcome_OUTCOME_PLANNED
	refusedOutcome = musterv1.Outcome_OUTCOME_REFUSED
	withdrawn      = musterv1.Outcome_OUTCOME_WITHDRAWN
	fateNeverSent  = musterv1.BindingFate_BINDING_FATE_NEVER_SENT
	fateUnknown    = musterv1.BindingFate_BINDING_FATE_UNKNOWN
)

func spread(n int, node string) (candidates [][]string) {
	for range n {
		candidates = append(candidates, []string{node})
	}
	return candidates
}

func TestGangOfEightTakesFourCalls(t *testing.T) {
	h := newHarness(t, node("n", "16"))
	h.service.plan(spread(8, "n")...)
	h.run("")
	names := members(8)
	h.pods("1", names...)
	h.pods("", "foreign")
	h.until("the foreign pod is bound, though the gang has no verdict", h.foreignBound)
	h.until("gated", func() bool { return h.gated(names...) })
	if got := h.service.called(); got != "Filter 0 Score 0 Reserve 0 Permit 0" {
		t.Errorf("calls for a foreign pod: %s", got)
	}
	h.service.push(verdict(plannedOutcome, 1, names...))
	seen := map[string]bool{}
	for range names {
		b := next(t, "binding", h.bound)
		seen[b.Name] = true
		if want := "gpus of " + strings.TrimPrefix(b.Name, "m"); b.Annotations["gpu.topology/allocation"] != want {
			t.Errorf("%s carries %v", b.Name, b.Annotations)
		}
		if string(b.UID) != "uid-"+b.Name || b.ResourceVersion == "" {
			t.Errorf("%s: UID %q, resourceVersion %q", b.Name, b.UID, b.ResourceVersion)
		}
	}
	if len(seen) != 8 {
		t.Errorf("bound: %v", seen)
	}
	if got := h.service.called(); got != "Filter 1 Score 1 Reserve 1 Permit 1" {
		t.Errorf("calls: %s", got)
	}
	h.until("nothing nominated or in flight", func() bool { return h.nominated("n") == 0 && len(h.plugin.store.InFlight()) == 0 })
}

// A verdict that comes in parts counts once the last part is there, and has the members of all parts.
func TestAVerdictInPartsHasAllMembers(t *testing.T) {
	h := newHarness(t, node("n", "16"))
	h.service.plan(spread(5, "n")...)
	h.run("")
	names := members(5)
	h.pods("1", names...)
	h.until("gated", func() bool { return h.gated(names...) })
	for at, part := range [][]string{names[:2], names[2:4], names[4:]} {
		v := verdict(plannedOutcome, 1, part...)
		v.Required = 5
		h.service.pushPart(v, at < 2)
	}
	bound := map[string]bool{}
	for range names {
		bound[next(t, "binding", h.bound).Name] = true
	}
	if got := h.service.called(); len(bound) != 5 || got != "Filter 1 Score 1 Reserve 1 Permit 1" {
		t.Errorf("bound: %v, calls: %s", bound, got)
	}
}

// The members' nominations must not count for their own spread constraints. Otherwise the first member would find its
// siblings on its node, and no member on other nodes.
func TestMembersThatSpreadAreNoHindranceToEachOther(t *testing.T) {
	a, b := node("a", "16"), node("b", "16")
	for _, n := range []*v1.Node{a, b} {
		n.Labels = map[string]string{"zone": "zone of " + n.Name}
	}
	h := newHarness(t, a, b)
	h.service.plan([]string{"a"}, []string{"b"}, []string{"a"}, []string{"b"}, []string{"a"})
	h.run("")
	names := members(5)
	h.podsWith(func(pod *v1.Pod) {
		pod.Labels = map[string]string{"app": "web"}
		pod.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: v1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: pod.Labels},
		}}
	}, "1", names...)
	h.place(names...)
	h.waitForBindings(len(names))
}

func TestRefusedShowsTheReasonOnceAGeneration(t *testing.T) {
	h := newHarness(t, node("n", "16"))
	reason := "needs 9 GPUs on one node; the best has 8"
	h.service.refuse(reason)
	h.run("")
	h.pods("1", "m0", "m1")
	h.service.push(verdict(refusedOutcome, 1, "m0", "m1"))
	for _, name := range []string{"m0", "m1"} {
		h.until("the condition says why", func() bool {
			return strings.HasPrefix(h.condition(name), "0/1 nodes are available: "+reason)
		})
	}
	h.until("seen", func() bool { return !h.plugin.store.MayEnterQueue("uid-m0") })
	reason = "needs 9 GPUs; a later reason"
	h.service.refuse(reason)
	h.service.push(verdict(refusedOutcome, 2, "m0", "m1"))
	h.until("the condition is renewed", func() bool { return strings.Contains(h.condition("m0"), reason) })
	if got := h.service.called(); got != "Filter 2 Score 0 Reserve 0 Permit 0" {
		t.Errorf("calls: %s", got)
	}
}

func TestInTreeRefusalIsReportedAndEvictsNobody(t *testing.T) {
	h := newHarness(t, node("small", "0"), node("big", "16"))
	h.service.plan([]string{"big"}, []string{"small"})
	h.runPlanned("m0", "m1")
	for {
		report := next(t, "report", h.service.reports)
		if report.Member != 1 {
			continue
		}
		if report.Plugin != "NodeResourcesFit" || report.Node != "small" || report.Fate != fateNeverSent || !strings.Contains(report.Message, "cpu") {
			t.Errorf("report: %v", report)
		}
		break
	}
	h.until("the sibling is gated again", func() bool { return h.gated("m0") && h.waiting() == 0 })
	if len(h.bound) != 0 || h.nominated("big")+h.nominated("small") != 0 {
		t.Error("bound or nominated still")
	}
	// The next plan takes both members out of their queues.
	h.service.plan([]string{"big"}, []string{"big"})
	h.service.push(verdict(plannedOutcome, 2, "m0", "m1"))
	h.waitForBindings(2)
}

func TestElsewhereIsReservedAgain(t *testing.T) {
	h := newHarness(t, node("big", "16"))
	// The second member's planned node no longer exists.
	h.service.plan([]string{"big"}, []string{"missing", "big"})
	h.runPlanned("m0", "m1")
	h.waitForBindings(2)
	// One more call for the member on another node, unless it came first. Then its call was the gang's.
	if got := h.service.called(); got != "Filter 1 Score 1 Reserve 2 Permit 1" && got != "Filter 1 Score 1 Reserve 1 Permit 1" {
		t.Errorf("calls: %s", got)
	}
}

// The first member's node refuses it. The members after it are enough for Permit. But Permit waits, because after it
// the first member could use no other node.
func TestElsewhereIsThereForAMemberThatIsNotRequired(t *testing.T) {
	h := newHarness(t, node("small", "0"), node("big", "16"))
	h.service.plan([]string{"small", "big"}, []string{"big"}, []string{"big"}, []string{"big"})
	h.run("")
	names := members(4)
	h.pods("1", names...)
	h.until("gated", func() bool { return h.gated(names...) })
	v := verdict(plannedOutcome, 1, names...)
	v.Required = 2
	h.service.push(v)
	h.waitForBindings(len(names))
	if len(h.service.reports) != 0 {
		t.Errorf("report: %v", <-h.service.reports)
	}
}

func TestLeftOverNominationsAreCleared(t *testing.T) {
	h := newHarness(t, node("n", "16"))
	h.pods("1", "m0")
	pod, _ := h.client.CoreV1().Pods("ns").Get(h.ctx, "m0", metav1.GetOptions{})
	pod.Status.NominatedNodeName = "n"
	if _, err := h.client.CoreV1().Pods("ns").UpdateStatus(h.ctx, pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	h.run("")
	h.until("cleared", func() bool {
		pod, _ := h.client.CoreV1().Pods("ns").Get(h.ctx, "m0", metav1.GetOptions{})
		return pod.Status.NominatedNodeName == ""
	})
}

func TestPlannedNodeWinsOverALikedOne(t *testing.T) {
	h := newHarness(t, node("planned", "2"), node("liked", "64")) // by what stays free
	h.service.plan([]string{"planned", "liked"})
	h.runPlanned("m0")
	if b := next(t, "binding", h.bound); b.Target.Name != "planned" {
		t.Errorf("bound to %s", b.Target.Name)
	}
}

func TestSurplusMembersBindAfterTheQuorum(t *testing.T) {
	h := newHarness(t, node("n", "16"))
	h.service.plan(spread(3, "n")...)
	h.run("")
	h.pods("1", "m0", "m1")
	v := verdict(plannedOutcome, 1, "m0", "m1", "m2")
	v.Required = 2
	h.service.push(v)
	h.waitForBindings(2)
	h.pods("1", "m2")
	next(t, "binding", h.bound)
	if got := h.service.called(); got != "Filter 1 Score 1 Reserve 1 Permit 1" {
		t.Errorf("calls: %s", got)
	}
}

func TestPodsOfAPodGroupOfKubernetesAreGatedAndBound(t *testing.T) {
	h := newHarness(t, node("n", "16"))
	h.service.plan(spread(2, "n")...)
	h.run("")
	h.podsWith(func(pod *v1.Pod) {
		pod.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("g")}
	}, "", "m0", "m1")
	h.until("both are gated", func() bool { return h.gated("m0", "m1") })
	h.service.push(verdict(plannedOutcome, 1, "m0", "m1"))
	h.waitForBindings(2)
}
