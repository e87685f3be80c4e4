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

// preferencePlugins lists the plugins that score nodes by a pod's preferences. Plugins that score by free resources are
// left out, because the planner's objective decides about free resources.
var preferencePlugins = sets.New(
	names.NodeAffinity, names.InterPodAffinity, names.PodTopologySpread, names.TaintToleration, names.ImageLocality,
)

// scoreFilters lists filter plugins that check each node on its own. kube-scheduler scores and normalises only over the
// nodes that pass the filters.
var scoreFilters = []config.Plugin{{Name: names.NodeUnschedulable}, {Name: names.TaintToleration}, {Name: names.NodeAffinity}}

// maxScored bounds how many kinds of one question are scored separately, because scoring takes long. Later kinds get
// the scores of the first kind with the same preferences.
const maxScored = 16

// maxCachedScores bounds how many scores of one namespace are cached for other questions of the same round. A round lasts
// at most a second, which is enough for some dozens of scores in all.
const maxCachedScores = 64

// scoringPlugins returns the plugins of a profile that score by preferences, with their weights.
func scoringPlugins(profile *config.Plugins) (plugins []config.Plugin) {
	for _, plugin := range profile.Score.Enabled {
		if preferencePlugins.Has(plugin.Name) {
			plugins = append(plugins, plugin)
		}
	}
	return plugins
}

// hasPreferences returns whether the pod has preferences between nodes.
func hasPreferences(pod *v1.Pod) bool {
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
	fresh     bool                                    // the snapshot was taken in this round
	cache     map[string]map[string]map[string]uint32 // scores of this round, by namespace and then by labels and preferences, if no node is refused
}

// beginRound starts a round: the snapshot and the cached scores are out of date.
func (s *scorer) beginRound() {
	s.fresh = false
	clear(s.cache)
}

// scores holds the scores of one question.
type scores struct {
	scorer        *scorer
	scoredCount   int
	byPreferences map[string]map[string]uint32
}

// scoresOf returns the scores of a pod for the nodes that are not refused: node → 1 to 100. Other nodes have 0. It returns
// nil for a pod without preferences, and if all nodes have the same score.
func (s *scores) scoresOf(ctx context.Context, pod *v1.Pod, refused map[string]refusal) map[string]uint32 {
	if s.scorer == nil || !hasPreferences(pod) {
		return nil
	}
	text, err := json.Marshal(preferencesOf(pod))
	if err != nil {
		return nil
	}
	firstScores, ok := s.byPreferences[string(text)]
	if ok && s.scoredCount >= maxScored {
		return firstScores
	}
	key := ""
	if text, err := json.Marshal([]any{pod.Labels, string(text)}); err == nil && len(refused) == 0 {
		key = string(text)
	}
	namespaceCache := s.scorer.cache[pod.Namespace]
	nodeScores, isCached := namespaceCache[key]
	if !isCached {
		if nodeScores, err = s.scorer.score(ctx, pod, refused); err != nil {
			// Preferences never refuse a node, so the pods are planned without them.
			klog.FromContext(ctx).V(2).Info("No scores", "pod", klog.KObj(pod), "error", err)
			return nil
		}
		s.scoredCount++
		if key != "" && len(namespaceCache) < maxCachedScores {
			if namespaceCache == nil {
				namespaceCache = map[string]map[string]uint32{}
				s.scorer.cache[pod.Namespace] = namespaceCache
			}
			namespaceCache[key] = nodeScores
		}
	}
	if !ok {
		s.byPreferences[string(text)] = nodeScores
	}
	return nodeScores
}

// score returns the scores of a pod for the nodes that pass the filters.
func (s *scorer) score(ctx context.Context, pod *v1.Pod, refused map[string]refusal) (map[string]uint32, error) {
	if !s.fresh {
		if err := s.snapshot.refresh(); err != nil {
			return nil, err
		}
		s.fresh = true
	}
	state := framework.NewCycleState()
	passing, err := s.nodesPassing(ctx, state, pod, refused)
	if err != nil || len(passing) < 2 {
		return nil, err
	}
	s.snapshot.setImages(imagesOf(pod))
	if status := s.framework.RunPreScorePlugins(ctx, state, pod, passing); !status.IsSuccess() {
		return nil, status.AsError()
	}
	pluginScores, status := s.framework.RunScorePlugins(ctx, state, pod, passing)
	if !status.IsSuccess() {
		return nil, status.AsError()
	}
	return weightedMean(pluginScores, s.weights), nil
}

// nodesPassing returns the nodes that pass the filters.
func (s *scorer) nodesPassing(ctx context.Context, state fwk.CycleState, pod *v1.Pod, refused map[string]refusal) ([]fwk.NodeInfo, error) {
	only, status, _ := s.framework.RunPreFilterPlugins(ctx, state, pod)
	if !status.IsSuccess() {
		return nil, status.AsError()
	}
	admits := make([]bool, len(s.snapshot.nodes))
	s.framework.Parallelizer().Until(ctx, len(admits), func(index int) {
		node := s.snapshot.nodes[index]
		if _, isRefused := refused[node.Node().Name]; isRefused || !only.AllNodes() && !only.NodeNames.Has(node.Node().Name) {
			return
		}
		admits[index] = s.framework.RunFilterPlugins(ctx, state, pod, node).IsSuccess()
	}, "")
	var passing []fwk.NodeInfo
	for index, node := range s.snapshot.nodes {
		if admits[index] {
			passing = append(passing, node)
		}
	}
	return passing, ctx.Err()
}

// weightedMean returns the weighted mean of the plugins' scores, 1 to 100, without the nodes that have 0. A plugin
// that gives all nodes the same score does not count.
func weightedMean(pluginScores []fwk.NodePluginScores, weights map[string]int64) map[string]uint32 {
	var differing []int
	var sum int64
	for index, plugin := range pluginScores[0].Scores {
		for _, node := range pluginScores {
			if node.Scores[index].Score != plugin.Score {
				differing = append(differing, index)
				sum += weights[plugin.Name]
				break
			}
		}
	}
	if len(differing) == 0 {
		return nil
	}
	mean := map[string]uint32{}
	for _, node := range pluginScores {
		var total int64
		for _, index := range differing {
			total += node.Scores[index].Score
		}
		if score := (total + sum/2) / sum; score > 0 {
			mean[node.Name] = uint32(score)
		}
	}
	return mean
}
