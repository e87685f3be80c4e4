package plugin

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"muster.dev/shim/internal/musterv1"
)

func TestTheLastBindingIsSentWhileTheServiceStillKeepsItsPlace(t *testing.T) {
	p := &Plugin{core: &core{args: Args{
		CommitTimeout: metav1.Duration{Duration: 60 * time.Second},
		BindTimeout:   metav1.Duration{Duration: 4 * time.Second},
	}}}
	requestTime := time.Now()
	for name, c := range map[string]struct {
		withinMs    uint32
		withDevices int
		want        time.Duration
		refused     bool
	}{
		"the service sets no limit": {0, 0, 60 * time.Second, false},
		"the service's is shorter":  {30_000, 0, 26 * time.Second, false},
		"the service's is longer":   {300_000, 0, 60 * time.Second, false},
		"devices take their time":   {300_000, 100, 70 * time.Second, false},
		"one Binding uses it up":    {4_000, 0, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := p.sendBy(requestTime, &musterv1.PermitResponse{Allowed: true, BindWithinMs: c.withinMs}, c.withDevices)
			if (err != nil) != c.refused || got.Sub(requestTime) != c.want {
				t.Errorf("got %v, %v", got.Sub(requestTime), err)
			}
		})
	}
}
