// Package pluginanswers compares the answers that the service's tests expect of kube-scheduler's plugins with these
// plugins.
package pluginanswers

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/interpodaffinity"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodeports"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/podtopologyspread"
	plugintesting "k8s.io/kubernetes/pkg/scheduler/framework/plugins/testing"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

const file = "../../../tests/gangs/data/plugin-answers.jsonl"

type cluster struct {
	Nodes      []*v1.Node
	Pods       []*v1.Pod
	Namespaces []*v1.Namespace
	Pod        *v1.Pod
	// Open lists the nodes that each plugin leaves open to the pod.
	Open map[string][]string
}

// TestAnswers fails if a plugin's answer differs from the file. With UPDATE=1 in the environment it writes the
// answers into the file.
func TestAnswers(t *testing.T) {
	metrics.Register()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var updated bytes.Buffer
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	for number, line := range lines {
		var read cluster
		if err := json.Unmarshal(line, &read); err != nil {
			t.Fatal(err)
		}
		open := askPlugins(t, read)
		for plugin, nodes := range open {
			if os.Getenv("UPDATE") == "" && !slices.Equal(read.Open[plugin], nodes) && !isChanged(plugin, read.Pod) {
				t.Errorf("case %d: %s leaves open %v; the file says %v", number, plugin, nodes, read.Open[plugin])
			}
		}
		with := map[string]json.RawMessage{}
		if err := json.Unmarshal(line, &with); err != nil {
			t.Fatal(err)
		}
		if with["Open"], err = json.Marshal(open); err != nil {
			t.Fatal(err)
		}
		written, err := json.Marshal(with)
		if err != nil {
			t.Fatal(err)
		}
		updated.Write(append(written, '\n'))
	}
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(file, updated.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func askPlugins(t *testing.T, c cluster) map[string][]string {
	features := feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
	snapshot := cache.NewSnapshot(c.Pods, c.Nodes)
	var namespaces []runtime.Object
	for _, namespace := range c.Namespaces {
		namespaces = append(namespaces, namespace)
	}
	open := map[string][]string{}
	for _, tested := range []struct {
		name string
		make frameworkruntime.PluginFactory
		args runtime.Object
	}{
		{
			interpodaffinity.Name,
			frameworkruntime.FactoryAdapter(features, interpodaffinity.New),
			&config.InterPodAffinityArgs{HardPodAffinityWeight: 1},
		},
		{
			podtopologyspread.Name,
			frameworkruntime.FactoryAdapter(features, podtopologyspread.New),
			&config.PodTopologySpreadArgs{DefaultingType: config.ListDefaulting},
		},
		{nodeports.Name, frameworkruntime.FactoryAdapter(features, nodeports.New), nil},
	} {
		plugin := plugintesting.SetupPluginWithInformers(t.Context(), t, tested.make, tested.args, snapshot, namespaces)
		open[tested.name] = openTo(t, c.Pod, plugin, snapshot)
	}
	return open
}

// openTo returns the names of the nodes that a plugin leaves open to a pod, sorted.
func openTo(t *testing.T, pod *v1.Pod, plugin fwk.Plugin, snapshot *cache.Snapshot) []string {
	state := framework.NewCycleState()
	nodes, err := snapshot.NodeInfos().List()
	if err != nil {
		t.Fatal(err)
	}
	_, before := plugin.(fwk.PreFilterPlugin).PreFilter(t.Context(), state, pod, nodes)
	if !before.IsSkip() && !before.IsSuccess() {
		t.Fatal(before.AsError())
	}
	open := []string{}
	for _, node := range nodes {
		if before.IsSkip() || plugin.(fwk.FilterPlugin).Filter(t.Context(), state, pod, node).IsSuccess() {
			open = append(open, node.Node().Name)
		}
	}
	slices.Sort(open)
	return open
}
