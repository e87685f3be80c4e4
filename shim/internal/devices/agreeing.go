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
	fwk "k8s.io/kube-scheduler/framework"
)

const (
	// maxGroups bounds the groups of GPUs of one node that are asked about. The GPUs of further groups are not planned
	// for such pods. maxTogether bounds how many pods are tried together.
	maxGroups, maxTogether = 16, 16
	// trialTimeout bounds the allocator for one number of pods. It usually takes less than a millisecond. To learn that
	// many pods don't fit may take it long, and fewer are tried then.
	trialTimeout = askingTimeout / 8
	// anchorDriver has one device on each node, which stands for the GPUs of a group. No class can have this name.
	anchorDriver, anchorClass = "muster.dev", "muster.dev/gpus"
)

// agreement says that a claim of a pod binds its GPUs and other devices: they agree on attributes. A card must lie at the
// PCIe root of the planned GPUs, for example. The planner knows the GPUs alone, so the answer says for each group of
// GPUs that agree, for how many such pods the allocator finds the other devices.
type agreement struct {
	where      string // names the pod's claim
	attributes []resourceapi.FullyQualifiedName
	// claims are all of the pod's. In the one with GPUs a request for the anchor stands in the place of those.
	claims    []*resourceapi.ResourceClaim
	gpus      []resourceapi.DeviceRequest
	watching  bool                         // some of its requests watch devices, perhaps of the GPUs' driver
	binding   bool                         // other devices must agree with the GPUs
	shared    []*resourceapi.ResourceSlice // of no single node
	allocated *structured.AllocatedState
}

// Group is GPUs of a node that agree, with other devices for `Most` pods: fewer than there are GPUs for.
type Group struct {
	Names []string
	Most  int
}

// gpu is a GPU of a node that a pod may have.
type gpu struct {
	name         string // as SomeOf has it
	driver, pool string
	device       *resourceapi.Device
}

// GroupsOf returns the groups of a node's GPUs that hold fewer pods of this state than they have GPUs for, after Filter
// has let the node pass: for each subrequest of its requests one list, or nil if there are no such groups.
func GroupsOf(state fwk.CycleState, node string) [][]Group {
	data, err := state.Read(askedKey)
	if err != nil {
		return nil
	}
	if found, some := data.(*askedGPUs).groups.Load(node); some {
		return found.([][]Group)
	}
	return nil
}

// agreement returns what a claim of the pod binds its GPUs to, or nil. Pods that it does not understand have none: the
// service refuses them.
func (a *Asking) agreement(pod *v1.Pod) *agreement {
	found, with := &agreement{}, 0
	for named, claim := range claimsThere(a.manager, pod) {
		if hasItsDevices(claim) {
			continue
		}
		gpus, others := a.split(claim)
		found.watching = found.watching || slices.ContainsFunc(others, watches)
		if len(gpus) > 0 {
			if with++; with > 1 || !found.reads(claim, gpus, others) {
				return nil
			}
			found.where = "resourceClaims " + named
			others = append([]resourceapi.DeviceRequest{anchorOf(gpus[0].Name)}, others...)
		}
		shown := *claim // shallow: claims of the tracker never change
		shown.Status = resourceapi.ResourceClaimStatus{}
		shown.Spec.Devices.Requests = others
		found.claims = append(found.claims, &shown)
	}
	if with == 0 {
		return nil
	}
	return found
}

// split returns the requests of a claim for GPUs, and the others.
func (a *Asking) split(claim *resourceapi.ResourceClaim) (gpus, others []resourceapi.DeviceRequest) {
	for _, request := range claim.Spec.Devices.Requests {
		if len(a.choices(request)) > 0 {
			gpus = append(gpus, request)
		} else {
			others = append(others, request)
		}
	}
	return gpus, others
}

// reads notes the attributes on which all GPUs of the claim agree. It returns whether the planner must be told which GPUs
// that leaves: those with other devices that agree, and of a pod with one GPU those with the attributes. Several GPUs that
// agree with each other alone are its own business.
func (g *agreement) reads(claim *resourceapi.ResourceClaim, gpus, others []resourceapi.DeviceRequest) bool {
	for _, constraint := range claim.Spec.Devices.Constraints {
		bound := func(r resourceapi.DeviceRequest) bool {
			return len(constraint.Requests) == 0 || slices.ContainsFunc(constraint.Requests, func(name string) bool {
				request, _, _ := strings.Cut(name, "/")
				return request == r.Name
			})
		}
		if !slices.ContainsFunc(gpus, bound) {
			continue
		}
		partly := func(r resourceapi.DeviceRequest) bool {
			return len(constraint.Requests) > 0 && !slices.Contains(constraint.Requests, r.Name)
		}
		if constraint.MatchAttribute == nil || slices.ContainsFunc(gpus, partly) {
			return false
		}
		g.attributes = append(g.attributes, *constraint.MatchAttribute)
		g.binding = g.binding || slices.ContainsFunc(others, bound)
	}
	g.gpus = gpus
	return g.binding || len(g.attributes) > 0 && g.of(0, 0) == 1
}

// anchorOf returns a request that stands for those for GPUs. It watches the anchor, which several claims may do.
func anchorOf(name string) resourceapi.DeviceRequest {
	yes := true
	return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: anchorClass, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1, AdminAccess: &yes,
	}}
}

// of returns how many GPUs the pod has by its subrequests of this rank, on a node where it may have `all`.
func (g *agreement) of(rank, all int) (count int) {
	for _, request := range g.gpus {
		var mode resourceapi.DeviceAllocationMode
		var number int64
		if request.Exactly != nil {
			mode, number = request.Exactly.AllocationMode, request.Exactly.Count
		} else {
			some := request.FirstAvailable[min(rank, len(request.FirstAvailable)-1)]
			mode, number = some.AllocationMode, some.Count
		}
		if mode == resourceapi.DeviceAllocationModeAll {
			return all
		}
		count += int(number)
	}
	return max(count, 1)
}

// agreeing returns which of the GPUs the pod may have, if other devices must agree with them, and the groups that hold
// fewer pods than they have room for. `why` is set if it may have none.
func (a *Asking) agreeing(ctx context.Context, asked *askedGPUs, rank int, node *v1.Node, may usable) (left usable, limited []Group, why string) {
	g, count := asked.agreement, asked.agreement.of(rank, len(may.gpus))
	var failed error
	for _, group := range g.groups(may.gpus) {
		room := min(len(group)/count, maxTogether)
		most := room
		if g.binding {
			var err error
			if most, err = a.together(ctx, asked, node, group, count, room); err != nil && ctx.Err() != nil {
				return left, nil, fmt.Sprintf("%s: %v", g.where, err)
			} else if err != nil { // so are some constraints that can't be met, and another group may do
				failed = err
			}
		}
		if most == 0 {
			continue
		}
		var names []string
		for _, each := range group {
			names = append(names, each.name)
		}
		slices.Sort(names)
		left.names = append(left.names, names...)
		if most < room {
			limited = append(limited, Group{names, most})
		}
	}
	slices.Sort(left.names)
	if len(left.names) == 0 && failed != nil {
		return left, nil, fmt.Sprintf("%s: %v", g.where, failed)
	}
	if len(left.names) == 0 {
		return left, nil, g.none(count)
	}
	left.all = may.all && len(left.names) == len(may.names) && len(limited) == 0
	return left, limited, ""
}

// none says why the pod may have no GPU of the node.
func (g *agreement) none(count int) string {
	var names []string
	for _, name := range g.attributes {
		names = append(names, string(name))
	}
	if !g.binding {
		return fmt.Sprintf("%s: no GPU of the node has the attribute %s", g.where, strings.Join(names, " and "))
	}
	return fmt.Sprintf("%s: the node has no free devices that agree with %d of its GPUs on %s", g.where, count, strings.Join(names, " and "))
}

// groups returns the GPUs that agree on all attributes: the first maxGroups. A GPU without one of them is in none.
func (g *agreement) groups(gpus []gpu) (found [][]gpu) {
	at := map[string]int{}
	for _, each := range gpus {
		key := ""
		for _, name := range g.attributes {
			value := valueOf(attributeOf(each, name))
			if key = key + value + "\n"; value == "" {
				key = ""
				break
			}
		}
		if known, ok := at[key]; ok {
			found[known] = append(found[known], each)
		} else if key != "" && len(found) < maxGroups {
			at[key] = len(found)
			found = append(found, []gpu{each})
		}
	}
	return found
}

// attributeOf returns an attribute of a device. One without a domain has that of its driver.
func attributeOf(of gpu, name resourceapi.FullyQualifiedName) resourceapi.DeviceAttribute {
	if found, there := of.device.Attributes[resourceapi.QualifiedName(name)]; there {
		return found
	}
	id, _ := strings.CutPrefix(string(name), of.driver+"/")
	return of.device.Attributes[resourceapi.QualifiedName(id)]
}

// valueOf returns a text that is equal for values that agree, or "" for none and for lists.
func valueOf(of resourceapi.DeviceAttribute) string {
	switch {
	case of.StringValue != nil:
		return fmt.Sprintf("%q", *of.StringValue)
	case of.IntValue != nil:
		return fmt.Sprint(*of.IntValue)
	case of.BoolValue != nil:
		return fmt.Sprint(*of.BoolValue)
	case of.VersionValue != nil:
		return fmt.Sprintf("version %q", *of.VersionValue)
	}
	return ""
}

// together returns for how many pods, `room` at most, the allocator finds the devices that agree with a group of GPUs. It
// is an error if there are none because of one, such as a selector that can't be evaluated, or if the time for the node is spent.
func (a *Asking) together(ctx context.Context, asked *askedGPUs, node *v1.Node, group []gpu, count, room int) (int, error) {
	if room == 0 {
		return 0, nil
	}
	g := asked.agreement
	shown, allocated := g.besides(asked.slices[node.Name], node.Name, group, count)
	left := others{g.notOf(asked.slices[node.Name], group), allocated.AllocatedDevices, group[0]}
	if room = a.atMost(ctx, g, left, room); room == 0 {
		return 0, nil
	}
	allocator, err := structured.NewAllocator(ctx, a.features, allocated, anchored{a.manager.DeviceClasses()}, shown, a.celCache)
	if err != nil {
		return 0, err
	}
	fits := func(pods int) bool {
		trial, cancel := context.WithTimeout(ctx, trialTimeout)
		defer cancel()
		found, failed := allocator.Allocate(trial, node, slices.Repeat(g.claims, pods))
		if failed != nil && trial.Err() == nil {
			err = failed // a selector that can't be evaluated, or All with a constraint that can't be met
		}
		return failed == nil && len(found) == pods*len(g.claims)
	}
	if fits(room) {
		return room, nil
	}
	most := 0
	for tooMany := room; tooMany-most > 1 && ctx.Err() == nil; {
		if middle := (most + tooMany) / 2; fits(middle) {
			most = middle
		} else {
			tooMany = middle
		}
	}
	if ctx.Err() != nil {
		return most, fmt.Errorf("the allocator took more than %v for the node", askingTimeout)
	}
	if most > 0 {
		return most, nil
	}
	return 0, err
}

// notOf returns the slices with devices that pods may have with GPUs of a group. Of the GPUs' drivers they only watch some.
func (g *agreement) notOf(published []*resourceapi.ResourceSlice, group []gpu) []*resourceapi.ResourceSlice {
	found := slices.Clone(g.shared)
	for _, slice := range published {
		if !slices.ContainsFunc(group, func(each gpu) bool { return each.driver == slice.Spec.Driver }) {
			found = append(found, slice)
		}
	}
	return found
}

// besides returns the slices of other devices that pods of a group see, and what of them is allocated. As in the cycle of
// a member, requests to watch see all devices of the GPUs' drivers but the pod's own, and other requests see none.
func (g *agreement) besides(published []*resourceapi.ResourceSlice, node string, group []gpu, count int) ([]*resourceapi.ResourceSlice, structured.AllocatedState) {
	anchor := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: anchorDriver}, Spec: resourceapi.ResourceSliceSpec{
		Driver: anchorDriver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
		Devices: []resourceapi.Device{{Name: "gpus", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}}},
	}}
	for _, name := range g.attributes {
		anchor.Spec.Devices[0].Attributes[resourceapi.QualifiedName(name)] = attributeOf(group[0], name)
	}
	shown, allocated := append([]*resourceapi.ResourceSlice{anchor}, g.shared...), *g.allocated
	drivers, own := sets.New[string](), sets.New[device]()
	for i, each := range group {
		drivers.Insert(each.driver)
		if i < count {
			own.Insert(device{each.driver, each.pool, each.device.Name})
		}
	}
	if g.watching { // a set of its own: that of the cluster has tens of thousands
		allocated.AllocatedDevices = sets.New[structured.DeviceID]()
		for _, slice := range append(slices.Clone(g.shared), published...) {
			for i := range slice.Spec.Devices {
				id := structured.MakeDeviceID(slice.Spec.Driver, slice.Spec.Pool.Name, slice.Spec.Devices[i].Name)
				if drivers.Has(slice.Spec.Driver) || g.allocated.AllocatedDevices.Has(id) {
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
		if !g.watching {
			continue
		}
		left := withoutOwned(slice)
		left.Spec.Devices = slices.DeleteFunc(left.Spec.Devices, func(d resourceapi.Device) bool {
			return own.Has(device{slice.Spec.Driver, slice.Spec.Pool.Name, d.Name})
		})
		shown = append(shown, left)
	}
	return shown, allocated
}

// anchored lists the class of the anchor too.
type anchored struct{ structured.DeviceClassLister }

func (c anchored) Get(name string) (*resourceapi.DeviceClass, error) {
	if name != anchorClass {
		return c.DeviceClassLister.Get(name)
	}
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "device.driver == '" + anchorDriver + "'"}}},
	}}, nil
}
