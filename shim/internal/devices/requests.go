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
	label       string // names the pod's claim and the request
	subrequests []gpuChoice
}

// subrequest returns the subrequest with this index, or the last subrequest if the request has fewer.
func (r gpuRequest) subrequest(choiceIndex int) gpuChoice {
	return r.subrequests[min(choiceIndex, len(r.subrequests)-1)]
}

// gpuChoice says which devices a request, or a subrequest, may have.
type gpuChoice struct {
	class        string
	gpuSelectors []string // the selectors by which devices count as GPUs
	selectors    []string // the selectors of the request and of its class
	tolerations  []resourceapi.DeviceToleration
	takesAll     bool                                            // all that match (allocationMode All)
	capacity     map[resourceapi.QualifiedName]resource.Quantity // that each device must have
}

// claimsOf yields a pod's claims, each with its name in the pod's spec. The claim is nil if it does not exist or has no
// name yet, which the in-tree plugin reports.
func claimsOf(manager fwk.SharedDRAManager, pod *v1.Pod) iter.Seq2[string, *resourceapi.ResourceClaim] {
	return func(yield func(string, *resourceapi.ResourceClaim) bool) {
		for i := range pod.Spec.ResourceClaims {
			reference := &pod.Spec.ResourceClaims[i]
			name, _, err := resourceclaim.Name(pod, reference)
			if err == nil && name == nil {
				continue // this pod needs no such claim
			}
			var claim *resourceapi.ResourceClaim
			if err == nil {
				claim, _ = manager.ResourceClaims().Get(pod.Namespace, *name) // nil with an error
			}
			if !yield(reference.Name, claim) {
				return
			}
		}
	}
}

// RequestedResources yields the resources that each container of a pod requests.
func RequestedResources(pod *v1.Pod) iter.Seq2[v1.ResourceName, resource.Quantity] {
	return func(yield func(v1.ResourceName, resource.Quantity) bool) {
		for _, containers := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range containers {
				for name, amount := range containers[i].Resources.Requests {
					if !yield(name, amount) {
						return
					}
				}
			}
		}
	}
}

// selectorsOfGPUs returns the selectors of the DeviceClass of each of these resources that has one.
func selectorsOfGPUs(manager fwk.SharedDRAManager, resources []string) (selectors [][]string) {
	for _, name := range resources {
		if class := manager.DeviceClassResolver().GetDeviceClass(v1.ResourceName(name)); class != nil {
			selectors = append(selectors, celExpressions(class.Spec.Selectors))
		}
	}
	return selectors
}

// gpuRequests returns the pod's different requests for GPUs: at most one more than maxRequests. It leaves out claims that
// do not exist, because the in-tree plugin reports them.
func (a *AdvanceCheck) gpuRequests(pod *v1.Pod) (requests []gpuRequest) {
	for claimName, claim := range claimsOf(a.manager, pod) {
		if claim == nil || a.keepsDevices(pod, claim) {
			continue
		}
		for _, request := range claim.Spec.Devices.Requests {
			choices := a.gpuChoices(request)
			isEqual := func(r gpuRequest) bool { return reflect.DeepEqual(r.subrequests, choices) }
			if len(choices) > 0 && !slices.ContainsFunc(requests, isEqual) {
				requests = append(requests, gpuRequest{fmt.Sprintf("resourceClaims %s, request %s", claimName, request.Name), choices})
			}
			if len(requests) > maxRequests { // enough to refuse the pod; each further request would be compared with all of these
				return requests
			}
		}
	}
	return requests
}

// needsGPUsAndAdminAccess returns whether the pod takes GPUs and also has a request with adminAccess. In its cycle such a
// pod sees all devices of the node's GPU drivers without our taint.
func (a *AdvanceCheck) needsGPUsAndAdminAccess(pod *v1.Pod, question *gpuQuestion) bool {
	if len(question.requests) == 0 && !a.asksForGPUResource(pod) {
		return false
	}
	for _, claim := range claimsOf(a.manager, pod) {
		if claim != nil && slices.ContainsFunc(claim.Spec.Devices.Requests, hasAdminAccess) {
			return true
		}
	}
	return false
}

// asksForGPUResource returns whether a container requests a resource that counts GPUs, such as nvidia.com/gpu.
func (a *AdvanceCheck) asksForGPUResource(pod *v1.Pod) bool {
	for name := range RequestedResources(pod) {
		if slices.Contains(a.gpus, string(name)) {
			return true
		}
	}
	return false
}

// driversOfGPUs returns the drivers of devices that count as GPUs.
func (a *AdvanceCheck) driversOfGPUs(ctx context.Context, all []*resourceapi.ResourceSlice) sets.Set[string] {
	drivers := sets.New[string]()
	for _, selectors := range selectorsOfGPUs(a.manager, a.gpus) {
		for _, slice := range all {
			driver := slice.Spec.Driver
			if !drivers.Has(driver) && slices.Contains(a.matcher.matchAll(ctx, selectors, slice, nil).devices, true) {
				drivers.Insert(driver)
			}
		}
	}
	return drivers
}

// isSharedAndAllocated returns whether a claim that belongs to no single pod is allocated. Pods that name it get these
// devices.
func isSharedAndAllocated(claim *resourceapi.ResourceClaim) bool {
	return claim.Status.Allocation != nil && metav1.GetControllerOf(claim) == nil
}

// gpuChoices returns the subrequests of a request for GPUs, or nil for another request. A request with adminAccess
// takes no GPU. The service refuses pods with subrequests for GPUs and for other devices in one request.
func (a *AdvanceCheck) gpuChoices(request resourceapi.DeviceRequest) (choices []gpuChoice) {
	add := func(name string, mode resourceapi.DeviceAllocationMode, selectors []resourceapi.DeviceSelector, tolerations []resourceapi.DeviceToleration, capacities *resourceapi.CapacityRequirements) {
		class, err := a.manager.DeviceClasses().Get(name)
		if err != nil || class.Spec.ExtendedResourceName == nil || !slices.Contains(a.gpus, *class.Spec.ExtendedResourceName) {
			return
		}
		gpuClass := a.manager.DeviceClassResolver().GetDeviceClass(v1.ResourceName(*class.Spec.ExtendedResourceName))
		if gpuClass == nil {
			gpuClass = class
		}
		allSelectors := append(celExpressions(class.Spec.Selectors), celExpressions(selectors)...)
		var capacity map[resourceapi.QualifiedName]resource.Quantity
		if capacities != nil {
			capacity = capacities.Requests
		}
		isAll := mode == resourceapi.DeviceAllocationModeAll
		choices = append(choices, gpuChoice{class.Name, celExpressions(gpuClass.Spec.Selectors), allSelectors, tolerations, isAll, capacity})
	}
	if exact := request.Exactly; exact != nil && !hasAdminAccess(request) {
		add(exact.DeviceClassName, exact.AllocationMode, exact.Selectors, exact.Tolerations, exact.Capacity)
	}
	for i := range request.FirstAvailable {
		subrequest := &request.FirstAvailable[i]
		add(subrequest.DeviceClassName, subrequest.AllocationMode, subrequest.Selectors, subrequest.Tolerations, subrequest.Capacity)
	}
	return choices
}

// celExpressions returns the CEL expressions of selectors.
func celExpressions(selectors []resourceapi.DeviceSelector) (texts []string) {
	for _, selector := range selectors {
		if selector.CEL != nil {
			texts = append(texts, selector.CEL.Expression)
		}
	}
	return texts
}

// countSelectors returns how many different selectors have to be evaluated for the requests.
func countSelectors(requests []gpuRequest) int {
	selectors := sets.New[string]()
	for _, request := range requests {
		for _, choice := range request.subrequests {
			selectors.Insert(choice.gpuSelectors...).Insert(choice.selectors...)
		}
	}
	return len(selectors)
}
