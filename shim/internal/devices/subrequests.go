package devices

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
)

// The planner chooses the subrequest of a request for GPUs (firstAvailable). The allocator takes the first subrequest
// that the planned devices satisfy, which may be an earlier one for fewer devices. So the view shows it the chosen
// subrequest alone. The in-tree plugin keeps the claim that it saw and writes it in PreBind, but the API server refuses a
// changed spec. So Reserve gives the claims their original requests again.

// narrowed are the claims of a cycle that are shown with one subrequest in place of several, and their original requests.
type narrowed struct {
	claims    []*resourceapi.ResourceClaim
	originals [][]resourceapi.DeviceRequest
}

const narrowedKey fwk.StateKey = "muster.dev/narrowed-claims"

// Clone implements fwk.StateData. All clones share the claims.
func (n *narrowed) Clone() fwk.StateData { return n }

// narrowedIn returns the narrowed claims of a cycle.
func narrowedIn(state fwk.CycleState) *narrowed {
	if data, err := state.Read(narrowedKey); err == nil {
		return data.(*narrowed)
	}
	claims := &narrowed{}
	state.Write(narrowedKey, claims)
	return claims
}

// restore gives the narrowed claims of a cycle their original requests. No Filter of the cycle runs any more.
func restore(state fwk.CycleState) {
	cycle := narrowedIn(state)
	for i, claim := range cycle.claims {
		claim.Spec.Devices.Requests = cycle.originals[i]
	}
	cycle.claims, cycle.originals = nil, nil
}

type shownClaims = map[types.NamespacedName]*resourceapi.ResourceClaim

// narrow returns copies of a pod's claims, with the planned subrequest in place of several, and records them in the
// cycle. It copies them because claims of the tracker never change.
func (v *cycleView) narrow(pod *v1.Pod, p *plan, cycle *narrowed) *shownClaims {
	claims := shownClaims{}
	for _, claim := range claimsOf(v.SharedDRAManager, pod) {
		if claim != nil && claim.Status.Allocation == nil && slices.ContainsFunc(claim.Spec.Devices.Requests, p.chooses) {
			claims[types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}] = cycle.narrow(p, claim)
		}
	}
	return &claims
}

// narrow returns the claim with the chosen subrequest, and records its original requests.
func (n *narrowed) narrow(p *plan, claim *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	shown := *claim
	shown.Spec.Devices.Requests = slices.Clone(claim.Spec.Devices.Requests)
	for i := range shown.Spec.Devices.Requests {
		if request := &shown.Spec.Devices.Requests[i]; p.chooses(*request) {
			index := p.chosenIndex(*request)
			request.FirstAvailable = request.FirstAvailable[index : index+1]
		}
	}
	n.claims, n.originals = append(n.claims, &shown), append(n.originals, claim.Spec.Devices.Requests)
	return &shown
}

// chooses returns whether the plan has chosen a subrequest of this request.
func (p *plan) chooses(request resourceapi.DeviceRequest) bool {
	return p.subrequest > 0 && request.Exactly == nil && p.forGPUs(request)
}

// chosenIndex returns the index of the chosen subrequest. A request with fewer subrequests has its last one.
func (p *plan) chosenIndex(request resourceapi.DeviceRequest) int {
	return min(p.subrequest, len(request.FirstAvailable)) - 1
}

// asks returns how many devices a request asks for, and whether they are GPUs. The mode is "" if the plan has chosen no
// subrequest of the request.
func (p *plan) asks(request resourceapi.DeviceRequest) (mode resourceapi.DeviceAllocationMode, count int64, gpus bool) {
	if exact := request.Exactly; exact != nil {
		return exact.AllocationMode, exact.Count, p.isGPUs(exact.DeviceClassName)
	}
	if p.chooses(request) {
		subrequest := request.FirstAvailable[p.chosenIndex(request)]
		return subrequest.AllocationMode, subrequest.Count, true
	}
	return "", 0, false
}
