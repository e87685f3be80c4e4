package plugin

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"muster.dev/shim/internal/gangs"
	"muster.dev/shim/internal/intree"
	"muster.dev/shim/internal/metrics"
	"muster.dev/shim/internal/musterv1"
	"muster.dev/shim/internal/service"
)

const (
	// maxFetches under way at once: after a reconnect all gangs ask together.
	maxFetches = 16
	// maxReports waiting for the service.
	maxReports = 8192
	// releaseInterval: a pod between Permit and the waiting map can't be released yet.
	releaseInterval = 50 * time.Millisecond
)

// core is the one state of the process, behind the plugin of each profile.
type core struct {
	args   Args
	store  *gangs.Store
	client *service.Client
	// handle of the first profile: queue, nominator and waiting pods are the same for all. Nominator
	// and activator are set after the constructor has run (scheduler.go, New).
	handle    fwk.Handle
	pods      corelisters.PodLister
	nodes     corelisters.NodeLister
	synced    cache.InformerSynced
	profiles  sets.Set[string] // schedulerNames; complete before run goes on, when informers start
	reports   chan *musterv1.UnreserveRequest
	fetches   chan struct{}
	bindings  chan struct{}
	admission *admission
	telling   *admission // members of refused gangs on their way to their reason
	inTree    *intree.Asker
	send      sender
	stop      <-chan struct{} // the process ends

	// nominations orders nominating a gang and removing its nominations. It is not the store's
	// lock, and PreEnqueue never takes it: calling into the queue with it held can't deadlock.
	nominations sync.Mutex
}

func newCore(ctx context.Context, args Args, handle fwk.Handle, send sender) (*core, error) {
	client, err := service.Dial(args.ServiceAddress, args.CallTimeout.Duration)
	if err != nil {
		return nil, err
	}
	if send == nil {
		send = sendBinding
	}
	metrics.Register()
	c := &core{
		args: args, store: gangs.NewStore(), client: client, handle: handle, send: send, stop: ctx.Done(),
		profiles:  sets.New[string](),
		reports:   make(chan *musterv1.UnreserveRequest, maxReports),
		fetches:   make(chan struct{}, maxFetches),
		bindings:  make(chan struct{}, maxBindings),
		admission: newAdmission(maxInFlight),
		telling:   newAdmission(maxTelling),
	}
	c.nodes = handle.SharedInformerFactory().Core().V1().Nodes().Lister()
	c.inTree = intree.New(handle, client.ReportInTree)
	return c, c.watchPods(handle.SharedInformerFactory())
}

// watchPods keeps the lister, and forgets deleted pods. With delayCacheUntilActive "synced" means
// "leading": informers start when the lease is held (cmd/kube-scheduler/app/server.go, Run).
func (c *core) watchPods(factory informers.SharedInformerFactory) error {
	pods := factory.Core().V1().Pods()
	c.pods, c.synced = pods.Lister(), pods.Informer().HasSynced
	_, err := pods.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if pod, ok := obj.(*v1.Pod); ok {
				c.store.Forget(pod.UID)
			}
		},
	})
	return err
}

// run serves the process until it ends.
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
	go c.deliverReports(ctx)
	c.watch(ctx)
}

// pod is member i's as the informer knows it; nil where the name is not there or another pod's.
func (c *core) pod(g *gangs.Gang, i int) *v1.Pod {
	pod, err := c.pods.Pods(g.Namespace).Get(g.Names[i])
	if err != nil || pod.UID != g.UIDs[i] {
		return nil
	}
	return pod
}

// carryOut does what an event asks for, with no lock of the store held.
func (c *core) carryOut(ctx context.Context, do gangs.Instructions) {
	for _, g := range do.Closed {
		metrics.Gang("closed")
		klog.FromContext(ctx).V(2).Info("Gang's verdict is void", "gang", g.Plan.Gang, "generation", g.Plan.Generation, "reason", g.Why())
		c.unnominate(g)
		c.release(g)
	}
	for _, report := range do.Reports {
		select {
		case c.reports <- report:
		default:
			klog.FromContext(ctx).Error(nil, "Report dropped: too many wait for the service", "gang", report.Plan.Gang)
		}
	}
}

// release sends a gang's waiters back. Preempt, not Reject: an Error goes to the back-off queue, at
// whose entrance PreEnqueue gates the pod, while a rejected pod is parked ungated and marked
// Unschedulable (framework/runtime/waiting_pods_map.go). One that is between Permit and the waiting
// map is not found yet: tried again until its Unreserve has come. The context is the process's, for
// that of the cycle which closed the gang ends before.
func (c *core) release(g *gangs.Gang) {
	if c.releaseNow(g) == 0 {
		return
	}
	go func() {
		tick := time.NewTicker(releaseInterval)
		defer tick.Stop()
		for c.releaseNow(g) > 0 {
			select {
			case <-c.stop:
				return
			case <-tick.C:
			}
		}
	}()
}

func (c *core) releaseNow(g *gangs.Gang) (left int) {
	waiting := g.Waiting()
	for _, uid := range waiting {
		if waiter := c.handle.GetWaitingPod(uid); waiter != nil {
			waiter.Preempt(Name, g.Why())
		}
	}
	return len(waiting)
}
