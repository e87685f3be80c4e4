package plugin

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/util"

	"muster.dev/shim/internal/musterv1"
)

// reportTries is how long one report is retried while its session lasts. If a report is lost, the plan's capacity
// stays reserved until the service's own deadline.
const reportTries = time.Minute

// deliverReports sends Unreserve requests one after the other, off the scheduling thread.
func (c *core) deliverReports(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case report := <-c.reports:
			c.deliverReport(ctx, report)
		}
	}
}

// deliverReport retries one report while the session lasts. A lost session ends the plan in the service, and the next
// Watch reports Bindings of unknown fate. A Binding may be answered in a later session than its own. So the report
// carries the epoch of the current session.
func (c *core) deliverReport(ctx context.Context, report *musterv1.UnreserveRequest) {
	epoch := c.store.Epoch()
	if epoch == 0 {
		return
	}
	report.Plan = &musterv1.PlanRef{Epoch: epoch, Gang: report.Plan.Gang, Generation: report.Plan.Generation}
	until := time.Now().Add(reportTries)
	for delay := minBackoff; c.store.Epoch() == epoch && time.Now().Before(until); delay = nextBackoff(delay) {
		err := c.client.Unreserve(ctx, report)
		switch status.Code(err) {
		case codes.OK, codes.FailedPrecondition, codes.InvalidArgument, codes.NotFound, codes.Unimplemented:
			return
		}
		klog.FromContext(ctx).V(3).Info("Reporting again", "gang", report.Plan.Gang, "error", err)
		if !sleep(ctx, delay) {
			return
		}
	}
}

// clearNominations removes nominations that an earlier scheduler left in the status of our unbound pods. They survive
// a crash and keep GPUs from other pods. This plugin never writes nominations to the API.
func (c *core) clearNominations(ctx context.Context) {
	logger := klog.FromContext(ctx)
	pods, err := c.pods.List(labels.Everything())
	if err != nil {
		logger.Error(err, "Left-over nominations can't be listed")
		return
	}
	for _, pod := range pods {
		if !c.hasStaleNomination(pod) {
			continue
		}
		cleared := pod.Status.DeepCopy()
		cleared.NominatedNodeName = ""
		if err := util.PatchPodStatus(ctx, c.handle.ClientSet(), pod.Name, pod.Namespace, &pod.Status, cleared); err != nil {
			logger.Error(err, "Left-over nomination not cleared", "pod", klog.KObj(pod), "node", pod.Status.NominatedNodeName)
		}
	}
}

// hasStaleNomination returns whether one of our unbound pods has a nomination in its status.
func (c *core) hasStaleNomination(pod *v1.Pod) bool {
	return pod.Status.NominatedNodeName != "" && pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil &&
		c.profiles.Has(pod.Spec.SchedulerName) && c.args.schedules(pod)
}
