package plugin

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

const (
	// stopWithin bounds how long a process that is to stop waits for its Bindings. A pod has 30 s to end.
	stopWithin = 10 * time.Second
	// stopInterval is the pause between two looks at the Bindings.
	stopInterval = 5 * time.Millisecond
)

// stopInOrder has SIGTERM and SIGINT end the process only after the Bindings of committed gangs. kube-scheduler's own
// handler breaks off all calls at once. The API server would have carried out some Bindings of a gang and not the others:
// half a gang would run until another process leads and binds the rest. This process keeps the lease until it ends, so no
// other leads. It does not wait for members in PreBind: that may take a minute, and their gang is not halved.
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
	server.RequestShutdown()
}

// finishBindings has no further gang committed. It returns when all Bindings of committed gangs are answered, or after this
// time.
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
