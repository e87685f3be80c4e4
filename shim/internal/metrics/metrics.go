// Package metrics defines the metrics that the shim adds to kube-scheduler's /metrics.
package metrics

import (
	"sync"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var (
	unary = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Name:           "muster_shim_unary_seconds",
		Help:           "Time of the calls to the service, by method and gRPC code.",
		Buckets:        metrics.ExponentialBuckets(0.0005, 2, 14), // 0.5 ms … 4 s
		StabilityLevel: metrics.ALPHA,
	}, []string{"method", "code"})
	bindings = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Name:           "muster_shim_binding_seconds",
		Help:           "Time that the API server took for one Binding with all its tries, by result.",
		Buckets:        metrics.ExponentialBuckets(0.0005, 2, 15), // 0.5 ms … 8 s
		StabilityLevel: metrics.ALPHA,
	}, []string{"result"})
	gangs = metrics.NewCounterVec(&metrics.CounterOpts{
		Name:           "muster_shim_gangs",
		Help:           "Verdicts on gangs, by what became of them.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"outcome"})
	inTree = metrics.NewHistogram(&metrics.HistogramOpts{
		Name:           "muster_shim_in_tree_seconds",
		Help:           "Time of one slice of an inspection of nodes by the in-tree plugins; after it others have their turn.",
		Buckets:        metrics.ExponentialBuckets(0.001, 2, 14), // 1 ms … 8 s
		StabilityLevel: metrics.ALPHA,
	})
	session = metrics.NewGauge(&metrics.GaugeOpts{
		Name:           "muster_shim_session_up",
		Help:           "1 while a session with the service is open.",
		StabilityLevel: metrics.ALPHA,
	})
	register sync.Once
)

// Register adds the metrics to the registry that kube-scheduler serves.
func Register() {
	register.Do(func() { legacyregistry.MustRegister(unary, bindings, gangs, inTree, session) })
}

// RecordCall records one call of the service.
func RecordCall(method, code string, took time.Duration) {
	unary.WithLabelValues(method, code).Observe(took.Seconds())
}

// RecordBinding records one Binding by result: bound, refused, unknown or never_sent.
func RecordBinding(result string, took time.Duration) {
	bindings.WithLabelValues(result).Observe(took.Seconds())
}

// CountGang counts one gang by outcome: planned, refused, withdrawn, permitted, denied, committed or closed.
func CountGang(outcome string) { gangs.WithLabelValues(outcome).Inc() }

// SetSession records whether a session is open.
func SetSession(up bool) {
	if up {
		session.Set(1)
	} else {
		session.Set(0)
	}
}

// RecordSlice records one slice of an inspection.
func RecordSlice(took time.Duration) { inTree.Observe(took.Seconds()) }
