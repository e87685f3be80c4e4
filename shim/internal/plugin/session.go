package plugin

import (
	"context"
	"errors"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/klog/v2"

	"muster.dev/shim/internal/gangs"
	"muster.dev/shim/internal/metrics"
	"muster.dev/shim/internal/musterv1"
)

// keepSession keeps a session open until the process ends. Without a session no pod of ours is scheduled; other pods are.
func (c *core) keepSession(ctx context.Context) {
	logger := klog.FromContext(ctx)
	logger.Info("Waiting for the service: GPU pods are held until it opens a session", "address", c.args.ServiceAddress)
	for delay := minBackoff; ctx.Err() == nil; {
		opened, err := c.runSession(ctx)
		if ctx.Err() != nil {
			return
		}
		if opened {
			logger.Info("Session with the service lost: GPU pods wait until it is back", "error", err)
			delay = minBackoff
		} else {
			logger.V(2).Info("No session with the service", "error", err)
		}
		sleep(ctx, delay)
		delay = nextBackoff(delay)
	}
}

var errFirst = errors.New("the service's first response did not open a session")

// runSession runs one stream from its connection to its end.
func (c *core) runSession(ctx context.Context) (opened bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.client.Watch(ctx, &musterv1.WatchRequest{
		Session: string(uuid.NewUUID()), InFlight: c.bindingsInFlight(), AnswersInTree: c.inTree != nil,
	})
	if err != nil {
		return false, err
	}
	opening, err := stream.Recv() // arrives when the service has a full view of the cluster
	if err != nil {
		return false, err
	}
	open := opening.GetSessionOpened()
	if open == nil {
		return false, errFirst
	}
	c.store.BeginSession(open.Epoch)
	if c.inTree != nil {
		c.inTree.Begin(open.Epoch)
		defer c.inTree.Begin(0)
	}
	metrics.SetSession(true)
	klog.FromContext(ctx).Info("Session with the service opened", "epoch", open.Epoch)
	defer func() {
		metrics.SetSession(false)
		c.carryOut(ctx, c.store.EndSession())
	}()
	for {
		response, err := receiveResponse(stream)
		if err != nil {
			return true, err
		}
		if verdict := response.GetVerdict(); verdict != nil {
			c.takeVerdict(ctx, verdict)
		}
		if question := response.GetInTreeQuestion(); question != nil && c.inTree != nil {
			c.inTree.Ask(question)
		}
	}
}

// receiveResponse returns the next response. A response with many members comes in parts, which it joins.
func receiveResponse(stream musterv1.GangService_WatchClient) (*musterv1.WatchResponse, error) {
	response, err := stream.Recv()
	for err == nil && response.More {
		var part *musterv1.WatchResponse
		if part, err = stream.Recv(); err == nil {
			response.More = false
			proto.Merge(response, part) // appends names and UIDs
		}
	}
	return response, err
}

// takeVerdict stores a verdict before it activates any pod, so that no pod misses it.
func (c *core) takeVerdict(ctx context.Context, verdict *musterv1.Verdict) {
	logger := klog.FromContext(ctx)
	g, instructions, err := c.store.Apply(verdict)
	if err != nil {
		logger.Error(err, "Verdict ignored")
		return
	}
	c.carryOut(ctx, instructions)
	if verdict.Outcome == musterv1.Outcome_OUTCOME_WITHDRAWN {
		metrics.CountGang("withdrawn")
	}
	if g == nil {
		return
	}
	outcome := "planned"
	if g.Refused {
		outcome = "refused"
	}
	metrics.CountGang(outcome)
	c.startSpan(g, verdict.Traceparent)
	ctx = c.contextWithSpan(ctx, g)
	klog.FromContext(ctx).V(2).Info("Verdict", "gang", g.Plan.Gang, "generation", g.Plan.Generation, "outcome", outcome, "members", len(g.UIDs))
	go c.followVerdict(ctx, g)
}

// bindingsInFlight returns the Bindings without an answer, except those whose result the cluster shows.
func (c *core) bindingsInFlight() []*musterv1.InFlightBinding {
	var bindings []*musterv1.InFlightBinding
	for _, flight := range c.store.InFlight() {
		if c.isAnswered(flight) {
			c.store.Settle(flight.UID)
			continue
		}
		bindings = append(bindings, &musterv1.InFlightBinding{
			Namespace: flight.Namespace, Name: flight.Name, Uid: string(flight.UID),
			Node: flight.Node, Annotations: flight.Annotations,
		})
	}
	return bindings
}

// isAnswered returns whether the cluster shows the result of a Binding of unknown fate. It does if the pod is gone,
// replaced or bound. It also does if the unbound pod has another resourceVersion than the Binding, because then the
// API server refuses a late Binding.
func (c *core) isAnswered(flight gangs.InFlight) bool {
	if !flight.Unknown {
		return false
	}
	pod, err := c.pods.Pods(flight.Namespace).Get(flight.Name)
	return err != nil || pod.UID != flight.UID || pod.Spec.NodeName != "" || pod.ResourceVersion != flight.Version
}
