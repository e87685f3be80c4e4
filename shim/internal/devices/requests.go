package devices

import (
	"context"
	"fmt"
	"iter"
	"reflect"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	fwk "k8s.io/kube-scheduler/framework"
)

// gpuRequest is a pod's request for GPUs. It has one subrequest, or those of firstAvailable in their order.
type gpuRequest struct {
	where       string // names the pod's claim and the request
	subrequests []gpuChoice
}

// at returns the subrequest of this rank. A request with fewer than others has its last one.
func (r gpuRequest) at(rank int) gpuChoice { return r.subrequests[min(rank, len(r.subrequests)-1)] }

// gpuChoice says which devices a request, or a subrequest, may have.
type gpuChoice struct {
	class       string
	counted     []string // the selectors by which devices count as GPUs
	wanted      []string // the selectors of the request and of its class
	tolerations []resourceapi.DeviceToleration
	every       bool                                            // all that match (allocationMode All)
	capacity    map[resourceapi.QualifiedName]resource.Quantity // that each device must have
}

// claimsThere yields the claims of a pod that exist, each with the name that the pod has for it. The in-tree plugin
// says what is wrong with others.
func claimsThere(manager fwk.SharedDRAManager, pod *v1.Pod) iter.Seq2[string, *resourceapi.ResourceClaim] {
	return func(yield func(string, *resourceapi.ResourceClaim) bool) {
		for i := range pod.Spec.ResourceClaims {
			named := &pod.Spec.ResourceClaims[i]
			name, _, err := resourceclaim.Name(pod, named)
			if err != nil || name == nil {
				continue
			}
			claim, err := manager.ResourceClaims().Get(pod.Namespace, *name)
			if err == nil && !yield(named.Name, claim) {
				return
			}
		}
	}
}

// selectorsOfGPUs returns the selectors of the DeviceClass of each of these resources that has one.
func selectorsOfGPUs(manager fwk.SharedDRAManager, resources []string) (found [][]string) {
	for _, name := range resources {
		if class := manager.DeviceClassResolver().GetDeviceClass(v1.ResourceName(name)); class != nil {
			found = append(found, expressions(class.Spec.Selectors))
		}
	}
	return found
}

// requests returns the pod's different requests for GPUs, and one more than maxRequests at most. Claims that do not exist
// are left out: the in-tree plugin says so.
func (a *Asking) requests(pod *v1.Pod) (found []gpuRequest) {
	for named, claim := range claimsThere(a.manager, pod) {
		if hasItsDevices(claim) {
			continue
		}
		for _, request := range claim.Spec.Devices.Requests {
			choices := a.choices(request)
			known := func(r gpuRequest) bool { return reflect.DeepEqual(r.subrequests, choices) }
			if len(choices) > 0 && !slices.ContainsFunc(found, known) {
				found = append(found, gpuRequest{fmt.Sprintf("resourceClaims %s, request %s", named, request.Name), choices})
			}
			if len(found) > maxRequests { // enough to refuse the pod: each further one is compared with all of these
				return found
			}
		}
	}
	return found
}

// watchesBesideGPUs returns whether the pod takes GPUs and also asks to watch devices. Its cycle shows it all devices of
// the node's GPU drivers without our taint.
func (a *Asking) watchesBesideGPUs(pod *v1.Pod, asked *askedGPUs) bool {
	if len(asked.requests) == 0 && !a.asksByResources(pod) {
		return false
	}
	for _, claim := range claimsThere(a.manager, pod) {
		if slices.ContainsFunc(claim.Spec.Devices.Requests, watches) {
			return true
		}
	}
	return false
}

// asksByResources returns whether a container asks for GPUs by a resource.
func (a *Asking) asksByResources(pod *v1.Pod) bool {
	for _, containers := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			for name := range containers[i].Resources.Requests {
				if slices.Contains(a.gpus, string(name)) {
					return true
				}
			}
		}
	}
	return false
}

// drivers returns the drivers of devices that count as GPUs.
func (a *Asking) drivers(ctx context.Context, all []*resourceapi.ResourceSlice) sets.Set[string] {
	found := sets.New[string]()
	for _, selectors := range selectorsOfGPUs(a.manager, a.gpus) {
		for _, slice := range all {
			driver := slice.Spec.Driver
			if !found.Has(driver) && slices.Contains(a.matcher.matching(ctx, selectors, slice, nil).devices, true) {
				found.Insert(driver)
			}
		}
	}
	return found
}

// hasItsDevices returns whether a claim that belongs to no single pod is allocated: pods that name it get these devices.
func hasItsDevices(claim *resourceapi.ResourceClaim) bool {
	return claim.Status.Allocation != nil && metav1.GetControllerOf(claim) == nil
}

// choices returns the subrequests of a request for GPUs, or nil for another request. Who only watches a device
// (adminAccess) takes no GPU. The service refuses pods with subrequests for GPUs and for other devices in one request.
func (a *Asking) choices(request resourceapi.DeviceRequest) (found []gpuChoice) {
	add := func(name string, mode resourceapi.DeviceAllocationMode, selectors []resourceapi.DeviceSelector, tolerations []resourceapi.DeviceToleration, asked *resourceapi.CapacityRequirements) {
		class, err := a.manager.DeviceClasses().Get(name)
		if err != nil || class.Spec.ExtendedResourceName == nil || !slices.Contains(a.gpus, *class.Spec.ExtendedResourceName) {
			return
		}
		counts := a.manager.DeviceClassResolver().GetDeviceClass(v1.ResourceName(*class.Spec.ExtendedResourceName))
		if counts == nil {
			counts = class
		}
		wanted := append(expressions(class.Spec.Selectors), expressions(selectors)...)
		var capacity map[resourceapi.QualifiedName]resource.Quantity
		if asked != nil {
			capacity = asked.Requests
		}
		every := mode == resourceapi.DeviceAllocationModeAll
		found = append(found, gpuChoice{class.Name, expressions(counts.Spec.Selectors), wanted, tolerations, every, capacity})
	}
	if exact := request.Exactly; exact != nil && !watches(request) {
		add(exact.DeviceClassName, exact.AllocationMode, exact.Selectors, exact.Tolerations, exact.Capacity)
	}
	for i := range request.FirstAvailable {
		some := &request.FirstAvailable[i]
		add(some.DeviceClassName, some.AllocationMode, some.Selectors, some.Tolerations, some.Capacity)
	}
	return found
}

func expressions(selectors []resourceapi.DeviceSelector) (found []string) {
	for _, selector := range selectors {
		if selector.CEL != nil {
			found = append(found, selector.CEL.Expression)
		}
	}
	return found
}

// selectorsOf returns how many different selectors have to be evaluated for the requests.
func selectorsOf(requests []gpuRequest) int {
	found := sets.New[string]()
	for _, request := range requests {
		for _, choice := range request.subrequests {
			found.Insert(choice.counted...).Insert(choice.wanted...)
		}
	}
	return len(found)
}
