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

// roomAtMost bounds how many pods of a kind are tried together on a node. Few nodes hold more GPU pods, and each step
// costs as many claims.
const roomAtMost = 16

// refusal is a plugin or extender and its reason.
type refusal struct{ plugin, reason string }

// answer is the result of the plugins for one kind.
type answer struct {
	everywhere *refusal
	refused    map[string]refusal
	room       map[string]int
	scores     map[string]uint32   // 1 to 100; other nodes have 0
	devices    map[string][]gpuSet // the GPUs that the pods may have, if not all without taints: see choices
}

// batch is how many nodes are inspected before other questions may be worked on.
const batch = 128

// inspector runs the plugins on the snapshot.
type inspector struct {
	framework framework.Framework
	extenders []fwk.Extender
	snapshot  *snapshot
}

// inspect returns the answer for a kind with these pods. It calls pause after each batch of nodes. Meanwhile other
// questions may be worked on, and the snapshot may be renewed. If pause returns false, the answer is incomplete.
func (i *inspector) inspect(ctx context.Context, pods []*v1.Pod, pause func() bool) answer {
	found := answer{refused: map[string]refusal{}, room: map[string]int{}, devices: map[string][]gpuSet{}}
	one, everywhere := i.prepare(ctx, pods[0])
	if everywhere != nil {
		found.everywhere = everywhere
		return found
	}
	nodes := i.snapshot.nodes
	refusals := make([]*refusal, len(nodes))
	for from := 0; from < len(nodes); from += batch {
		i.framework.Parallelizer().Until(ctx, min(batch, len(nodes)-from), func(at int) {
			refusals[from+at] = i.filter(ctx, one, nodes[from+at])
		}, "")
		if !pause() {
			return found
		}
	}
	var open []fwk.NodeInfo
	for at, node := range nodes {
		if refusals[at] != nil {
			found.refused[node.Node().Name] = *refusals[at]
		} else {
			open = append(open, node)
			if some := choices(devices.MatchingGPUs(one.state, node.Node().Name), devices.GroupsOf(one.state, node.Node().Name)); some != nil {
				found.devices[node.Node().Name] = some
			}
		}
	}
	i.extend(ctx, pods[0], open, found.refused)
	if len(pods) > 1 && (usesVolumes(pods[0]) || len(pods[0].Spec.ResourceClaims) > 0) {
		i.measure(ctx, pods[:min(len(pods), roomAtMost)], open, &found, pause)
	}
	return found
}

// trial is a pod for which PreFilter has run.
type trial struct {
	pod   *v1.Pod
	state fwk.CycleState
	only  *fwk.PreFilterResult
	by    string
}

// gpuSet is a set of GPUs of a node. The zero value stands for all that have no taint.
type gpuSet struct {
	key    string // is equal for equal sets; "" for all GPUs
	names  []string
	groups []devices.Group
}

// setOf returns the set of these GPUs. If names is nil, it returns the set of all GPUs.
func setOf(names []string, groups []devices.Group) gpuSet {
	if names == nil {
		return gpuSet{}
	}
	return gpuSet{fmt.Sprint(names, groups), names, groups}
}

// message returns the set as the service gets it.
func (s gpuSet) message() *musterv1.InTreeDevices {
	message := &musterv1.InTreeDevices{Names: s.names}
	for _, group := range s.groups {
		members := &musterv1.InTreeGroup{Most: uint32(group.Most)}
		for _, name := range group.Names {
			members.Devices = append(members.Devices, uint32(slices.Index(s.names, name)))
		}
		message.Groups = append(message.Groups, members)
	}
	return message
}

// choices returns a set for each subrequest. It returns nil if there is one, with all GPUs: most pods have no other.
func choices(names [][]string, groups [][]devices.Group) (sets []gpuSet) {
	if groups == nil {
		groups = make([][]devices.Group, len(names))
	}
	for rank := range names {
		sets = append(sets, setOf(names[rank], groups[rank]))
	}
	if len(sets) == 1 && sets[0].key == "" {
		return nil
	}
	return sets
}

// prepare runs PreFilter. A pod that PreFilter refuses is refused on all nodes.
func (i *inspector) prepare(ctx context.Context, pod *v1.Pod) (*trial, *refusal) {
	state := framework.NewCycleState()
	only, status, by := i.framework.RunPreFilterPlugins(ctx, state, pod)
	if !status.IsSuccess() {
		return nil, refusalOf(status)
	}
	return &trial{pod: pod, state: state, only: only, by: strings.Join(by.UnsortedList(), ", ")}, nil
}

// filter returns the refusal for a node, or nil if no plugin refuses it.
func (i *inspector) filter(ctx context.Context, t *trial, node fwk.NodeInfo) *refusal {
	if !t.only.AllNodes() && !t.only.NodeNames.Has(node.Node().Name) {
		return &refusal{t.by, "node(s) didn't satisfy plugin " + t.by}
	}
	if status := i.framework.RunFilterPlugins(ctx, t.state, t.pod, node); !status.IsSuccess() {
		return refusalOf(status)
	}
	return nil
}

// extend calls the extenders for the nodes that no plugin refused.
func (i *inspector) extend(ctx context.Context, pod *v1.Pod, open []fwk.NodeInfo, refused map[string]refusal) {
	for _, extender := range i.extenders {
		if !extender.IsFilter() || !extender.IsInterested(pod) || len(open) == 0 {
			continue
		}
		left, failed, failedForGood, err := extender.Filter(pod, open)
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
		open = left
	}
}

// measure determines how many of the pods a node can hold together, for nodes that cannot hold all. Plugins check one
// pod at a time. So measure tries a pod with the volumes and the claims of several. It needs what they need together: as
// many attachments, different volumes, and different devices. It pauses before each trial: what users wrote may make one long.
func (i *inspector) measure(ctx context.Context, pods []*v1.Pod, open []fwk.NodeInfo, found *answer, pause func() bool) {
	trials := map[int]*trial{}
	fits := func(members int, node fwk.NodeInfo) bool {
		if members == 1 {
			return true
		}
		t, tried := trials[members]
		if !tried {
			t, _ = i.prepare(ctx, combined(pods[:members]))
			trials[members] = t
		}
		return t != nil && i.filter(ctx, t, node) == nil
	}
	for _, node := range open {
		if !pause() {
			return
		}
		if _, refused := found.refused[node.Node().Name]; refused || fits(len(pods), node) {
			continue
		}
		most, tooMany := 1, len(pods)
		for tooMany-most > 1 && pause() {
			if middle := (most + tooMany) / 2; fits(middle, node) {
				most = middle
			} else {
				tooMany = middle
			}
		}
		found.room[node.Node().Name] = most
	}
}

// combined returns one pod with the volumes and the claims of all. It refers to claims by their names, because these
// claims belong to pods with other names. A claim that several pods share appears once.
func combined(pods []*v1.Pod) *v1.Pod {
	all := pods[0].DeepCopy()
	all.Spec.Volumes, all.Spec.ResourceClaims = nil, nil
	seen := map[string]bool{}
	for _, pod := range pods {
		for at := range pod.Spec.ResourceClaims {
			each := pod.Spec.ResourceClaims[at]
			name, _, err := resourceclaim.Name(pod, &each)
			if err != nil || name == nil || seen[deviceClaim(*name)] {
				continue
			}
			seen[deviceClaim(*name)] = true
			all.Spec.ResourceClaims = append(all.Spec.ResourceClaims, v1.PodResourceClaim{Name: each.Name, ResourceClaimName: name})
		}
		for at := range pod.Spec.Volumes {
			each := pod.Spec.Volumes[at]
			if claim := claimName(pod, &each); claim != "" {
				if seen[claim] {
					continue
				}
				seen[claim] = true
				each.VolumeSource = v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}
			}
			all.Spec.Volumes = append(all.Spec.Volumes, each)
		}
	}
	return all
}

func refusalOf(status *fwk.Status) *refusal {
	return &refusal{status.Plugin(), strings.Join(status.Reasons(), ", ")}
}
