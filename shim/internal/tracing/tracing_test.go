package tracing

import (
	"context"
	"net"
	"strings"
	"testing"

	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

const (
	traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	queued      = 5000 // spans: more than the queue holds
)

// refuses is a collector that answers each batch with an error.
type refuses struct {
	coltracepb.UnimplementedTraceServiceServer
}

func (refuses) Export(context.Context, *coltracepb.ExportTraceServiceRequest) (*coltracepb.ExportTraceServiceResponse, error) {
	return nil, status.Error(codes.PermissionDenied, "no token")
}

func listen(t *testing.T) net.Listener {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

// collectors take no spans. Each has a real socket.
var collectors = map[string]func(t *testing.T) net.Addr{
	"away": func(t *testing.T) net.Addr {
		listener := listen(t)
		_ = listener.Close()
		return listener.Addr()
	},
	// Connections wait in the backlog and get no answer.
	"slow": func(t *testing.T) net.Addr { return listen(t).Addr() },
	"refusing": func(t *testing.T) net.Addr {
		listener, server := listen(t), grpc.NewServer()
		coltracepb.RegisterTraceServiceServer(server, refuses{})
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(server.Stop)
		return listener.Addr()
	},
}

func TestACollectorThatTakesNothingHoldsUpNothingAndIsReportedOnce(t *testing.T) {
	for name, start := range collectors {
		t.Run(name, func(t *testing.T) {
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+start(t).String())
			t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "100") // ms
			logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
			tracer, err := FromEnvironment(klog.NewContext(t.Context(), logger))
			if err != nil {
				t.Fatal(err)
			}
			for range queued {
				tracer.Start(traceparent, "Binding").End()
			}
			for range 2 {
				tracer.Start(traceparent, "Binding").End()
				if err := tracer.provider.ForceFlush(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			log := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
			if count := strings.Count(log, "Spans are lost"); count != 1 {
				t.Errorf("reported %d times, want once: %s", count, log)
			}
		})
	}
}
