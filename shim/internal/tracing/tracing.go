// Package tracing sends spans to an OpenTelemetry collector, if the environment names one (OTEL_*). It uses its own
// provider, because kube-scheduler has none. The service decides which gangs are traced: this process starts spans
// only below the context of a verdict. So leases, events and the Watch stream create no spans.
package tracing

import (
	"context"
	"os"
	"strings"
	"sync/atomic"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"k8s.io/klog/v2"
)

var propagator = propagation.TraceContext{}

// Tracer creates spans. A nil Tracer creates no spans.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

// FromEnvironment returns a Tracer that exports to the collector that OTEL_* variables name, or nil without one. The
// exporter connects in the background, and spans that it cannot send are dropped.
func FromEnvironment(ctx context.Context) (*Tracer, error) {
	endpoint := os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") + os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT")
	if endpoint == "" || os.Getenv("OTEL_TRACES_EXPORTER") == "none" || strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return nil, nil
	}
	exporter, err := otlptracegrpc.New(ctx)
	if err != nil {
		return nil, err
	}
	return New(ctx, exporter)
}

// New returns a Tracer with this exporter.
func New(ctx context.Context, exporter sdktrace.SpanExporter) (*Tracer, error) {
	about, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", "muster-shim")), resource.WithFromEnv())
	if err != nil {
		return nil, err
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(&lossLogger{SpanExporter: exporter, logger: klog.FromContext(ctx)}),
		sdktrace.WithResource(about),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())),
	)
	return &Tracer{provider: provider, tracer: provider.Tracer("muster.dev/shim")}, nil
}

// Start starts a span below a traceparent. The span does not record if there is no Tracer, if the traceparent is
// malformed, or if the service does not sample the gang.
func (t *Tracer) Start(traceparent, name string, about ...attribute.KeyValue) trace.Span {
	if t == nil {
		return trace.SpanFromContext(context.Background())
	}
	parent := propagator.Extract(context.Background(), propagation.MapCarrier{"traceparent": traceparent})
	_, span := t.tracer.Start(parent, name, trace.WithAttributes(about...))
	return span
}

// StartChild starts a span below the span of the context.
func (t *Tracer) StartChild(ctx context.Context, name string, about ...attribute.KeyValue) (context.Context, trace.Span) {
	if t == nil || !trace.SpanContextFromContext(ctx).IsValid() {
		return ctx, trace.SpanFromContext(context.Background())
	}
	return t.tracer.Start(ctx, name, trace.WithAttributes(about...))
}

// DialOptions returns the options with which calls of a gRPC client are spans and carry their context.
func (t *Tracer) DialOptions() []grpc.DialOption {
	if t == nil {
		return nil
	}
	return []grpc.DialOption{grpc.WithStatsHandler(otelgrpc.NewClientHandler(
		otelgrpc.WithTracerProvider(t.provider), otelgrpc.WithPropagators(propagator)))}
}

// Traceparent returns the traceparent of the context for an HTTP request, or "".
func Traceparent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagator.Inject(ctx, carrier)
	return carrier["traceparent"]
}

// lossLogger logs once that spans are lost, and once that the collector takes spans again. The SDK would log each batch.
type lossLogger struct {
	sdktrace.SpanExporter
	logger klog.Logger
	fails  atomic.Bool
}

// ExportSpans implements sdktrace.SpanExporter.
func (e *lossLogger) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	switch {
	case err != nil && !e.fails.Swap(true):
		e.logger.Error(err, "Spans are lost: the collector is away, slow, or refuses them")
	case err == nil && e.fails.Swap(false):
		e.logger.Info("Spans are taken again")
	}
	return nil
}
