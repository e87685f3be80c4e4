package intree

import (
	"context"
	"fmt"
	"runtime"

	"k8s.io/apimachinery/pkg/util/sets"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"muster.dev/shim/internal/devices"
)

// modelledPlugins lists the plugins that the planner models. The planner checks their rules itself, for several pods
// together.
var modelledPlugins = sets.New(
	names.NodeName, names.NodeUnschedulable, names.TaintToleration, names.NodeAffinity, names.NodePorts,
	names.NodeResourcesFit, names.PodTopologySpread, names.InterPodAffinity,
)

// profileName labels the metrics of this instance, to keep them apart from those of the real profiles.
const profileName = "muster-in-tree-answers"

// coresShare limits an inspection to one core in coresShare, but at least one. The scheduling thread and its own
// filters need the others.
const coresShare = 4

// registryOf returns the plugins that can run here: the in-tree plugins, and the plugin for claims of devices. gpus are
// the resources that count GPUs.
func registryOf(gpus []string) frameworkruntime.Registry {
	registry := plugins.NewInTreeRegistry()
	registry[devices.Name] = devices.NewAdvanceCheck(gpus)
	return registry
}

// filterPlugins returns the filter plugins of a profile that can run here and that the planner does not model, in the
// profile's order.
func (a *Asker) filterPlugins(profile *config.Plugins) (filterPlugins []config.Plugin) {
	for _, plugin := range profile.Filter.Enabled {
		if _, ok := a.registry[plugin.Name]; ok && !modelledPlugins.Has(plugin.Name) {
			filterPlugins = append(filterPlugins, config.Plugin{Name: plugin.Name})
		}
	}
	return filterPlugins
}

// filterSet returns a plugin set that runs these plugins in PreFilter and Filter. Each of them has a PreFilter.
func filterSet(plugins []config.Plugin) *config.Plugins {
	set := config.PluginSet{Enabled: plugins}
	return &config.Plugins{PreFilter: set, Filter: set}
}

// scoreSet returns a plugin set that runs these plugins in PreScore and Score, and the filters that must run before.
func scoreSet(scoring []config.Plugin) *config.Plugins {
	preScore := config.PluginSet{}
	for _, plugin := range scoring {
		if plugin.Name != names.ImageLocality { // ImageLocality has no PreScore
			preScore.Enabled = append(preScore.Enabled, config.Plugin{Name: plugin.Name})
		}
	}
	return &config.Plugins{
		PreFilter: config.PluginSet{Enabled: []config.Plugin{{Name: names.NodeAffinity}}},
		Filter:    config.PluginSet{Enabled: scoreFilters},
		PreScore:  preScore,
		Score:     config.PluginSet{Enabled: scoring},
	}
}

// newFramework returns a framework instance with only these plugins. It shares the informers, clients and managers of
// the handle, and reads the given snapshot. A framework also needs a queue sort and a bind plugin
// (framework/runtime/framework.go, NewFramework); these are never called.
func (a *Asker) newFramework(ctx context.Context, snapshot fwk.SharedLister, enabled *config.Plugins) (framework.Framework, error) {
	handle := a.handle
	args, err := defaultArgs()
	if err != nil {
		return nil, err
	}
	enabled.QueueSort = config.PluginSet{Enabled: []config.Plugin{{Name: names.PrioritySort}}}
	enabled.Bind = config.PluginSet{Enabled: []config.Plugin{{Name: names.DefaultBinder}}}
	profile := &config.KubeSchedulerProfile{SchedulerName: profileName, PluginConfig: args, Plugins: enabled}
	return frameworkruntime.NewFramework(ctx, a.registry, profile,
		frameworkruntime.WithClientSet(handle.ClientSet()),
		frameworkruntime.WithKubeConfig(handle.KubeConfig()),
		frameworkruntime.WithEventRecorder(handle.EventRecorder()),
		frameworkruntime.WithInformerFactory(handle.SharedInformerFactory()),
		frameworkruntime.WithSharedDRAManager(handle.SharedDRAManager()),
		frameworkruntime.WithSharedCSIManager(handle.SharedCSIManager()),
		frameworkruntime.WithSnapshotSharedLister(snapshot),
		frameworkruntime.WithParallelism(max(1, runtime.GOMAXPROCS(0)/coresShare)),
	)
}

// defaultArgs returns kube-scheduler's default plugin arguments, but without default spread constraints. So a pod's
// scores depend only on the pod's own constraints.
func defaultArgs() ([]config.PluginConfig, error) {
	var versioned configv1.KubeSchedulerConfiguration
	scheme.Scheme.Default(&versioned)
	var defaults config.KubeSchedulerConfiguration
	if err := scheme.Scheme.Convert(&versioned, &defaults, nil); err != nil {
		return nil, fmt.Errorf("default plugin arguments: %w", err)
	}
	pluginArgs := defaults.Profiles[0].PluginConfig
	for _, plugin := range pluginArgs {
		if args, ok := plugin.Args.(*config.PodTopologySpreadArgs); ok {
			args.DefaultingType, args.DefaultConstraints = config.ListDefaulting, nil
		}
	}
	return pluginArgs, nil
}
