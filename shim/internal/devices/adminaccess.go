package devices

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// adminRequest is a request of a pod with adminAccess: it only watches devices.
type adminRequest struct {
	label     string // names the pod's claim and the request
	selectors []string
}

// adminRequests returns the pod's requests with adminAccess, up to maxRequests and maxSelectors. The scheduling cycle
// decides on further requests.
func (a *AdvanceCheck) adminRequests(pod *v1.Pod) (requests []adminRequest) {
	seen := sets.New[string]()
	for claimName, claim := range claimsOf(a.manager, pod) {
		if claim == nil || a.keepsDevices(pod, claim) {
			continue
		}
		for _, request := range claim.Spec.Devices.Requests {
			if !hasAdminAccess(request) {
				continue
			}
			class, err := a.manager.DeviceClasses().Get(request.Exactly.DeviceClassName)
			if err != nil {
				continue
			}
			selectors := append(celExpressions(class.Spec.Selectors), celExpressions(request.Exactly.Selectors)...)
			if seen.Insert(selectors...).Len() > maxSelectors || len(requests) == maxRequests {
				return requests
			}
			requests = append(requests, adminRequest{fmt.Sprintf("resourceClaims %s, request %s", claimName, request.Name), selectors})
		}
	}
	return requests
}

// whyNoAdminAccess returns why the allocator meets no request with adminAccess of a member on this node, or "". For the
// allocator a device with adminAccess consumes counters too. So the member's cycle shows no GPUs that consume counters,
// except the planned ones.
func (a *AdvanceCheck) whyNoAdminAccess(ctx context.Context, question *gpuQuestion, node string) string {
	for _, request := range question.adminRequests {
		anyMatches, onlyCounters := false, true
		for _, name := range []string{node, ""} {
			for _, slice := range question.slices[name] {
				matching := a.matcher.matchAll(ctx, request.selectors, slice, nil)
				for i := range slice.Spec.Devices {
					switch {
					case matching.errs[i] != nil: // the in-tree plugin reports the error
						onlyCounters = false
					case matching.devices[i]:
						anyMatches = true
						onlyCounters = onlyCounters && len(slice.Spec.Devices[i].ConsumesCounters) > 0 && a.isGPU(ctx, slice, i)
					}
				}
			}
		}
		if anyMatches && onlyCounters {
			return request.label + ": adminAccess to GPUs of the node that consume counters; next to planned GPUs the allocator has no counters for it"
		}
	}
	return ""
}

// isGPU returns whether a device of a slice matches the class of a resource that counts GPUs.
func (a *AdvanceCheck) isGPU(ctx context.Context, slice *resourceapi.ResourceSlice, index int) bool {
	return slices.ContainsFunc(selectorsOfGPUs(a.manager, a.gpus), func(selectors []string) bool {
		return a.matcher.matchAll(ctx, selectors, slice, nil).devices[index]
	})
}
