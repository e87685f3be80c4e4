package plugin

import (
	"context"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"muster.dev/shim/internal/gangs"
)

// gangSpan is the span of one planned gang, from its verdict to the answer of its last Binding.
type gangSpan struct {
	span       trace.Span
	unanswered atomic.Int64 // members whose Binding has no answer
	answered   chan struct{}
}

// startSpan starts the gang's span, if the service traces the gang.
func (c *core) startSpan(g *gangs.Gang, traceparent string) {
	if traceparent == "" || g.Refused {
		return
	}
	span := c.tracer.Start(traceparent, "scheduling",
		attribute.String("muster.gang", g.Plan.Gang), attribute.String("k8s.namespace.name", g.Namespace),
		attribute.Int64("muster.generation", int64(g.Plan.Generation)), attribute.Int("muster.members", len(g.UIDs)))
	if !span.IsRecording() {
		return
	}
	t := &gangSpan{span: span, answered: make(chan struct{})}
	t.unanswered.Store(int64(len(g.UIDs)))
	c.spans.Store(g, t)
	go c.endSpan(g, t)
}

// endSpan ends the gang's span when all Bindings are answered, when the verdict is void, or when no Binding can be
// sent any more.
func (c *core) endSpan(g *gangs.Gang, t *gangSpan) {
	defer c.spans.Delete(g)
	defer t.span.End()
	select {
	case <-g.Permitted():
	case <-g.Closed():
		t.span.SetStatus(codes.Error, g.VoidReason())
		return
	case <-c.stop:
		return
	}
	late := time.NewTimer(time.Until(g.SendBy().Add(c.args.BindTimeout.Duration)))
	defer late.Stop()
	select {
	case <-t.answered:
	case <-g.Closed():
		t.span.SetStatus(codes.Error, g.VoidReason())
	case <-late.C:
		t.span.SetStatus(codes.Error, "not all Bindings were answered in time")
	case <-c.stop:
	}
}

// contextWithSpan returns the context with the gang's span as the parent of new spans. Log lines then carry the trace id.
func (c *core) contextWithSpan(ctx context.Context, g *gangs.Gang) context.Context {
	value, ok := c.spans.Load(g)
	if !ok || trace.SpanFromContext(ctx) == value.(*gangSpan).span {
		return ctx
	}
	span := value.(*gangSpan).span
	logger := klog.FromContext(ctx).WithValues("trace_id", span.SpanContext().TraceID().String())
	return klog.NewContext(trace.ContextWithSpan(ctx, span), logger)
}

// addSpanEvent adds an event to the gang's span.
func (c *core) addSpanEvent(g *gangs.Gang, event string) {
	if value, ok := c.spans.Load(g); ok {
		value.(*gangSpan).span.AddEvent(event)
	}
}

// countAnswerInSpan records that a member's Binding was answered, or will not be sent.
func (c *core) countAnswerInSpan(g *gangs.Gang) {
	if value, ok := c.spans.Load(g); ok && value.(*gangSpan).unanswered.Add(-1) == 0 {
		close(value.(*gangSpan).answered)
	}
}

// startBindingSpan starts the span of one Binding.
func (c *core) startBindingSpan(ctx context.Context, binding *v1.Binding) (context.Context, trace.Span) {
	return c.tracer.StartChild(ctx, "Binding",
		attribute.String("k8s.namespace.name", binding.Namespace), attribute.String("k8s.pod.name", binding.Name),
		attribute.String("k8s.pod.uid", string(binding.UID)), attribute.String("k8s.node.name", binding.Target.Name))
}
