package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/codes"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"muster.dev/shim/internal/devices"
	"muster.dev/shim/internal/fair"
	"muster.dev/shim/internal/gangs"
	"muster.dev/shim/internal/metrics"
	"muster.dev/shim/internal/musterv1"
	"muster.dev/shim/internal/tracing"
)

const (
	// maxBindings bounds the concurrent Bindings, for which namespaces take turns. A gang binds in one burst. The
	// limit of 50 requests per second in kube-scheduler's own client would delay members of a large gang past their
	// deadline. With 50 ms per answer, 64 Bindings at a time are about 1,300 per second. More would only wait inside an
	// API server that is short of processors, until bindTimeout ends them.
	maxBindings = 64
	// maxInFlight bounds the members between PreEnqueue and the answer to their Binding; one namespace has half of
	// them at most. Permit starts a clock (the service's bind_s), and kube-scheduler schedules faster than a loaded
	// API server binds. Without a limit, the last of thousands of pods that come at once would miss the deadline after
	// Permit, and their gangs would be partially bound. An API server that answers 32 Bindings per second needs 16 s
	// for this many, which is bind_s less bindTimeout.
	maxInFlight = 512
)

var errTooLate = errors.New("not sent: its turn came after the service may have given its GPUs to others")

// sender sends one Binding.
type sender func(context.Context, fwk.Handle, *v1.Binding) error

// Bind waits at the commit barrier for the gang's other members. Then it writes node and allocation in one update:
// the API server merges a Binding's annotations into the pod (pkg/registry/core/pod/storage, setPodNodeAndMetadata).
func (p *Plugin) Bind(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	c := cycleOf(state)
	if c == nil {
		if status := p.failIfOurs(pod); status != nil {
			return status
		}
		return fwk.NewStatus(fwk.Skip)
	}
	if err := p.checkNode(node); err != nil {
		c.fate.message = err.Error() // Unreserve closes the gang, because it is not committed yet
		return fwk.AsStatus(err)
	}
	defer p.recordBindingAnswer(c.Gang)
	ctx = p.contextWithSpan(ctx, c.Gang)
	if err := p.waitForCommit(ctx, c.Gang, c.Member); err != nil {
		return fwk.AsStatus(fmt.Errorf("gang %s: %w", c.Gang.Plan.Gang, err))
	}
	if len(c.Devices) > 0 { // PreBind has written the claim's name to the pod's status since Permit
		// If the claim seems freed, the Binding meets a conflict, and renewBinding asks the API server.
		if live := p.livePod(pod); !devices.WasFreed(pod, live) {
			c.Gang.Renew(c.Member, live.ResourceVersion)
		}
	}
	if err := p.checkNode(node); err != nil {
		c.fate.message = err.Error()
		return fwk.AsStatus(err)
	}
	annotations, version := c.Gang.Binding(c.Member)
	if err := checkAnnotations(pod, annotations); err != nil {
		c.fate.message = err.Error()
		return fwk.AsStatus(err)
	}
	outcome, err := p.sendInTurn(ctx, c, pod, &v1.Binding{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: version, Annotations: annotations,
		},
		Target: v1.ObjectReference{Kind: "Node", Name: node},
	})
	if err != nil {
		c.fate = fate{outcome: outcome, message: err.Error()}
		return fwk.AsStatus(err)
	}
	c.Gang.Bound(c.Member)
	return nil
}

// checkNode returns an error if the node no longer exists, because the API server would accept the Binding.
func (p *Plugin) checkNode(node string) error {
	if _, err := p.nodes.Get(node); err != nil {
		return fmt.Errorf("not bound: %w", err)
	}
	return nil
}

// waitForCommit waits until all members of the quorum have reached Bind. Without it, some members could bind although
// others cannot: kube-scheduler silently drops an Allow for a pod that timed out, was deleted or was preempted
// (waiting_pods_map.go, Allow).
func (p *Plugin) waitForCommit(ctx context.Context, g *gangs.Gang, member int) error {
	committed, err := g.ReachBind(member)
	if errors.Is(err, gangs.ErrStopping) {
		p.carryOut(ctx, g.Abort(err.Error()))
	}
	if err != nil {
		return fmt.Errorf("%w: %s", err, g.VoidReason())
	}
	if committed {
		metrics.CountGang("committed")
		p.addSpanEvent(g, "committed")
		klog.FromContext(ctx).V(2).Info("Gang committed", "gang", g.Plan.Gang, "generation", g.Plan.Generation)
	}
	timeout := time.NewTimer(time.Until(g.SendBy()))
	defer timeout.Stop()
	select {
	case <-g.Committed():
		return nil
	case <-g.Closed():
	case <-ctx.Done():
		p.carryOut(ctx, g.Abort(gangs.ErrStopping.Error()))
	case <-timeout.C:
		p.carryOut(ctx, g.Abort("not all members came to Bind in time"))
	}
	select {
	case <-g.Committed(): // committed at the same moment: bind
		return nil
	default:
		return fmt.Errorf("%w: %s", gangs.ErrClosed, g.VoidReason())
	}
}

// sendInTurn waits for the turn of the gang's namespace, sends the Binding, and sends it again while that is safe.
func (p *Plugin) sendInTurn(ctx context.Context, c *cycle, pod *v1.Pod, binding *v1.Binding) (musterv1.BindingFate, error) {
	turn, ok := p.waitForTurn(ctx, c.Gang)
	if !ok {
		return musterv1.BindingFate_BINDING_FATE_NEVER_SENT, cmp.Or(ctx.Err(), errTooLate)
	}
	defer p.limits.bindings.Leave(turn)
	ctx, span := p.startBindingSpan(ctx, binding)
	defer span.End()
	ctx, cancel := context.WithTimeout(ctx, p.args.BindTimeout.Duration)
	defer cancel()
	klog.FromContext(ctx).V(3).Info("Binding", "pod", klog.KObj(binding), "node", binding.Target.Name)
	start := time.Now()
	err := p.send(ctx, p.handle, binding)
	for wasNotProcessed(err) && sleep(ctx, minBackoff) || p.renewBinding(ctx, c, pod, binding, err) {
		err = p.send(ctx, p.handle, binding)
	}
	outcome := fateOf(err, p.handle.APICacher() != nil)
	metrics.RecordBinding(resultOf(outcome), time.Since(start))
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	return outcome, err
}

// waitForTurn waits until a Binding of this gang may be sent. It returns false if that is too late.
func (p *Plugin) waitForTurn(ctx context.Context, g *gangs.Gang) (*fair.Ticket, bool) {
	ctx, cancel := context.WithDeadline(ctx, g.SendBy())
	defer cancel()
	turn, ok := p.limits.bindings.Take(ctx, g.Namespace, 1)
	if ok && ctx.Err() != nil { // select picks at random if both are ready
		p.limits.bindings.Leave(turn)
		return nil, false
	}
	return turn, ok
}

// sendBinding uses the API cacher if there is one, as DefaultBinder does (framework/plugins/defaultbinder). Otherwise
// it sends the Binding once, unlike util.BindPod, which retries. If the first answer is lost, a second request gets a
// conflict. The conflict would look like a refusal although the first request had succeeded.
func sendBinding(ctx context.Context, handle fwk.Handle, binding *v1.Binding) error {
	if cacher := handle.APICacher(); cacher != nil {
		done, err := cacher.BindPod(binding)
		if err != nil {
			return err
		}
		return cacher.WaitOnFinish(ctx, done)
	}
	request := handle.ClientSet().CoreV1().RESTClient().Post()
	if traceparent := tracing.Traceparent(ctx); traceparent != "" {
		request.SetHeader("traceparent", traceparent)
	}
	return request.
		Throttle(flowcontrol.NewFakeAlwaysRateLimiter()).MaxRetries(0).
		Namespace(binding.Namespace).Resource("pods").Name(binding.Name).SubResource("binding").
		VersionedParams(&metav1.CreateOptions{}, scheme.ParameterCodec).
		Body(binding).Do(ctx).Error()
}

// wasNotProcessed returns whether the API server certainly did not process the Binding: it answered 429 (priority and
// fairness), or nothing listens at its address. Then the Binding is sent again, because this is safe. A failure after
// Permit would leave the gang partially bound.
func wasNotProcessed(err error) bool {
	return apierrors.IsTooManyRequests(err) || utilnet.IsConnectionRefused(err)
}

// renewBinding returns whether a Binding that met a conflict can be sent again, and updates it for the current pod. Any
// client may patch a pod between Permit and Bind. kube-scheduler itself does, with the condition of an earlier
// refusal. After the commit, a failure would leave the gang partially bound.
//
// The Binding is not sent again if another leader has freed the pod's devices. That can happen while this process is
// suspended.
//
// A retry is safe because a Binding with a conflict was certainly not written. All tries share one bindTimeout, so
// that retries never make a Binding later than Args.BindTimeout allows.
func (p *Plugin) renewBinding(ctx context.Context, c *cycle, before *v1.Pod, binding *v1.Binding, err error) bool {
	if !apierrors.IsConflict(err) || p.handle.APICacher() != nil {
		return false
	}
	pod, err := p.handle.ClientSet().CoreV1().Pods(binding.Namespace).Get(ctx, binding.Name, metav1.GetOptions{})
	if err != nil || pod.UID != binding.UID || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil ||
		pod.ResourceVersion == binding.ResourceVersion || checkAnnotations(pod, binding.Annotations) != nil || devices.WasFreed(before, pod) {
		return false
	}
	binding.ResourceVersion = pod.ResourceVersion
	c.Gang.Renew(c.Member, pod.ResourceVersion)
	return true
}

// fateOf returns the fate of a Binding from the API server's answer. A Binding is refused only if it was certainly
// not written. Its fate is unknown after a timeout, a lost connection, a 5xx, or a conflict after hidden retries.
func fateOf(err error, retried bool) musterv1.BindingFate {
	var answer apierrors.APIStatus
	switch {
	case err == nil:
		return musterv1.BindingFate_BINDING_FATE_UNSPECIFIED
	case utilnet.IsConnectionRefused(err):
		return musterv1.BindingFate_BINDING_FATE_NEVER_SENT
	case !errors.As(err, &answer):
		return musterv1.BindingFate_BINDING_FATE_UNKNOWN
	}
	code := answer.Status().Code
	if code < 400 || code >= 500 || code == http.StatusRequestTimeout || retried && code == http.StatusConflict {
		return musterv1.BindingFate_BINDING_FATE_UNKNOWN
	}
	return musterv1.BindingFate_BINDING_FATE_REFUSED
}

// resultOf returns the value of the metrics' label for the fate of a Binding. UNSPECIFIED means that it was written.
func resultOf(outcome musterv1.BindingFate) string {
	switch outcome {
	case musterv1.BindingFate_BINDING_FATE_UNSPECIFIED:
		return "bound"
	case musterv1.BindingFate_BINDING_FATE_REFUSED:
		return "refused"
	case musterv1.BindingFate_BINDING_FATE_NEVER_SENT:
		return "never_sent"
	default:
		return "unknown"
	}
}

// checkAnnotations validates the annotations, which the API server does not do for a Binding. With a bad key or more
// than 256 KiB every later status patch of the pod would fail, also those of the kubelet. A key that the pod already
// has is forged, because only a Binding writes these keys.
func checkAnnotations(pod *v1.Pod, annotations map[string]string) error {
	merged := maps.Clone(pod.Annotations)
	if merged == nil {
		merged = map[string]string{}
	}
	for key, value := range annotations {
		if _, forged := pod.Annotations[key]; forged {
			return fmt.Errorf("pod %s/%s already carries annotation %s, which only its Binding may write", pod.Namespace, pod.Name, key)
		}
		if value != "" {
			merged[key] = value
		}
	}
	if errs := validation.ValidateAnnotations(merged, field.NewPath("metadata", "annotations")); len(errs) > 0 {
		return fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, errs.ToAggregate())
	}
	return nil
}
