package devices

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// watchRequest is a request of a pod to watch devices (adminAccess).
type watchRequest struct {
	label     string // names the pod's claim and the request
	selectors []string
}

// watchRequests returns the pod's requests to watch devices, up to maxRequests and maxSelectors. The cycle decides on
// further requests.
func (a *Asking) watchRequests(pod *v1.Pod) (requests []watchRequest) {
	seen := sets.New[string]()
	for claimName, claim := range claimsOf(a.manager, pod) {
		if claim == nil || hasItsDevices(claim) {
			continue
		}
		for _, request := range claim.Spec.Devices.Requests {
			if !watches(request) {
				continue
			}
			class, err := a.manager.DeviceClasses().Get(request.Exactly.DeviceClassName)
			if err != nil {
				continue
			}
			selectors := append(expressions(class.Spec.Selectors), expressions(request.Exactly.Selectors)...)
			if seen.Insert(selectors...).Len() > maxSelectors || len(requests) == maxRequests {
				return requests
			}
			requests = append(requests, watchRequest{fmt.Sprintf("resourceClaims %s, request %s", claimName, request.Name), selectors})
		}
	}
	return requests
}

// whyUnseen returns why the allocator gives a member on this node none of the devices that it asks to watch, or "". For
// the allocator a watched device consumes counters too. So the member's cycle shows no GPUs that consume counters, except
// the planned ones.
func (a *Asking) whyUnseen(ctx context.Context, question *gpuQuestion, node string) string {
	for _, request := range question.watchRequests {
		anyMatches, onlyCounters := false, true
		for _, name := range []string{node, ""} {
			for _, slice := range question.slices[name] {
				matching := a.matcher.matching(ctx, request.selectors, slice, nil)
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
func (a *Asking) isGPU(ctx context.Context, slice *resourceapi.ResourceSlice, index int) bool {
	return slices.ContainsFunc(selectorsOfGPUs(a.manager, a.gpus), func(selectors []string) bool {
		return a.matcher.matching(ctx, selectors, slice, nil).devices[index]
	})
}
