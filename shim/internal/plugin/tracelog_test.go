package plugin

import (
	"strings"
	"testing"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

func TestLogLinesOfATracedGangCarryItsTraceID(t *testing.T) {
	collect(t)
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(3)))
	h := newHarness(t, node("n", "16"))
	h.ctx = klog.NewContext(h.ctx, logger)
	h.service.plan(spread(2, "n")...)
	h.run("")
	names := members(2)
	h.pods("1", names...)
	h.until("gated", func() bool { return h.gated(names...) })
	h.service.push(tracedVerdict(plannedOutcome, 1, traceparent, names...))
	h.waitForBindings(len(names))
	count := map[string]int{}
	for line := range strings.Lines(logger.GetSink().(ktesting.Underlier).GetBuffer().String()) {
		for _, about := range []string{"Gang committed", "Binding pod="} {
			if strings.Contains(line, about) {
				count[about]++
				if !strings.Contains(line, `trace_id="`+traceID+`"`) {
					t.Errorf("without the trace id: %s", line)
				}
			}
		}
	}
	if count["Gang committed"] != 1 || count["Binding pod="] != len(names) {
		t.Errorf("lines: %v", count)
	}
}
