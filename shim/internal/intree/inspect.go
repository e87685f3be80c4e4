package intree

import (
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"muster.dev/shim/internal/devices"
	"muster.dev/shim/internal/musterv1"
)

// maxRoom bounds how many pods of a kind are tried together on a node. Few nodes hold more GPU pods, and a trial costs
// more time the more claims it has.
const maxRoom = 16

// refusal is a plugin or extender and its reason.
type refusal struct{ plugin, reason string }

// answer is the result of the plugins for one kind.
type answer struct {
	everywhere *refusal
	refused    map[string]refusal
	room       map[string]int
	scores     map[string]uint32   // 1 to 100; other nodes have 0
	devices    map[string][]gpuSet // the GPUs that the pods may have, unless these are all without taints: see gpuSetsOf
}

// batchSize is how many nodes are inspected before other questions may be worked on.
const batchSize = 128

// inspector runs the plugins on the snapshot.
type inspector struct {
	framework framework.Framework
	extenders []fwk.Extender
	snapshot  *snapshot
}

// inspect returns the answer for a kind with these pods. It calls pause after each batch of nodes. Meanwhile other
// questions may be worked on, and the snapshot may be renewed. If pause returns false, the answer is incomplete.
func (i *inspector) inspect(ctx context.Context, pods []*v1.Pod, pause func() bool) answer {
	result := answer{refused: map[string]refusal{}, room: map[string]int{}, devices: map[string][]gpuSet{}}
	probe, everywhere := i.preFilter(ctx, pods[0])
	if everywhere != nil {
		result.everywhere = everywhere
		return result
	}
	nodes := i.snapshot.nodes
	refusals := make([]*refusal, len(nodes))
	for start := 0; start < len(nodes); start += batchSize {
		i.framework.Parallelizer().Until(ctx, min(batchSize, len(nodes)-start), func(index int) {
			refusals[start+index] = i.filter(ctx, probe, nodes[start+index])
		}, "")
		if !pause() {
			return result
		}
	}
	var passing []fwk.NodeInfo
	for index, node := range nodes {
		if refusals[index] != nil {
			result.refused[node.Node().Name] = *refusals[index]
		} else {
			passing = append(passing, node)
			if sets := gpuSetsOf(devices.MatchingOn(probe.state, node.Node().Name)); sets != nil {
				result.devices[node.Node().Name] = sets
			}
		}
	}
	i.callExtenders(ctx, pods[0], passing, result.refused)
	if len(pods) > 1 && (usesVolumes(pods[0]) || len(pods[0].Spec.ResourceClaims) > 0) {
		i.measureRoom(ctx, pods[:min(len(pods), maxRoom)], passing, &result, pause)
	}
	return result
}

// podProbe is a pod for which PreFilter has run.
type podProbe struct {
	pod   *v1.Pod
	state fwk.CycleState
	only  *fwk.PreFilterResult // the nodes that PreFilter admits
	by    string               // the plugins that limit these nodes
}

// gpuSet is a set of GPUs of a node. The zero value stands for all GPUs without taints.
type gpuSet struct {
	key    string // equal for equal sets; "" for all GPUs without taints
	names  []string
	groups []devices.Group
}

// gpuSetOf returns the set of these GPUs. If names is nil, it returns the set of all GPUs without taints.
func gpuSetOf(names []string, groups []devices.Group) gpuSet {
	if names == nil {
		return gpuSet{}
	}
	return gpuSet{fmt.Sprint(names, groups), names, groups}
}

// toMessage returns the set in the form for the service.
func (s gpuSet) toMessage() *musterv1.InTreeDevices {
	message := &musterv1.InTreeDevices{Names: s.names}
	for _, group := range s.groups {
		members := &musterv1.InTreeGroup{Most: uint32(group.MaxPods)}
		for _, name := range group.Names {
			members.Devices = append(members.Devices, uint32(slices.Index(s.names, name)))
		}
		message.Groups = append(message.Groups, members)
	}
	return message
}

// gpuSetsOf returns a set for each subrequest. It returns nil in the most frequent case: there is one subrequest, which
// may have all GPUs without taints.
func gpuSetsOf(matching []devices.MatchingGPUs) (gpuSets []gpuSet) {
	for _, gpus := range matching {
		gpuSets = append(gpuSets, gpuSetOf(gpus.Names, gpus.Groups))
	}
	if len(gpuSets) == 1 && gpuSets[0].key == "" {
		return nil
	}
	return gpuSets
}

// preFilter runs PreFilter. A pod that PreFilter refuses is refused on all nodes.
func (i *inspector) preFilter(ctx context.Context, pod *v1.Pod) (*podProbe, *refusal) {
	state := framework.NewCycleState()
	only, status, by := i.framework.RunPreFilterPlugins(ctx, state, pod)
	if !status.IsSuccess() {
		return nil, refusalOf(status)
	}
	return &podProbe{pod: pod, state: state, only: only, by: strings.Join(by.UnsortedList(), ", ")}, nil
}

// filter returns the refusal for a node, or nil if no plugin refuses it.
func (i *inspector) filter(ctx context.Context, probe *podProbe, node fwk.NodeInfo) *refusal {
	if !probe.only.AllNodes() && !probe.only.NodeNames.Has(node.Node().Name) {
		return &refusal{probe.by, "node(s) didn't satisfy plugin " + probe.by}
	}
	if status := i.framework.RunFilterPlugins(ctx, probe.state, probe.pod, node); !status.IsSuccess() {
		return refusalOf(status)
	}
	return nil
}

// callExtenders calls the extenders for the nodes that no plugin refused.
func (i *inspector) callExtenders(ctx context.Context, pod *v1.Pod, passing []fwk.NodeInfo, refused map[string]refusal) {
	for _, extender := range i.extenders {
		if !extender.IsFilter() || !extender.IsInterested(pod) || len(passing) == 0 {
			continue
		}
		remaining, failed, failedForGood, err := extender.Filter(pod, passing)
		if err != nil {
			// The scheduling cycle calls the extender again, and may get an answer.
			klog.FromContext(ctx).V(2).Info("Extender gave no in-tree answer", "extender", extender.Name(), "error", err)
			continue
		}
		for _, nodes := range []map[string]string{failed, failedForGood} {
			for node, reason := range nodes {
				refused[node] = refusal{extender.Name(), reason}
			}
		}
		passing = remaining
	}
}

// measureRoom determines how many of the pods a node can hold together, for nodes that cannot hold all. Plugins check one
// pod at a time. So measureRoom tries one pod with the volumes and the claims of several. Such a pod needs as many
// attachments, different volumes and different devices as the several pods together. measureRoom calls pause before each
// node and each further trial, because claims that users write can make a trial long.
func (i *inspector) measureRoom(ctx context.Context, pods []*v1.Pod, passing []fwk.NodeInfo, result *answer, pause func() bool) {
	trials := map[int]*podProbe{}
	fits := func(members int, node fwk.NodeInfo) bool {
		if members == 1 {
			return true
		}
		probe, ok := trials[members]
		if !ok {
			probe, _ = i.preFilter(ctx, combinePods(pods[:members]))
			trials[members] = probe
		}
		return probe != nil && i.filter(ctx, probe, node) == nil
	}
	for _, node := range passing {
		if !pause() {
			return
		}
		if _, refused := result.refused[node.Node().Name]; refused || fits(len(pods), node) {
			continue
		}
		fitting, tooMany := 1, len(pods)
		for tooMany-fitting > 1 && pause() {
			if middle := (fitting + tooMany) / 2; fits(middle, node) {
				fitting = middle
			} else {
				tooMany = middle
			}
		}
		result.room[node.Node().Name] = fitting
	}
}

// combinePods returns one pod with the volumes and the claims of all. It refers to claims by their names, because these
// claims belong to pods with other names. A claim that several pods share appears once.
func combinePods(pods []*v1.Pod) *v1.Pod {
	all := pods[0].DeepCopy()
	all.Spec.Volumes, all.Spec.ResourceClaims = nil, nil
	seen := map[string]bool{}
	for _, pod := range pods {
		for i := range pod.Spec.ResourceClaims {
			reference := pod.Spec.ResourceClaims[i]
			name, _, err := resourceclaim.Name(pod, &reference)
			if err != nil || name == nil || seen[deviceClaimKey(*name)] {
				continue
			}
			seen[deviceClaimKey(*name)] = true
			all.Spec.ResourceClaims = append(all.Spec.ResourceClaims, v1.PodResourceClaim{Name: reference.Name, ResourceClaimName: name})
		}
		for i := range pod.Spec.Volumes {
			volume := pod.Spec.Volumes[i]
			if claim := claimName(pod, &volume); claim != "" {
				if seen[claim] {
					continue
				}
				seen[claim] = true
				volume.VolumeSource = v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}
			}
			all.Spec.Volumes = append(all.Spec.Volumes, volume)
		}
	}
	return all
}

// refusalOf returns the refusal that a plugin's status states.
func refusalOf(status *fwk.Status) *refusal {
	return &refusal{status.Plugin(), strings.Join(status.Reasons(), ", ")}
}
