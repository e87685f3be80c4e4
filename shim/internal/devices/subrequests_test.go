package devices

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// sameClaims has a claim with two subrequests under each name.
type sameClaims struct{ fwk.SharedDRAManager }

func (s sameClaims) ResourceClaims() fwk.ResourceClaimTracker { return sameClaim{} }

type sameClaim struct{ fwk.ResourceClaimTracker }

func (sameClaim) Get(namespace, name string) (*resourceapi.ResourceClaim, error) {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "g", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "a", DeviceClassName: "gpu", Count: 1}, {Name: "b", DeviceClassName: "gpu", Count: 2},
	}}}
	return claim, nil
}

// The queue and binding cycles read claims of other pods while a cycle runs, in goroutines of their own.
func TestOtherPodsClaimsKeepTheirSubrequestsDuringACycle(t *testing.T) {
	v := &cycleView{SharedDRAManager: sameClaims{}, ResourceClaimTracker: sameClaim{}}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}}
	pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "c", ResourceClaimName: new("mine")}}
	subrequests := func(name string) int {
		claim, err := v.Get("ns", name)
		if err != nil {
			t.Fatal(err)
		}
		return len(claim.Spec.Devices.Requests[0].FirstAvailable)
	}
	state := framework.NewCycleState()
	p := &plan{subrequest: 2, isGPUClass: func(string) bool { return true }}
	v.shown.Store(&shownCycle{pod: pod, plan: p, claims: v.narrowClaims(pod, p, narrowedClaimsOf(state))})
	shown, err := v.Get("ns", "mine")
	if err != nil || subrequests("mine") != 1 || subrequests("other") != 2 {
		t.Errorf("the cycle shows %d subrequests of its own claim and %d of another (%v)", subrequests("mine"), subrequests("other"), err)
	}
	v.shown.Store(nil)
	if subrequests("mine") != 2 || subrequests("other") != 2 {
		t.Error("after the cycle, claims are not as they were")
	}
	if restoreRequests(state); len(shown.Spec.Devices.Requests[0].FirstAvailable) != 2 {
		t.Error("the in-tree plugin would write a claim with one subrequest")
	}
}
