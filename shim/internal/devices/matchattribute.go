package devices

import (
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
)

const (
	// maxGroups bounds the groups of GPUs of one node for which the allocator is asked. The GPUs of further groups are
	// not planned for such pods. maxTogether bounds how many pods are tried together.
	maxGroups, maxTogether = 16, 16
	// trialTimeout bounds the allocator's time for one number of pods, usually below a millisecond. To find out that
	// many pods don't fit may take long; then fewer pods are tried.
	trialTimeout = nodeTimeout / 8
	// anchorDriver has one device on each node, which stands for the GPUs of a group. No class can have this name.
	anchorDriver, anchorClass = "muster.dev", "muster.dev/gpus"
)

// matchAttributeClaim is the claim of a pod whose constraints require its GPUs and other devices to agree on attributes
// (matchAttribute). For example, a card must lie at the PCIe root of the planned GPUs. The planner knows only the GPUs.
// So the answer contains each group of GPUs that agree, and the number of such pods for which the allocator finds the
// other devices.
type matchAttributeClaim struct {
	label      string // names the pod's claim
	attributes []resourceapi.FullyQualifiedName
	// claims are all of the pod's claims. In the claim with GPUs a request for the anchor replaces the requests for GPUs.
	claims                []*resourceapi.ResourceClaim
	gpus                  []resourceapi.DeviceRequest
	hasAdminRequests      bool                         // a request of the pod watches devices, perhaps of the GPUs' driver
	otherDevicesMustAgree bool                         // other devices must agree with the GPUs
	shared                []*resourceapi.ResourceSlice // slices that belong to several nodes
	allocated             *structured.AllocatedState
}

// Group is a group of GPUs of a node that agree. Other devices are there for MaxPods pods, although the GPUs would suffice
// for more.
type Group struct {
	Names   []string
	MaxPods int
}

// gpu is a GPU of a node that a pod may have.
type gpu struct {
	name         string // as in MatchingGPUs
	driver, pool string
	device       *resourceapi.Device
}

// matchAttributeClaimOf returns the pod's claim whose GPUs must agree with each other or with other devices, or nil. It
// also returns nil for constraints that it does not understand, because the service refuses such pods.
func (a *AdvanceCheck) matchAttributeClaimOf(pod *v1.Pod) *matchAttributeClaim {
	match, claimsWithGPUs := &matchAttributeClaim{}, 0
	for claimName, claim := range claimsOf(a.manager, pod) {
		if claim == nil || a.keepsDevices(pod, claim) {
			continue
		}
		gpus, otherRequests := a.splitRequests(claim)
		match.hasAdminRequests = match.hasAdminRequests || slices.ContainsFunc(otherRequests, hasAdminAccess)
		if len(gpus) > 0 {
			if claimsWithGPUs++; claimsWithGPUs > 1 || !match.recordConstraints(claim, gpus, otherRequests) {
				return nil
			}
			match.label = "resourceClaims " + claimName
			otherRequests = append([]resourceapi.DeviceRequest{anchorRequest(gpus[0].Name)}, otherRequests...)
		}
		shown := *claim // shallow: claims of the tracker never change
		shown.Status = resourceapi.ResourceClaimStatus{}
		shown.Spec.Devices.Requests = otherRequests
		match.claims = append(match.claims, &shown)
	}
	if claimsWithGPUs == 0 {
		return nil
	}
	return match
}

// splitRequests returns the claim's requests for GPUs, and its requests for other devices.
func (a *AdvanceCheck) splitRequests(claim *resourceapi.ResourceClaim) (gpus, otherRequests []resourceapi.DeviceRequest) {
	for _, request := range claim.Spec.Devices.Requests {
		if len(a.gpuChoices(request)) > 0 {
			gpus = append(gpus, request)
		} else {
			otherRequests = append(otherRequests, request)
		}
	}
	return gpus, otherRequests
}

// recordConstraints records the matchAttribute constraints that bind all GPUs of the claim. It returns true if they
// restrict which GPUs the planner may use. They do if other devices must agree too, or if the pod has one GPU, which must
// have the attribute. If several GPUs must agree only with each other, the planner itself ensures it.
func (m *matchAttributeClaim) recordConstraints(claim *resourceapi.ResourceClaim, gpus, otherRequests []resourceapi.DeviceRequest) bool {
	for _, constraint := range claim.Spec.Devices.Constraints {
		binds := func(r resourceapi.DeviceRequest) bool {
			return len(constraint.Requests) == 0 || slices.ContainsFunc(constraint.Requests, func(name string) bool {
				request, _, _ := strings.Cut(name, "/")
				return request == r.Name
			})
		}
		if !slices.ContainsFunc(gpus, binds) {
			continue
		}
		bindsPart := func(r resourceapi.DeviceRequest) bool {
			return len(constraint.Requests) > 0 && !slices.Contains(constraint.Requests, r.Name)
		}
		if constraint.MatchAttribute == nil || slices.ContainsFunc(gpus, bindsPart) {
			return false
		}
		m.attributes = append(m.attributes, *constraint.MatchAttribute)
		m.otherDevicesMustAgree = m.otherDevicesMustAgree || slices.ContainsFunc(otherRequests, binds)
	}
	m.gpus = gpus
	return m.otherDevicesMustAgree || len(m.attributes) > 0 && m.gpuCount(0, 0) == 1
}

// anchorRequest returns a request that replaces the GPU requests. It has adminAccess to the anchor device, so that several
// claims can use the anchor at once.
func anchorRequest(name string) resourceapi.DeviceRequest {
	yes := true
	return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: anchorClass, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1, AdminAccess: &yes,
	}}
}

// gpuCount returns how many GPUs the pod requests by its subrequests with this index, on a node with this many available.
func (m *matchAttributeClaim) gpuCount(choiceIndex, available int) (count int) {
	for _, request := range m.gpus {
		var mode resourceapi.DeviceAllocationMode
		var number int64
		if request.Exactly != nil {
			mode, number = request.Exactly.AllocationMode, request.Exactly.Count
		} else {
			subrequest := request.FirstAvailable[min(choiceIndex, len(request.FirstAvailable)-1)]
			mode, number = subrequest.AllocationMode, subrequest.Count
		}
		if mode == resourceapi.DeviceAllocationModeAll {
			return available
		}
		count += int(number)
	}
	return max(count, 1)
}

// gpusWithPeers returns the GPUs that the pod may have, since other devices must agree with them. It also returns the
// groups that hold fewer pods than their GPUs suffice for. If the pod may have no GPU, it returns the reason.
func (a *AdvanceCheck) gpusWithPeers(ctx context.Context, question *gpuQuestion, choiceIndex int, node *v1.Node, usable usableGPUs) (suitable usableGPUs, limited []Group, reason string) {
	match, count := question.matchClaim, question.matchClaim.gpuCount(choiceIndex, len(usable.gpus))
	var failed error
	for _, group := range match.groupsOf(usable.gpus) {
		room := min(len(group)/count, maxTogether)
		podCount := room
		if match.otherDevicesMustAgree {
			var err error
			if podCount, err = a.podsPerGroup(ctx, question, node, group, count, room); err != nil && ctx.Err() != nil {
				return suitable, nil, fmt.Sprintf("%s: %v", match.label, err)
			} else if err != nil { // perhaps a constraint that this group can't meet; another group may meet it
				failed = err
			}
		}
		if podCount == 0 {
			continue
		}
		var groupNames []string
		for _, member := range group {
			groupNames = append(groupNames, member.name)
		}
		slices.Sort(groupNames)
		suitable.names = append(suitable.names, groupNames...)
		if podCount < room {
			limited = append(limited, Group{groupNames, podCount})
		}
	}
	slices.Sort(suitable.names)
	if len(suitable.names) == 0 && failed != nil {
		return suitable, nil, fmt.Sprintf("%s: %v", match.label, failed)
	}
	if len(suitable.names) == 0 {
		return suitable, nil, match.refusalReason(count)
	}
	suitable.all = usable.all && len(suitable.names) == len(usable.names) && len(limited) == 0
	return suitable, limited, ""
}

// refusalReason returns the reason why no GPU of the node suits the pod.
func (m *matchAttributeClaim) refusalReason(count int) string {
	var names []string
	for _, name := range m.attributes {
		names = append(names, string(name))
	}
	if !m.otherDevicesMustAgree {
		return fmt.Sprintf("%s: no GPU of the node has the attribute %s", m.label, strings.Join(names, " and "))
	}
	return fmt.Sprintf("%s: the node has no free devices that agree with %d of its GPUs on %s", m.label, count, strings.Join(names, " and "))
}

// groupsOf returns the first maxGroups groups of GPUs that agree on all attributes. A GPU that lacks an attribute is in no
// group.
func (m *matchAttributeClaim) groupsOf(gpus []gpu) (groups [][]gpu) {
	indices := map[string]int{}
	for _, candidate := range gpus {
		key := ""
		for _, name := range m.attributes {
			value := valueOf(attributeOf(candidate, name))
			if key = key + value + "\n"; value == "" {
				key = ""
				break
			}
		}
		if index, ok := indices[key]; ok {
			groups[index] = append(groups[index], candidate)
		} else if key != "" && len(groups) < maxGroups {
			indices[key] = len(groups)
			groups = append(groups, []gpu{candidate})
		}
	}
	return groups
}

// attributeOf returns an attribute of a device. If the attribute's name has no domain, its domain is the driver.
func attributeOf(candidate gpu, name resourceapi.FullyQualifiedName) resourceapi.DeviceAttribute {
	if attribute, ok := candidate.device.Attributes[resourceapi.QualifiedName(name)]; ok {
		return attribute
	}
	id, _ := strings.CutPrefix(string(name), candidate.driver+"/")
	return candidate.device.Attributes[resourceapi.QualifiedName(id)]
}

// valueOf returns a text that is equal for values that agree. It returns "" for a missing value and for a list.
func valueOf(attribute resourceapi.DeviceAttribute) string {
	switch {
	case attribute.StringValue != nil:
		return fmt.Sprintf("%q", *attribute.StringValue)
	case attribute.IntValue != nil:
		return fmt.Sprint(*attribute.IntValue)
	case attribute.BoolValue != nil:
		return fmt.Sprint(*attribute.BoolValue)
	case attribute.VersionValue != nil:
		return fmt.Sprintf("version %q", *attribute.VersionValue)
	}
	return ""
}

// podsPerGroup returns for how many pods, `room` at most, the allocator finds devices that agree with a group of GPUs.
// It returns an error if the time for the node is spent, or if an error is the reason why no pod fits. An example is a
// selector that can't be evaluated.
func (a *AdvanceCheck) podsPerGroup(ctx context.Context, question *gpuQuestion, node *v1.Node, group []gpu, count, room int) (int, error) {
	if room == 0 {
		return 0, nil
	}
	match := question.matchClaim
	shown, allocated := match.otherSlices(question.slices[node.Name], node.Name, group, count)
	peers := peerDevices{match.peerSlices(question.slices[node.Name], group), allocated.AllocatedDevices, group[0]}
	if room = a.maxPods(ctx, match, peers, room); room == 0 {
		return 0, nil
	}
	allocator, err := structured.NewAllocator(ctx, a.features, allocated, classesWithAnchor{a.manager.DeviceClasses()}, a.slices.inTree(shown), a.celCache)
	if err != nil {
		return 0, err
	}
	fits := func(pods int) bool {
		trial, cancel := context.WithTimeout(ctx, trialTimeout)
		defer cancel()
		results, trialErr := allocator.Allocate(trial, node, slices.Repeat(match.claims, pods))
		if trialErr != nil && trial.Err() == nil {
			err = trialErr // a selector that can't be evaluated, or All with a constraint that can't be met
		}
		return trialErr == nil && len(results) == pods*len(match.claims)
	}
	if fits(room) {
		return room, nil
	}
	fitting := 0
	for tooMany := room; tooMany-fitting > 1 && ctx.Err() == nil; {
		if middle := (fitting + tooMany) / 2; fits(middle) {
			fitting = middle
		} else {
			tooMany = middle
		}
	}
	if ctx.Err() != nil {
		return fitting, fmt.Errorf("the allocator took more than %v for the node", nodeTimeout)
	}
	if fitting > 0 {
		return fitting, nil
	}
	return 0, err
}

// peerSlices returns the slices whose devices a pod may get in addition to GPUs of a group. The slices of the GPUs'
// drivers are not among them, because pods only watch the devices of these.
func (m *matchAttributeClaim) peerSlices(published []*resourceapi.ResourceSlice, group []gpu) []*resourceapi.ResourceSlice {
	peers := slices.Clone(m.shared)
	for _, slice := range published {
		if !slices.ContainsFunc(group, func(member gpu) bool { return member.driver == slice.Spec.Driver }) {
			peers = append(peers, slice)
		}
	}
	return peers
}

// otherSlices returns the slices of other devices that pods of a group see, and the allocated state of these devices.
// As in a member's cycle, only requests with adminAccess see devices of the GPUs' drivers: all except the pod's own.
func (m *matchAttributeClaim) otherSlices(published []*resourceapi.ResourceSlice, node string, group []gpu, count int) ([]*resourceapi.ResourceSlice, structured.AllocatedState) {
	anchor := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: anchorDriver}, Spec: resourceapi.ResourceSliceSpec{
		Driver: anchorDriver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
		Devices: []resourceapi.Device{{Name: "gpus", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}}},
	}}
	for _, name := range m.attributes {
		anchor.Spec.Devices[0].Attributes[resourceapi.QualifiedName(name)] = attributeOf(group[0], name)
	}
	shown, allocated := append([]*resourceapi.ResourceSlice{anchor}, m.shared...), *m.allocated
	drivers, podDevices := sets.New[string](), sets.New[device]()
	for i, member := range group {
		drivers.Insert(member.driver)
		if i < count {
			podDevices.Insert(device{member.driver, member.pool, member.device.Name})
		}
	}
	if m.hasAdminRequests { // a set of its own: that of the cluster has tens of thousands
		allocated.AllocatedDevices = sets.New[structured.DeviceID]()
		for _, slice := range append(slices.Clone(m.shared), published...) {
			for i := range slice.Spec.Devices {
				id := structured.MakeDeviceID(slice.Spec.Driver, slice.Spec.Pool.Name, slice.Spec.Devices[i].Name)
				if drivers.Has(slice.Spec.Driver) || m.allocated.AllocatedDevices.Has(id) {
					allocated.AllocatedDevices.Insert(id)
				}
			}
		}
	}
	for _, slice := range published {
		if !drivers.Has(slice.Spec.Driver) {
			shown = append(shown, slice)
			continue
		}
		if !m.hasAdminRequests {
			continue
		}
		visible := sliceWithoutOwnedTaint(slice)
		visible.Spec.Devices = slices.DeleteFunc(visible.Spec.Devices, func(d resourceapi.Device) bool {
			return podDevices.Has(device{slice.Spec.Driver, slice.Spec.Pool.Name, d.Name})
		})
		shown = append(shown, visible)
	}
	return shown, allocated
}

// classesWithAnchor lists the class of the anchor too, because the allocator reads the class of each request.
type classesWithAnchor struct{ structured.DeviceClassLister }

func (c classesWithAnchor) Get(name string) (*resourceapi.DeviceClass, error) {
	if name != anchorClass {
		return c.DeviceClassLister.Get(name)
	}
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "device.driver == '" + anchorDriver + "'"}}},
	}}, nil
}
