package plugin

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

const (
	// stopWithin bounds how long a process that is to stop waits for its Bindings. A pod has 30 s to end.
	stopWithin = 10 * time.Second
	// stopInterval is the pause between two looks at the Bindings.
	stopInterval = 5 * time.Millisecond
)

// stopInOrder delays termination on SIGTERM or SIGINT until the Bindings of committed gangs are answered. kube-scheduler's
// own handler ends all calls at once. Then the API server may have executed only some Bindings of a gang, and half a gang
// would run until another process leads and binds the other members. This process keeps the lease until it ends, so no
// other process leads meanwhile. It does not wait for members in PreBind, which may take a minute: their gang cannot be
// split, because it is not committed yet.
//
// A second signal ends the process at once, as kube-scheduler's handler does. A process that does not lead has no
// Bindings, and keeps kube-scheduler's handler.
func (c *core) stopInOrder(ctx context.Context) {
	if !cache.WaitForCacheSync(ctx.Done(), c.synced) {
		return
	}
	signal.Reset(syscall.SIGTERM, syscall.SIGINT)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	select {
	case <-ctx.Done():
		return
	case <-signals:
	}
	go func() {
		<-signals
		os.Exit(1)
	}()
	c.finishBindings(ctx, stopWithin)
	requestShutdown()
}

// finishBindings prevents further commits of gangs. It returns when all Bindings of committed gangs are answered, or after
// the given time.
func (c *core) finishBindings(ctx context.Context, within time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for bindings := c.store.Stop(); bindings > 0; bindings = c.store.Stop() {
		if !sleep(ctx, stopInterval) {
			klog.FromContext(ctx).Info("Stopped with Bindings under way: the next leader binds the rest of their gangs", "bindings", bindings)
			return
		}
	}
}
