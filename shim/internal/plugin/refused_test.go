package plugin

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"muster.dev/shim/internal/musterv1"
)

// The refused pods of one namespace need minutes to be told why they wait. Another user reads it in seconds.
func TestRefusedPodsOfOneNamespaceDoNotDelayAnother(t *testing.T) {
	crowd := make([]*musterv1.Verdict, 4000)
	for i := range crowd {
		crowd[i] = inCrowd(verdict(refusedOutcome, uint64(i+1), fmt.Sprint("crowd-", i)))
		crowd[i].Gang = "crowd/" + crowd[i].Names[0]
	}
	toldNextTo(t, crowd...)
}

// The members of a large refused gang take turns with other namespaces, as those of many gangs do.
func TestALargeRefusedGangDoesNotDelayAnotherNamespace(t *testing.T) {
	toldNextTo(t, inCrowd(verdict(refusedOutcome, 1, members(2000)...)))
}

func inCrowd(v *musterv1.Verdict) *musterv1.Verdict {
	v.Gang, v.Namespace = "crowd/g", "crowd"
	return v
}

// The write of a large pod's condition would hold the one scheduling thread. The members next to it are told.
func TestALargeRefusedPodIsNotLetThrough(t *testing.T) {
	h := newHarness(t, node("n", "64"))
	h.service.refuse("nothing fits")
	gang := verdict(refusedOutcome, 1, "large", "small")
	h.addPods(gang)
	pods := h.client.CoreV1().Pods("ns")
	large, err := pods.Get(h.ctx, "large", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	large.Annotations["notes"] = strings.Repeat("x", largestTold)
	if _, err := pods.Update(h.ctx, large, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	h.run("")
	h.service.push(gang)
	h.until("the small one is told", func() bool { return h.condition("small") != "" })
	later := verdict(refusedOutcome, 2, "later")
	later.Gang = "ns/later"
	h.addPods(later)
	h.service.push(later)
	h.until("a later one is told", func() bool { return h.condition("later") != "" })
	if message := h.condition("large"); message != "" {
		t.Errorf("the large one was told: %s", message)
	}
}

// toldNextTo refuses these gangs and then a gang of another namespace, and waits until that gang has its reason.
func toldNextTo(t *testing.T, crowd ...*musterv1.Verdict) {
	h := newHarness(t, node("n", "64"))
	h.service.refuse("nothing fits")
	for _, v := range crowd {
		h.addPods(v)
	}
	h.run("")
	for _, v := range crowd {
		h.service.push(v)
	}
	h.pods("1", "other")
	h.service.push(verdict(refusedOutcome, 10_000, "other"))
	h.until("the other namespace is told", func() bool { return h.condition("other") != "" })
}
