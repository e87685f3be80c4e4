// Package plugin is the framework plugin of Muster's kube-scheduler. It makes no decisions. It holds pods until the
// service has a verdict for their gang, and applies the verdict in the framework. It ensures that all members bind or
// none.
package plugin

import (
	"context"
	"fmt"
	"reflect"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	fwk "k8s.io/kube-scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"muster.dev/shim/internal/devices"
	"muster.dev/shim/internal/gangs"
	"muster.dev/shim/internal/musterv1"
)

// Name is the plugin's name in profiles and in pluginConfig.
const Name = "Muster"

// Plugin is the instance in one profile. All instances share the core.
type Plugin struct {
	*core
	handle fwk.Handle
}

var (
	_ fwk.QueueSortPlugin   = &Plugin{}
	_ fwk.PreEnqueuePlugin  = &Plugin{}
	_ fwk.EnqueueExtensions = &Plugin{}
	_ fwk.SignPlugin        = &Plugin{}
	_ fwk.PreFilterPlugin   = &Plugin{}
	_ fwk.FilterPlugin      = &Plugin{}
	_ fwk.PostFilterPlugin  = &Plugin{}
	_ fwk.PreScorePlugin    = &Plugin{}
	_ fwk.ScorePlugin       = &Plugin{}
	_ fwk.ReservePlugin     = &Plugin{}
	_ fwk.PermitPlugin      = &Plugin{}
	_ fwk.BindPlugin        = &Plugin{}
)

// NewFactory returns the plugin's constructor. kube-scheduler calls it once per profile
// (framework/runtime/framework.go, NewFramework). The queue, the nominator and the waiting pods are the same for all
// profiles. So only the first call creates the core. The constructor fails if the API server does not serve a resource
// for which the scheduler would wait, or if kube-scheduler would schedule PodGroups itself.
func NewFactory() frameworkruntime.PluginFactory {
	create := newFactory(nil)
	var once sync.Once
	return func(ctx context.Context, obj runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		if err := checkGangs(utilfeature.DefaultFeatureGate.Enabled); err != nil {
			return nil, err
		}
		if err := checkServed(ctx, handle.ClientSet().Discovery(), utilfeature.DefaultFeatureGate.Enabled); err != nil {
			return nil, err
		}
		created, err := create(ctx, obj, handle)
		if err == nil {
			once.Do(func() { go created.(*Plugin).stopInOrder(ctx) })
		}
		return created, err
	}
}

// newFactory returns a constructor whose core sends Bindings with send. If send is nil, it uses sendBinding.
func newFactory(send sender) frameworkruntime.PluginFactory {
	var (
		mu     sync.Mutex
		shared *core
	)
	return func(ctx context.Context, obj runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		args, err := decodeArgs(obj)
		if err != nil {
			return nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		if shared == nil {
			if shared, err = newCore(ctx, args, handle, send); err != nil {
				return nil, err
			}
			go shared.run(ctx)
		} else if !reflect.DeepEqual(shared.args, args) {
			return nil, fmt.Errorf("%s args differ between profiles, which share one state: profile %q", Name, handle.ProfileName())
		}
		shared.profiles.Insert(handle.ProfileName())
		return &Plugin{core: shared, handle: handle}, nil
	}
}

// Name implements fwk.Plugin.
func (p *Plugin) Name() string { return Name }

// EventsToRegister returns no events, because no cluster event makes a pod schedulable that we refused; only Activate
// does. Without this method, every event would count (framework/runtime/framework.go, fillEnqueueExtensions).
func (p *Plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return nil, nil
}

// cycle is the state of a pod's scheduling cycle, from PreFilter to Bind or Unreserve. It holds the gang itself, so
// that late hooks of an old cycle cannot change a newer plan.
type cycle struct {
	gangs.Admission
	gpus []string // the resources that count GPUs
	fate fate     // written by Bind and read by Unreserve, on the same goroutine
}

const cycleKey fwk.StateKey = "muster.dev/cycle"

// Clone implements fwk.StateData. It returns the same object, so that all clones share it.
func (c *cycle) Clone() fwk.StateData { return c }

// MemberOf returns the plan's data about the devices of the cycle's pod, or nil for a pod that is no member of a gang.
func MemberOf(state fwk.CycleState) *devices.Member {
	c := cycleOf(state)
	if c == nil {
		return nil
	}
	return &devices.Member{
		Planned: c.Devices, Node: c.Planned, Subrequest: c.Subrequest, GPUs: c.gpus, Memory: c.DeviceMemory,
		MayBeBound: c.fate.outcome == musterv1.BindingFate_BINDING_FATE_UNKNOWN, Void: c.Gang.Closed(),
	}
}

// PlannedForOthers returns the devices of these drivers that live plans have for other pods, as driver/pool/name.
func PlannedForOthers(state fwk.CycleState, pod *v1.Pod, drivers sets.Set[string]) []string {
	data, err := state.Read(cycleDataKey)
	if err != nil {
		return nil
	}
	return data.(*cycleData).plannedForOthers(pod, drivers)
}

const cycleDataKey fwk.StateKey = "muster.dev/core"

// cycleData is what PlannedForOthers needs in the cycles of all pods: the core, and what the cycle has asked.
type cycleData struct {
	*core
	// plansHoldDevices means that live plans hold devices that this pod could use. endedBefore is the number of plans
	// that had ended when the cycle first asked for such devices.
	plansHoldDevices bool
	endedBefore      int
}

// Clone implements fwk.StateData. It returns the same object, so that all clones share it.
func (c *cycleData) Clone() fwk.StateData { return c }

// cycleOf returns our state of a scheduling cycle, or nil for a pod that is not ours.
func cycleOf(state fwk.CycleState) *cycle {
	data, err := state.Read(cycleKey)
	if err != nil {
		return nil
	}
	return data.(*cycle)
}

// isOurs returns whether this plugin schedules a pod in the queue. A bound pod may reach PreEnqueue too (in-place
// resize); it is not ours.
func (p *Plugin) isOurs(pod *v1.Pod) bool { return pod.Spec.NodeName == "" && p.schedules(pod) }
