package plugin

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"muster.dev/shim/internal/devices"
	"muster.dev/shim/internal/fair"
	"muster.dev/shim/internal/gangs"
	"muster.dev/shim/internal/intree"
	"muster.dev/shim/internal/metrics"
	"muster.dev/shim/internal/musterv1"
	"muster.dev/shim/internal/service"
	"muster.dev/shim/internal/tracing"
)

const (
	// maxFetches bounds the concurrent calls of Filter and Score. After a reconnect all gangs need them at once.
	maxFetches = 16
	// maxReports bounds the reports that wait to be sent to the service.
	maxReports = 8192
	// releaseInterval is the pause between two tries to release a pod. The framework adds a pod to the waiting map only
	// after Permit, and cannot release the pod before.
	releaseInterval = 50 * time.Millisecond
)

// core is the state that the plugins of all profiles share.
type core struct {
	args   Args
	store  *gangs.Store
	client *service.Client
	// handle belongs to the first profile. The queue, the nominator and the waiting pods are the same for all
	// profiles. kube-scheduler sets the nominator and the activator after this constructor has run (scheduler.go,
	// New).
	handle        fwk.Handle
	pods          corelisters.PodLister
	nodes         corelisters.NodeLister
	synced        cache.InformerSynced
	profiles      sets.Set[string] // schedulerNames; complete before the informers start and run continues
	reports       chan *musterv1.UnreserveRequest
	limits        limits
	inTree        *intree.Asker
	tracer        *tracing.Tracer // nil if no spans are exported
	spans         sync.Map        // *gangs.Gang to its *gangSpan
	stale         *devices.StaleDevices
	deviceWaiters deviceWaiters
	send          sender
	stop          <-chan struct{} // closed when the process ends

	// nominations serializes nominating a gang and removing its nominations. PreEnqueue never takes this lock, unlike
	// the store's. So a holder of this lock can call the queue without a deadlock.
	nominations sync.Mutex
}

// limits are shared by all namespaces. No namespace can use up a limit and block the others.
type limits struct {
	fetches     *fair.Room // concurrent calls of Filter and Score
	inFlight    *fair.Room // members between PreEnqueue and the answer to their Binding
	tickets     sync.Map   // *gangs.Gang to its *fair.Ticket of inFlight
	bindings    *fair.Room // Bindings that are being sent
	refused     *fair.Room // members of refused gangs that are let through
	refusedRate *fair.Rate // the same members, by time
}

func newCore(ctx context.Context, args Args, handle fwk.Handle, send sender) (*core, error) {
	tracer, err := tracing.FromEnvironment(ctx)
	if err != nil {
		return nil, fmt.Errorf("traces by OTEL_* variables: %w", err)
	}
	client, err := service.Dial(args.ServiceAddress, args.CallTimeout.Duration, tracer.DialOptions()...)
	if err != nil {
		return nil, err
	}
	if send == nil {
		send = sendBinding
	}
	metrics.Register()
	c := &core{
		args: args, store: gangs.NewStore(), client: client, handle: handle, send: send, stop: ctx.Done(),
		profiles: sets.New[string](),
		reports:  make(chan *musterv1.UnreserveRequest, maxReports),
		limits: limits{
			fetches:     fair.NewRoom(maxFetches, maxFetches),
			inFlight:    fair.NewRoom(maxInFlight, maxInFlight/2),
			bindings:    fair.NewRoom(maxBindings, maxBindings),
			refused:     fair.NewRoom(maxRefused, maxRefused/2),
			refusedRate: newRefusedRate(),
		},
		tracer: tracer,
	}
	c.nodes = handle.SharedInformerFactory().Core().V1().Nodes().Lister()
	c.inTree = intree.New(handle, client.ReportInTree, args.Resources)
	if c.stale, err = devices.NewStaleDevices(handle); err != nil {
		return nil, err
	}
	return c, c.watchPods(handle.SharedInformerFactory())
}

// watchPods sets the pod lister, removes deleted pods from the store, and wakes pods that have left their gang. With
// delayCacheUntilActive, the informers start only when this process holds the lease. So "synced" means "leading"
// (cmd/kube-scheduler/app/server.go, Run).
func (c *core) watchPods(factory informers.SharedInformerFactory) error {
	pods := factory.Core().V1().Pods()
	c.pods, c.synced = pods.Lister(), pods.Informer().HasSynced
	_, err := pods.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, after any) { c.wakeLeaver(before.(*v1.Pod), after.(*v1.Pod)) },
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			if pod, ok := obj.(*v1.Pod); ok {
				c.store.Forget(pod.UID)
			}
		},
	})
	return err
}

// run does the background work until the process ends.
func (c *core) run(ctx context.Context) {
	defer func() { _ = c.client.Close() }()
	if !cache.WaitForCacheSync(ctx.Done(), c.synced) {
		return
	}
	if err := c.inTree.Prepare(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "No in-tree answers: nodes that plugins refuse are met one by one")
		c.inTree = nil
	} else {
		go c.inTree.Run(ctx)
	}
	go c.clearNominations(ctx)
	leaked := c.stale.LeakedClaims(ctx) // before the first plan of this process, because its claims are not leaked
	go c.freeLeakedDevices(ctx, leaked)
	go c.deliverReports(ctx)
	c.keepSession(ctx)
}

// memberPod returns member i's pod from the informer, or nil if no pod has this name and UID.
func (c *core) memberPod(g *gangs.Gang, i int) *v1.Pod {
	pod, err := c.pods.Pods(g.Namespace).Get(g.Names[i])
	if err != nil || pod.UID != g.UIDs[i] {
		return nil
	}
	return pod
}

// carryOut carries out instructions. The caller holds no lock of the store.
func (c *core) carryOut(ctx context.Context, instructions gangs.Instructions) {
	for _, g := range instructions.Closed {
		metrics.CountGang("closed")
		klog.FromContext(ctx).V(2).Info("Gang's verdict is void", "gang", g.Plan.Gang, "generation", g.Plan.Generation, "reason", g.VoidReason())
		c.removeNominations(g)
		c.releaseMembers(g)
		c.retryWaiters(g)
	}
	for _, report := range instructions.Reports {
		select {
		case c.reports <- report:
		default:
			klog.FromContext(ctx).Error(nil, "Report dropped: too many wait for the service", "gang", report.Plan.Gang)
		}
	}
}

// releaseMembers sends a gang's waiting members back to the queue.
//
// It uses Preempt instead of Reject. After Preempt the pod fails with an Error and goes to the back-off queue, where
// PreEnqueue gates it. A rejected pod would be marked Unschedulable and wait in the queue ungated
// (framework/runtime/waiting_pods_map.go).
//
// A pod between Permit and the waiting map is not found yet. So releaseMembers tries again until the pod's Unreserve has
// run. The retries stop with the process, and not with the context of the cycle, which ends earlier.
func (c *core) releaseMembers(g *gangs.Gang) {
	if c.tryRelease(g) == 0 {
		return
	}
	go func() {
		_ = wait.PollUntilContextCancel(wait.ContextForChannel(c.stop), releaseInterval, false, func(context.Context) (bool, error) {
			return c.tryRelease(g) == 0, nil
		})
	}()
}

// tryRelease releases the members that are in the waiting map, and returns how many members wait.
func (c *core) tryRelease(g *gangs.Gang) int {
	waiting := g.WaitingMembers()
	for _, uid := range waiting {
		if waiter := c.handle.GetWaitingPod(uid); waiter != nil {
			waiter.Preempt(Name, g.VoidReason())
		}
	}
	return len(waiting)
}
