package devices

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
)

// The planner chooses the subrequest of a request for GPUs (firstAvailable). The allocator takes the first that the
// planned devices satisfy, which may be an earlier one for fewer devices. So it is shown the chosen one alone. The
// in-tree plugin keeps what it was shown and writes it in PreBind, where the API server refuses another spec. So Reserve
// gives the claims their own requests again.

// narrowed are the claims of a cycle that are shown with one subrequest in place of several, and their own requests.
type narrowed struct {
	claims []*resourceapi.ResourceClaim
	own    [][]resourceapi.DeviceRequest
}

const narrowedKey fwk.StateKey = "muster.dev/narrowed-claims"

// Clone implements fwk.StateData. All clones share the claims.
func (n *narrowed) Clone() fwk.StateData { return n }

// narrowedIn returns the narrowed claims of a cycle.
func narrowedIn(state fwk.CycleState) *narrowed {
	if data, err := state.Read(narrowedKey); err == nil {
		return data.(*narrowed)
	}
	found := &narrowed{}
	state.Write(narrowedKey, found)
	return found
}

// restore gives the narrowed claims of a cycle their own requests. No Filter of the cycle runs any more.
func restore(state fwk.CycleState) {
	found := narrowedIn(state)
	for i, claim := range found.claims {
		claim.Spec.Devices.Requests = found.own[i]
	}
	found.claims, found.own = nil, nil
}

type shownClaims = map[types.NamespacedName]*resourceapi.ResourceClaim

// narrow returns the claims of a pod that are shown with the subrequest that is planned, in place of several. It notes
// them in the cycle. Claims of the tracker never change.
func (v *view) narrow(pod *v1.Pod, p *plan, cycle *narrowed) *shownClaims {
	found := shownClaims{}
	for _, claim := range claimsThere(v.SharedDRAManager, pod) {
		if claim.Status.Allocation == nil && slices.ContainsFunc(claim.Spec.Devices.Requests, p.chooses) {
			found[types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}] = cycle.narrow(p, claim)
		}
	}
	return &found
}

// narrow returns the claim with the chosen subrequest, and notes its own requests.
func (n *narrowed) narrow(p *plan, claim *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	shown := *claim
	shown.Spec.Devices.Requests = slices.Clone(claim.Spec.Devices.Requests)
	for i := range shown.Spec.Devices.Requests {
		if request := &shown.Spec.Devices.Requests[i]; p.chooses(*request) {
			at := p.chosen(*request)
			request.FirstAvailable = request.FirstAvailable[at : at+1]
		}
	}
	n.claims, n.own = append(n.claims, &shown), append(n.own, claim.Spec.Devices.Requests)
	return &shown
}

// chooses returns whether the plan has chosen a subrequest of this request.
func (p *plan) chooses(request resourceapi.DeviceRequest) bool {
	return p.subrequest > 0 && slices.ContainsFunc(request.FirstAvailable, func(some resourceapi.DeviceSubRequest) bool {
		return p.isGPUs(some.DeviceClassName)
	})
}

// chosen returns the index of the chosen subrequest. A request with fewer has its last one.
func (p *plan) chosen(request resourceapi.DeviceRequest) int {
	return min(p.subrequest, len(request.FirstAvailable)) - 1
}

// asks returns how many devices a request asks for, and whether they are GPUs. The mode is "" if that is left open.
func (p *plan) asks(request resourceapi.DeviceRequest) (mode resourceapi.DeviceAllocationMode, count int64, gpus bool) {
	if exact := request.Exactly; exact != nil {
		return exact.AllocationMode, exact.Count, p.isGPUs(exact.DeviceClassName)
	}
	if p.chooses(request) {
		some := request.FirstAvailable[p.chosen(request)]
		return some.AllocationMode, some.Count, true
	}
	return "", 0, false
}
