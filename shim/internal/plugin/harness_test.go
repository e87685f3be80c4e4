package plugin

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/profile"

	"muster.dev/shim/internal/devices"
	"muster.dev/shim/internal/musterv1"
)

func TestMain(m *testing.M) {
	// The same as on the command line, see testdata/scheduler-config.yaml.
	if err := utilfeature.DefaultMutableFeatureGate.Set("NominatedNodeNameForExpectation=false"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// harness runs the real scheduler, with its queue and framework and the example's profile, on a fake API and a fake
// service.
type harness struct {
	t       testing.TB
	ctx     context.Context
	client  kubernetes.Interface
	fake    *fake.Clientset // the same as client, unless there is a real API server
	service *fakeService
	sched   *scheduler.Scheduler
	plugin  *Plugin
	devices *devices.Plugin
	bound   chan *v1.Binding
	// bind answers a Binding of our plugin. If it is nil, the Binding is written.
	bind func(*v1.Binding) error
	// later is a plugin that runs after ours at Filter, Permit and PreBind.
	later *laterPlugin
	// plain turns off default topology spread, so that foreign pods are batched.
	plain bool
}

func newHarness(t testing.TB, nodes ...*v1.Node) *harness {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	api := fake.NewClientset()
	h := &harness{t: t, ctx: ctx, client: api, fake: api, service: newFakeService(t), bound: make(chan *v1.Binding, 100)}
	for _, node := range nodes {
		h.add(node)
	}
	return h
}

func (h *harness) add(objects ...runtime.Object) {
	h.t.Helper()
	for _, object := range objects {
		if err := h.fake.Tracker().Add(object); err != nil {
			h.t.Fatal(err)
		}
	}
}

// run starts the scheduler. Tests that wait for a timeout set a short one.
func (h *harness) run(args string) {
	h.t.Helper()
	cfg, err := options.LoadConfigFromFile(klog.FromContext(h.ctx), "../../testdata/scheduler-config.yaml")
	if err != nil {
		h.t.Fatal(err)
	}
	p := &cfg.Profiles[0]
	for i := range p.PluginConfig {
		if p.PluginConfig[i].Name == Name {
			p.PluginConfig[i].Args = &runtime.Unknown{ContentType: runtime.ContentTypeYAML, Raw: []byte("serviceAddress: unix://" + h.service.socket + "\n" + args)}
		}
	}
	registry := frameworkruntime.Registry{}
	if h.later != nil {
		registry["Later"] = func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return h.later, nil }
		p.Plugins.Filter.Enabled = append(p.Plugins.Filter.Enabled, config.Plugin{Name: "Later"})
		p.Plugins.Permit.Enabled = append(p.Plugins.Permit.Enabled, config.Plugin{Name: "Later"})
		p.Plugins.PreBind.Enabled = append(p.Plugins.PreBind.Enabled, config.Plugin{Name: "Later"})
	}
	if h.plain {
		for i := range p.PluginConfig {
			if a, ok := p.PluginConfig[i].Args.(*config.PodTopologySpreadArgs); ok {
				a.DefaultingType, a.DefaultConstraints = config.ListDefaulting, nil
			}
		}
	}
	h.service.start()
	send := h.send
	if h.fake == nil {
		send = nil // the plugin's own
	}
	inner := newFactory(send)
	factory := func(ctx context.Context, obj runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		plugin, err := inner(ctx, obj, handle)
		if err == nil {
			h.plugin = plugin.(*Plugin)
		}
		return plugin, err
	}
	registry[Name] = factory
	planned := devices.NewFactory(MemberOf, PlannedForOthers)
	registry[devices.Name] = func(ctx context.Context, obj runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		plugin, err := planned(ctx, obj, handle)
		if err == nil {
			h.devices = plugin.(*devices.Plugin)
		}
		return plugin, err
	}
	informers := scheduler.NewInformerFactory(h.client, 0, nil)
	recorder := func(string) events.EventRecorderLogger { return events.NewFakeRecorder(1000) }
	h.sched, err = scheduler.New(h.ctx, h.client, informers, nil, profile.RecorderFactory(recorder),
		scheduler.WithProfiles([]config.KubeSchedulerProfile{*p}...),
		scheduler.WithFrameworkOutOfTreeRegistry(registry),
		scheduler.WithPodInitialBackoffSeconds(1), scheduler.WithPodMaxBackoffSeconds(1))
	if err != nil {
		h.t.Fatal(err)
	}
	informers.Start(h.ctx.Done())
	informers.WaitForCacheSync(h.ctx.Done())
	if err := h.sched.WaitForHandlersSync(h.ctx); err != nil {
		h.t.Fatal(err)
	}
	go h.sched.Run(h.ctx)
	next(h.t, "Watch", h.service.watches)
}

func (h *harness) send(_ context.Context, _ fwk.Handle, b *v1.Binding) error {
	if h.bind != nil {
		if err := h.bind(b); err != nil {
			return err
		}
	}
	pod, err := h.client.CoreV1().Pods(b.Namespace).Get(h.ctx, b.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	pod = pod.DeepCopy()
	pod.Spec.NodeName = b.Target.Name
	pod.Annotations = b.Annotations
	if _, err := h.client.CoreV1().Pods(b.Namespace).Update(h.ctx, pod, metav1.UpdateOptions{}); err != nil {
		return err
	}
	h.bound <- b
	return nil
}

func node(name string, cpu string) *v1.Node {
	resources := v1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse("64Gi"), "pods": resource.MustParse("100"), "nvidia.com/gpu": resource.MustParse("8")}
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1.NodeStatus{Capacity: resources, Allocatable: resources}}
}

// pods creates members of a gang. Their UIDs are "uid-" and the name. gpus is a number, "gang" for a pod without GPUs
// that names a gang, or "" for a foreign pod.
func (h *harness) pods(gpus string, names ...string) {
	h.t.Helper()
	h.podsWith(func(*v1.Pod) {}, gpus, names...)
}

// podsWith does the same as pods, with a change to each pod.
func (h *harness) podsWith(change func(*v1.Pod), gpus string, names ...string) {
	h.t.Helper()
	for _, name := range names {
		pod := &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name), ResourceVersion: "5"},
			Spec: v1.PodSpec{SchedulerName: "muster", Containers: []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{
				Requests: v1.ResourceList{"cpu": resource.MustParse("1")}, Limits: v1.ResourceList{},
			}}}},
		}
		switch gpus {
		case "":
		case "gang":
			pod.Annotations = map[string]string{"gpu.topology/group": "g"}
		default:
			pod.Spec.Containers[0].Resources.Limits["nvidia.com/gpu"] = resource.MustParse(gpus)
			pod.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"] = resource.MustParse(gpus)
		}
		if h.fake == nil {
			pod.UID, pod.ResourceVersion = "", ""
			pod.Spec.Containers[0].Image = "none"
		}
		change(pod)
		if _, err := h.client.CoreV1().Pods(pod.Namespace).Create(h.ctx, pod, metav1.CreateOptions{}); err != nil {
			h.t.Fatal(err)
		}
	}
}

// addPods creates the pods of a verdict before run. They name a gang and use nothing. It is faster than pods.
func (h *harness) addPods(v *musterv1.Verdict) {
	h.t.Helper()
	for i, name := range v.Names {
		h.add(&v1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: v.Namespace, Name: name, UID: types.UID(v.Uids[i]), ResourceVersion: "5",
				Annotations: map[string]string{"gpu.topology/group": v.Gang},
			},
			Spec: v1.PodSpec{SchedulerName: "muster"},
		})
	}
}

func verdict(outcome musterv1.Outcome, generation uint64, names ...string) *musterv1.Verdict {
	v := &musterv1.Verdict{Gang: "ns/g", Generation: generation, Outcome: outcome, Namespace: "ns", Names: names, Required: uint32(len(names))}
	for _, name := range names {
		v.Uids = append(v.Uids, "uid-"+name)
	}
	return v
}

func members(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("m%d", i))
	}
	return names
}

// until polls until the condition is true, for state that the scheduler does not announce.
func (h *harness) until(description string, isTrue func() bool) {
	h.t.Helper()
	err := wait.PollUntilContextTimeout(h.ctx, 5*time.Millisecond, 5*time.Minute, true, func(context.Context) (bool, error) { return isTrue(), nil })
	if err != nil {
		h.t.Fatalf("never: %s", description)
	}
}

// waiting counts the pods held in Permit.
func (h *harness) waiting() (count int) {
	h.plugin.handle.IterateOverWaitingPods(func(fwk.WaitingPod) { count++ })
	return count
}

// gated returns whether PreEnqueue holds all of these pods.
func (h *harness) gated(names ...string) bool {
	for _, name := range names {
		info, ok := h.queued(name)
		if !ok || info.GatingPlugin != Name {
			return false
		}
	}
	return true
}

// runPlanned starts the scheduler, creates members with one GPU each, and sends the first plan for them.
func (h *harness) runPlanned(names ...string) {
	h.t.Helper()
	h.run("")
	h.pods("1", names...)
	h.service.push(verdict(plannedOutcome, 1, names...))
}

// place waits until these members are gated, and sends the first plan for them.
func (h *harness) place(names ...string) {
	h.t.Helper()
	h.until("gated", func() bool { return h.gated(names...) })
	h.service.push(verdict(plannedOutcome, 1, names...))
}

// waitForBindings waits for this many Bindings.
func (h *harness) waitForBindings(count int) {
	h.t.Helper()
	for range count {
		next(h.t, "binding", h.bound)
	}
}

// condition returns the message of a pod's PodScheduled condition.
func (h *harness) condition(name string) string {
	pod, err := h.client.CoreV1().Pods("ns").Get(h.ctx, name, metav1.GetOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == v1.PodScheduled {
			return c.Message
		}
	}
	return ""
}

func TestOrderOfPlugins(t *testing.T) {
	h := newHarness(t, node("n", "8"))
	h.run("")
	f := h.sched.Profiles["muster"]
	plugins := f.ListPlugins()
	for point, set := range map[string]config.PluginSet{
		"preFilter": plugins.PreFilter, "filter": plugins.Filter, "postFilter": plugins.PostFilter, "bind": plugins.Bind,
	} {
		if len(set.Enabled) < 2 && point != "filter" || set.Enabled[0].Name != Name {
			t.Errorf("%s: %v", point, set.Enabled)
		}
	}
	var ours, otherPods int32
	for _, plugin := range plugins.Score.Enabled {
		if plugin.Name == Name {
			ours = plugin.Weight
		} else {
			otherPods += plugin.Weight
		}
	}
	if ours <= otherPods*int32(fwk.MaxScore) {
		t.Errorf("weight %d against %d of the others", ours, otherPods)
	}
	if !strings.Contains(fmt.Sprint(plugins.PreEnqueue), Name) || !strings.Contains(fmt.Sprint(plugins.Reserve), Name) || !strings.Contains(fmt.Sprint(plugins.Permit), Name) {
		t.Error("multiPoint left some points out")
	}
}

// foreignBound returns whether DefaultBinder has bound a pod. It never binds pods of ours.
func (h *harness) foreignBound() bool {
	return slices.ContainsFunc(h.fake.Actions(), func(a clienttesting.Action) bool { return a.Matches("create", "pods/binding") })
}
