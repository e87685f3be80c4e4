package devices

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// ownedBy returns a claim for extended resources of the pod "p", reserved for these users.
func ownedBy(namespace, name string, users ...types.UID) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name,
		Annotations:     map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"},
		OwnerReferences: []metav1.OwnerReference{{Kind: "Pod", Name: "p", UID: "uid-p", Controller: new(true)}},
	}}
	for _, uid := range users {
		claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{UID: uid})
	}
	return claim
}

func without(claim *resourceapi.ResourceClaim, change func(*resourceapi.ResourceClaim)) *resourceapi.ResourceClaim {
	change(claim)
	return claim
}

// owner returns the pod "p".
func owner() *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "uid-p"}}
}

func TestWhichClaimsAreFreedForAPod(t *testing.T) {
	for name, c := range map[string]struct {
		claim *resourceapi.ResourceClaim
		freed bool
	}{
		"its own":                   {ownedBy("ns", "c"), true},
		"its own, reserved for it":  {ownedBy("ns", "c", "uid-p"), true},
		"of another namespace":      {ownedBy("other", "c"), false},
		"reserved for another pod":  {ownedBy("ns", "c", "uid-q"), false},
		"reserved for both":         {ownedBy("ns", "c", "uid-p", "uid-q"), false},
		"without the annotation":    {without(ownedBy("ns", "c"), func(c *resourceapi.ResourceClaim) { c.Annotations = nil }), false},
		"owned, but not controlled": {without(ownedBy("ns", "c"), func(c *resourceapi.ResourceClaim) { c.OwnerReferences[0].Controller = nil }), false},
		"of a Job of the same UID":  {without(ownedBy("ns", "c"), func(c *resourceapi.ResourceClaim) { c.OwnerReferences[0].Kind = "Job" }), false},
	} {
		t.Run(name, func(t *testing.T) {
			stale := staleOf(t, c.claim)
			if got := stale.HasDevices(owner()); got != c.freed {
				t.Errorf("freed: %v", got)
			}
		})
	}
}

func TestAPodWithThousandsOfClaimsIsRefused(t *testing.T) {
	var many []*resourceapi.ResourceClaim
	for i := range maxLeaked + 1 {
		many = append(many, ownedBy("ns", fmt.Sprintf("c%d", i)))
	}
	stale := staleOf(t, many...)
	if err := stale.Free(t.Context(), owner()); err == nil || !strings.Contains(err.Error(), "pod ns/p owns 9 ResourceClaims") {
		t.Errorf("got %v", err) // without a client: any request would panic
	}
	if leaked := stale.LeakedClaims(t.Context()); len(leaked) > 0 {
		t.Errorf("%d claims are left", len(leaked))
	}
	if leaked := staleOf(t, many[1:]...).LeakedClaims(t.Context()); len(leaked) != maxLeaked {
		t.Errorf("%d claims are left", len(leaked))
	}
}

// staleOf returns a StaleDevices that sees these claims and has no client.
func staleOf(t *testing.T, claims ...*resourceapi.ResourceClaim) *StaleDevices {
	t.Helper()
	informer := cache.NewSharedIndexInformer(nil, &resourceapi.ResourceClaim{}, 0, cache.Indexers{})
	if err := indexByPod(informer); err != nil {
		t.Fatal(err)
	}
	for _, claim := range claims {
		if err := informer.GetIndexer().Add(claim); err != nil {
			t.Fatal(err)
		}
	}
	return &StaleDevices{claims: informer.GetIndexer(), synced: func() bool { return true }}
}

func TestWhichPodsSayThatTheirClaimIsFreed(t *testing.T) {
	freed := v1.PodCondition{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: reasonFreed, Message: freedMessage("c")}
	for name, c := range map[string]struct {
		claim      string
		template   string
		before     []v1.PodCondition
		conditions []v1.PodCondition
		freed      bool
	}{
		"the claim that it has":   {"c", "", nil, []v1.PodCondition{freed}, true},
		"an earlier claim":        {"d", "", nil, []v1.PodCondition{freed}, false},
		"it has none":             {"", "", nil, []v1.PodCondition{freed}, false},
		"nothing was freed":       {"c", "", nil, nil, false},
		"it is refused":           {"c", "", nil, []v1.PodCondition{{Type: v1.PodScheduled, Reason: v1.PodReasonUnschedulable}}, false},
		"another condition's":     {"c", "", nil, []v1.PodCondition{{Type: v1.PodReady, Reason: reasonFreed, Message: freedMessage("c")}}, false},
		"a claim from a template": {"", "c", nil, []v1.PodCondition{freed}, true},
		"before this cycle":       {"", "c", []v1.PodCondition{freed}, []v1.PodCondition{freed}, false},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &v1.Pod{Status: v1.PodStatus{Conditions: c.conditions}}
			if c.claim != "" {
				pod.Status.ExtendedResourceClaimStatus = &v1.PodExtendedResourceClaimStatus{ResourceClaimName: c.claim}
			}
			if c.template != "" {
				pod.Status.ResourceClaimStatuses = []v1.PodResourceClaimStatus{{Name: "gpus", ResourceClaimName: &c.template}}
			}
			if got := WasFreed(&v1.Pod{Status: v1.PodStatus{Conditions: c.before}}, pod); got != c.freed {
				t.Errorf("freed: %v", got)
			}
		})
	}
}
