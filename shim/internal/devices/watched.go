package devices

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// watched is a request of a pod to watch devices (adminAccess).
type watched struct {
	where     string // names the pod's claim and the request
	selectors []string
}

// watched returns the pod's requests to watch devices, up to the bounds of what is evaluated. The cycle decides on others.
func (a *Asking) watched(pod *v1.Pod) (found []watched) {
	seen := sets.New[string]()
	for named, claim := range claimsThere(a.manager, pod) {
		if hasItsDevices(claim) {
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
			if seen.Insert(selectors...).Len() > maxSelectors || len(found) == maxRequests {
				return found
			}
			found = append(found, watched{fmt.Sprintf("resourceClaims %s, request %s", named, request.Name), selectors})
		}
	}
	return found
}

// unseen returns why the allocator gives a member on this node none of the devices that it asks to watch, or "". To the
// allocator watching needs counters too. So the member's cycle shows it no GPUs that consume counters, but its own.
func (a *Asking) unseen(ctx context.Context, asked *askedGPUs, node string) string {
	for _, request := range asked.watched {
		some, only := false, true
		for _, name := range []string{node, ""} {
			for _, slice := range asked.slices[name] {
				matching := a.matcher.matching(ctx, request.selectors, slice, nil)
				for i := range slice.Spec.Devices {
					switch {
					case matching.errs[i] != nil: // the in-tree plugin says so
						only = false
					case matching.devices[i]:
						some = true
						only = only && len(slice.Spec.Devices[i].ConsumesCounters) > 0 && a.isGPU(ctx, slice, i)
					}
				}
			}
		}
		if some && only {
			return request.where + ": adminAccess to GPUs of the node that consume counters; next to planned GPUs the allocator has no counters for it"
		}
	}
	return ""
}

// isGPU returns whether a device of a slice matches the class of a resource that counts GPUs.
func (a *Asking) isGPU(ctx context.Context, slice *resourceapi.ResourceSlice, at int) bool {
	return slices.ContainsFunc(selectorsOfGPUs(a.manager, a.gpus), func(selectors []string) bool {
		return a.matcher.matching(ctx, selectors, slice, nil).devices[at]
	})
}
