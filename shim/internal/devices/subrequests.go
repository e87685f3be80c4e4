package devices

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
)

// The planner chooses the subrequest of a request for GPUs (firstAvailable). The allocator takes the first subrequest
// that the planned devices satisfy, which may be an earlier one for fewer devices. So the view shows the allocator the
// chosen subrequest alone. The in-tree plugin keeps the claim that it saw and writes it in PreBind, but the API server
// refuses a changed spec. So Reserve gives the claims their original requests again.

// narrowedClaims are the claims of a cycle that are shown with one subrequest in place of several, and their original
// requests.
type narrowedClaims struct {
	claims    []*resourceapi.ResourceClaim
	originals [][]resourceapi.DeviceRequest
}

const narrowedKey fwk.StateKey = "muster.dev/narrowed-claims"

// Clone implements fwk.StateData. All clones share the claims.
func (n *narrowedClaims) Clone() fwk.StateData { return n }

func narrowedClaimsOf(state fwk.CycleState) *narrowedClaims {
	if data, err := state.Read(narrowedKey); err == nil {
		return data.(*narrowedClaims)
	}
	claims := &narrowedClaims{}
	state.Write(narrowedKey, claims)
	return claims
}

// restoreRequests gives the narrowed claims of a cycle their original requests. No Filter of the cycle runs any more.
func restoreRequests(state fwk.CycleState) {
	cycle := narrowedClaimsOf(state)
	for i, claim := range cycle.claims {
		claim.Spec.Devices.Requests = cycle.originals[i]
	}
	cycle.claims, cycle.originals = nil, nil
}

// shownClaims are the claims that the view shows in place of those of the tracker.
type shownClaims map[types.NamespacedName]*resourceapi.ResourceClaim

// narrowClaims returns copies of a pod's claims, with the planned subrequest in place of several, and records them in the
// cycle. It copies them because claims of the tracker never change.
func (v *cycleView) narrowClaims(pod *v1.Pod, p *plan, cycle *narrowedClaims) shownClaims {
	claims := shownClaims{}
	for _, claim := range claimsOf(v.SharedDRAManager, pod) {
		if claim != nil && claim.Status.Allocation == nil && slices.ContainsFunc(claim.Spec.Devices.Requests, p.choosesSubrequestOf) {
			claims[types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}] = cycle.narrowClaim(p, claim)
		}
	}
	return claims
}

// narrowClaim returns the claim with the chosen subrequest, and records its original requests.
func (n *narrowedClaims) narrowClaim(p *plan, claim *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	shown := *claim
	shown.Spec.Devices.Requests = slices.Clone(claim.Spec.Devices.Requests)
	for i := range shown.Spec.Devices.Requests {
		if request := &shown.Spec.Devices.Requests[i]; p.choosesSubrequestOf(*request) {
			index := p.chosenIndex(*request)
			request.FirstAvailable = request.FirstAvailable[index : index+1]
		}
	}
	n.claims, n.originals = append(n.claims, &shown), append(n.originals, claim.Spec.Devices.Requests)
	return &shown
}

// choosesSubrequestOf returns whether the plan has chosen a subrequest of this request.
func (p *plan) choosesSubrequestOf(request resourceapi.DeviceRequest) bool {
	return p.subrequest > 0 && request.Exactly == nil && p.isForGPUs(request)
}

// chosenIndex returns the index of the chosen subrequest, or of the last subrequest if the request has fewer.
func (p *plan) chosenIndex(request resourceapi.DeviceRequest) int {
	return min(p.subrequest, len(request.FirstAvailable)) - 1
}

// requestedDevices returns how many devices a request asks for, and whether they are GPUs. The mode is "" if the plan has
// chosen no subrequest of the request.
func (p *plan) requestedDevices(request resourceapi.DeviceRequest) (mode resourceapi.DeviceAllocationMode, count int64, gpus bool) {
	if exact := request.Exactly; exact != nil {
		return exact.AllocationMode, exact.Count, p.isGPUClass(exact.DeviceClassName)
	}
	if p.choosesSubrequestOf(request) {
		subrequest := request.FirstAvailable[p.chosenIndex(request)]
		return subrequest.AllocationMode, subrequest.Count, true
	}
	return "", 0, false
}
