package plugin

import (
	"context"
	"encoding/hex"
	"net"
	"slices"
	"sync"
	"testing"

	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"muster.dev/shim/internal/musterv1"
)

const (
	traceID     = "4bf92f3577b34da6a3ce929d0e0e4736"
	traceparent = "00-" + traceID + "-00f067aa0ba902b7-01"
)

// collector receives OTLP, as a real one does.
type collector struct {
	coltracepb.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []*tracepb.Span
}

func (c *collector) Export(_ context.Context, r *coltracepb.ExportTraceServiceRequest) (*coltracepb.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range r.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			c.spans = append(c.spans, scope.Spans...)
		}
	}
	return &coltracepb.ExportTraceServiceResponse{}, nil
}

// names returns the names of the spans so far, sorted.
func (c *collector) names() (names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, span := range c.spans {
		names = append(names, span.Name)
	}
	slices.Sort(names)
	return names
}

// collect starts a collector and lets the shim's spans go there.
func collect(t *testing.T) *collector {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, server := &collector{}, grpc.NewServer()
	coltracepb.RegisterTraceServiceServer(server, c)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+listener.Addr().String())
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
	return c
}

func tracedVerdict(outcome musterv1.Outcome, generation uint64, parent string, names ...string) *musterv1.Verdict {
	v := verdict(outcome, generation, names...)
	v.Traceparent = parent
	return v
}

func TestSpansOfAGangAreBelowItsVerdict(t *testing.T) {
	c := collect(t)
	h := newHarness(t, node("n", "16"))
	h.service.plan(spread(3, "n")...)
	carried := make(chan []string, 1)
	h.service.reserve = func(ctx context.Context, _ *musterv1.ReserveRequest) (*musterv1.ReserveResponse, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		carried <- md.Get("traceparent")
		return &musterv1.ReserveResponse{Claimed: true}, nil
	}
	h.run("")
	names := members(3)
	h.pods("1", names...)
	h.until("gated", func() bool { return h.gated(names...) })
	h.service.push(tracedVerdict(plannedOutcome, 1, traceparent, names...))
	h.waitForBindings(len(names))
	want := []string{
		"Binding", "Binding", "Binding", "muster.v1.GangService/Filter", "muster.v1.GangService/Permit",
		"muster.v1.GangService/Reserve", "muster.v1.GangService/Score", "scheduling",
	}
	h.until("all spans have come", func() bool { return slices.Equal(c.names(), want) })
	if header := next(t, "Reserve", carried); len(header) != 1 || header[0][3:35] != traceID {
		t.Errorf("Reserve carries %v", header)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	ids := map[string]string{}
	for _, span := range c.spans {
		ids[hex.EncodeToString(span.SpanId)] = span.Name
	}
	for _, span := range c.spans {
		parent := hex.EncodeToString(span.ParentSpanId)
		if hex.EncodeToString(span.TraceId) != traceID {
			t.Errorf("%s is in trace %x", span.Name, span.TraceId)
		}
		if span.Name == "scheduling" && parent != "00f067aa0ba902b7" || span.Name != "scheduling" && ids[parent] != "scheduling" {
			t.Errorf("%s is below %q %s", span.Name, ids[parent], parent)
		}
	}
}

func TestNoSpansWithoutASampledParent(t *testing.T) {
	c := collect(t)
	h := newHarness(t, node("n", "16"))
	h.service.plan(spread(1, "n")...)
	h.run("")
	for generation, parent := range []string{"", "no traceparent", traceparent[:53] + "00", traceparent} {
		name := members(4)[generation]
		h.pods("1", name)
		h.until("gated", func() bool { return h.gated(name) })
		v := tracedVerdict(plannedOutcome, uint64(generation+1), parent, name)
		v.Gang = name
		h.service.push(v)
		next(t, "binding", h.bound)
	}
	// spans are sent in their order: those of the last gang come after all others
	h.until("the last gang's spans have come", func() bool { return slices.Contains(c.names(), "scheduling") })
	if got := c.names(); len(got) != 6 {
		t.Errorf("spans: %v", got)
	}
}

func TestACollectorThatIsAwayHoldsUpNothing(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
	h := newHarness(t, node("n", "16"))
	h.service.plan(spread(3, "n")...)
	h.run("")
	names := members(3)
	h.pods("1", names...)
	h.until("gated", func() bool { return h.gated(names...) })
	h.service.push(tracedVerdict(plannedOutcome, 1, traceparent, names...))
	h.waitForBindings(len(names))
}

func TestAVoidVerdictEndsItsSpan(t *testing.T) {
	c := collect(t)
	h := newHarness(t, node("n", "16"))
	h.service.plan(spread(2, "n")...)
	h.run("")
	h.pods("1", "m0")
	h.until("gated", func() bool { return h.gated("m0") })
	v := tracedVerdict(plannedOutcome, 1, traceparent, "m0", "m1")
	h.service.push(v)
	h.until("one member waits", func() bool { return h.waiting() == 1 })
	h.service.push(verdict(withdrawn, 1, "m0", "m1"))
	h.until("the span has ended", func() bool { return slices.Contains(c.names(), "scheduling") })
	h.until("nothing is kept", func() bool {
		entries := 0
		h.plugin.spans.Range(func(any, any) bool { entries++; return true })
		return entries == 0
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, span := range c.spans {
		if span.Name == "scheduling" && span.Status.Code != tracepb.Status_STATUS_CODE_ERROR {
			t.Errorf("status %v", span.Status)
		}
	}
}
