package intree

import (
	"context"
	"encoding/json"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
)

// preferring lists the plugins that score nodes by a pod's preferences. Plugins that score by free resources are left
// out, because the planner's objective covers that.
var preferring = sets.New(
	names.NodeAffinity, names.InterPodAffinity, names.PodTopologySpread, names.TaintToleration, names.ImageLocality,
)

// excluding lists filter plugins that check each node on its own. kube-scheduler scores and normalises only over the
// nodes that pass the filters.
var excluding = []config.Plugin{{Name: names.NodeUnschedulable}, {Name: names.TaintToleration}, {Name: names.NodeAffinity}}

// scoredAtMost bounds how many kinds of one question are scored separately. Later kinds get the scores of the first
// kind with the same preferences.
const scoredAtMost = 16

// keptAtMost bounds how many scores of one namespace are kept for other questions of the same round. A round lasts a
// second at most, so it has time for some dozens of them in all.
const keptAtMost = 64

// scored returns the plugins of a profile that score by preferences, with their weights.
func scored(profile *config.Plugins) (found []config.Plugin) {
	for _, plugin := range profile.Score.Enabled {
		if preferring.Has(plugin.Name) {
			found = append(found, plugin)
		}
	}
	return found
}

// prefers returns whether the pod has preferences between nodes.
func prefers(pod *v1.Pod) bool {
	if affinity := pod.Spec.Affinity; affinity != nil {
		if near := affinity.NodeAffinity; near != nil && len(near.PreferredDuringSchedulingIgnoredDuringExecution) > 0 {
			return true
		}
		if near := affinity.PodAffinity; near != nil && len(near.PreferredDuringSchedulingIgnoredDuringExecution) > 0 {
			return true
		}
		if apart := affinity.PodAntiAffinity; apart != nil && len(apart.PreferredDuringSchedulingIgnoredDuringExecution) > 0 {
			return true
		}
	}
	for _, constraint := range pod.Spec.TopologySpreadConstraints {
		if constraint.WhenUnsatisfiable == v1.ScheduleAnyway {
			return true
		}
	}
	return false
}

// scorer runs the Score plugins on a snapshot with all bound pods. It is used only on Run's goroutine.
type scorer struct {
	framework framework.Framework
	snapshot  *snapshot
	weights   map[string]int64
	fresh     bool // the snapshot was taken in this round
	renew     func() error
	kept      map[string]map[string]map[string]uint32 // scores of this round, by namespace and then by labels and preferences, if no node is refused
}

// begin starts a round: the snapshot and the kept scores are out of date.
func (s *scorer) begin() {
	s.fresh = false
	clear(s.kept)
}

// scores holds the scores of one question.
type scores struct {
	scorer *scorer
	made   int
	first  map[string]map[string]uint32 // by preferences
}

// of returns the scores of a pod for the nodes that are not refused: node → 1 to 100. Other nodes have 0. It returns
// nil for a pod without preferences, and if all nodes have the same score.
func (s *scores) of(ctx context.Context, pod *v1.Pod, refused map[string]refusal) map[string]uint32 {
	if s.scorer == nil || !prefers(pod) {
		return nil
	}
	text, err := json.Marshal(preferences(pod))
	if err != nil {
		return nil
	}
	first, known := s.first[string(text)]
	if known && s.made >= scoredAtMost {
		return first
	}
	alike := ""
	if text, err := json.Marshal([]any{pod.Labels, string(text)}); err == nil && len(refused) == 0 {
		alike = string(text)
	}
	keptOf := s.scorer.kept[pod.Namespace]
	found, kept := keptOf[alike]
	if !kept {
		if found, err = s.scorer.score(ctx, pod, refused); err != nil {
			// Preferences never refuse a node, so the pods are planned without them.
			klog.FromContext(ctx).V(2).Info("No scores", "pod", klog.KObj(pod), "error", err)
			return nil
		}
		s.made++
		if alike != "" && len(keptOf) < keptAtMost {
			if keptOf == nil {
				keptOf = map[string]map[string]uint32{}
				s.scorer.kept[pod.Namespace] = keptOf
			}
			keptOf[alike] = found
		}
	}
	if !known {
		s.first[string(text)] = found
	}
	return found
}

func (s *scorer) score(ctx context.Context, pod *v1.Pod, refused map[string]refusal) (map[string]uint32, error) {
	if !s.fresh {
		if err := s.renew(); err != nil {
			return nil, err
		}
		s.fresh = true
	}
	state := framework.NewCycleState()
	open, err := s.open(ctx, state, pod, refused)
	if err != nil || len(open) < 2 {
		return nil, err
	}
	s.snapshot.setImages(images(pod))
	if status := s.framework.RunPreScorePlugins(ctx, state, pod, open); !status.IsSuccess() {
		return nil, status.AsError()
	}
	found, status := s.framework.RunScorePlugins(ctx, state, pod, open)
	if !status.IsSuccess() {
		return nil, status.AsError()
	}
	return weightedMean(found, s.weights), nil
}

// open returns the nodes that pass the filters.
func (s *scorer) open(ctx context.Context, state fwk.CycleState, pod *v1.Pod, refused map[string]refusal) ([]fwk.NodeInfo, error) {
	only, status, _ := s.framework.RunPreFilterPlugins(ctx, state, pod)
	if !status.IsSuccess() {
		return nil, status.AsError()
	}
	admits := make([]bool, len(s.snapshot.nodes))
	s.framework.Parallelizer().Until(ctx, len(admits), func(at int) {
		node := s.snapshot.nodes[at]
		if _, out := refused[node.Node().Name]; out || !only.AllNodes() && !only.NodeNames.Has(node.Node().Name) {
			return
		}
		admits[at] = s.framework.RunFilterPlugins(ctx, state, pod, node).IsSuccess()
	}, "")
	var open []fwk.NodeInfo
	for at, node := range s.snapshot.nodes {
		if admits[at] {
			open = append(open, node)
		}
	}
	return open, ctx.Err()
}

// weightedMean returns the weighted mean of the plugins' scores, 1 to 100, without the nodes that have 0. A plugin
// that gives all nodes the same score does not count.
func weightedMean(found []fwk.NodePluginScores, weights map[string]int64) map[string]uint32 {
	var differing []int
	var sum int64
	for at, plugin := range found[0].Scores {
		for _, node := range found {
			if node.Scores[at].Score != plugin.Score {
				differing = append(differing, at)
				sum += weights[plugin.Name]
				break
			}
		}
	}
	if len(differing) == 0 {
		return nil
	}
	mean := map[string]uint32{}
	for _, node := range found {
		var total int64
		for _, at := range differing {
			total += node.Scores[at].Score
		}
		if score := (total + sum/2) / sum; score > 0 {
			mean[node.Name] = uint32(score)
		}
	}
	return mean
}
