package intree

import (
	"context"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// roomAtMost bounds how many pods of a kind are tried together on a node: few nodes hold more GPU pods, and each
// step costs as many claims.
const roomAtMost = 16

// refusal is a plugin or extender, and its reason.
type refusal struct{ plugin, reason string }

// answer is what the plugins say of one kind.
type answer struct {
	everywhere *refusal
	refused    map[string]refusal
	room       map[string]int
	scores     map[string]uint32 // 1 to 100; 0 for other nodes
}

// batch is how many nodes are looked at before others may have a turn.
const batch = 128

// inspector runs the plugins on the snapshot.
type inspector struct {
	framework framework.Framework
	extenders []fwk.Extender
	snapshot  *snapshot
}

// inspect asks for a kind with these pods. It calls `pause` after each batch of nodes: others may have their turn
// there, and the snapshot may be renewed. Where `pause` says false the answer is not whole.
func (i *inspector) inspect(ctx context.Context, pods []*v1.Pod, pause func() bool) answer {
	found := answer{refused: map[string]refusal{}, room: map[string]int{}}
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
		}
	}
	i.extend(ctx, pods[0], open, found.refused)
	if len(pods) > 1 && usesVolumes(pods[0]) {
		i.measure(ctx, pods[:min(len(pods), roomAtMost)], open, &found, pause)
	}
	return found
}

// trial is a pod past PreFilter.
type trial struct {
	pod   *v1.Pod
	state fwk.CycleState
	only  *fwk.PreFilterResult
	by    string
}

// prepare runs PreFilter. What it refuses, it refuses whatever the node.
func (i *inspector) prepare(ctx context.Context, pod *v1.Pod) (*trial, *refusal) {
	state := framework.NewCycleState()
	only, status, by := i.framework.RunPreFilterPlugins(ctx, state, pod)
	if !status.IsSuccess() {
		return nil, refusalOf(status)
	}
	return &trial{pod: pod, state: state, only: only, by: strings.Join(by.UnsortedList(), ", ")}, nil
}

// filter says who refuses the node; nil if nobody does.
func (i *inspector) filter(ctx context.Context, t *trial, node fwk.NodeInfo) *refusal {
	if !t.only.AllNodes() && !t.only.NodeNames.Has(node.Node().Name) {
		return &refusal{t.by, "node(s) didn't satisfy plugin " + t.by}
	}
	if status := i.framework.RunFilterPlugins(ctx, t.state, t.pod, node); !status.IsSuccess() {
		return refusalOf(status)
	}
	return nil
}

// extend asks the extenders about the nodes that the plugins left open.
func (i *inspector) extend(ctx context.Context, pod *v1.Pod, open []fwk.NodeInfo, refused map[string]refusal) {
	for _, extender := range i.extenders {
		if !extender.IsFilter() || !extender.IsInterested(pod) || len(open) == 0 {
			continue
		}
		left, failed, failedForGood, err := extender.Filter(pod, open)
		if err != nil {
			// In the scheduling cycle it is asked again, and may say more.
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

// measure finds how many of the pods a node can hold together, for nodes that can't hold all. Plugins look at
// one pod at a time; so a pod with the volumes of several is tried. It needs what they need together: as many
// attachments, and different volumes.
func (i *inspector) measure(ctx context.Context, pods []*v1.Pod, open []fwk.NodeInfo, found *answer, pause func() bool) {
	trials := map[int]*trial{}
	fits := func(members int, node fwk.NodeInfo) bool {
		if members == 1 {
			return true
		}
		t, tried := trials[members]
		if !tried {
			t, _ = i.prepare(ctx, together(pods[:members]))
			trials[members] = t
		}
		return t != nil && i.filter(ctx, t, node) == nil
	}
	for at, node := range open {
		if at%(batch/roomAtMost) == 0 && !pause() {
			return
		}
		if _, refused := found.refused[node.Node().Name]; refused || fits(len(pods), node) {
			continue
		}
		most, tooMany := 1, len(pods)
		for tooMany-most > 1 {
			if middle := (most + tooMany) / 2; fits(middle, node) {
				most = middle
			} else {
				tooMany = middle
			}
		}
		found.room[node.Node().Name] = most
	}
}

// together is one pod with the volumes of all. Ephemeral volumes become claims by name: they belong to pods of
// other names. A claim that several share is there once.
func together(pods []*v1.Pod) *v1.Pod {
	all := pods[0].DeepCopy()
	all.Spec.Volumes, all.Spec.ResourceClaims = nil, nil
	seen := map[string]bool{}
	for _, pod := range pods {
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
