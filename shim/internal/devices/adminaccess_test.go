package devices

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
)

// counting has a class of GPUs by the resource example.com/gpu: devices of the driver "gpu" with the attribute.
type counting struct {
	objects
	classes
}

func (c *counting) DeviceClasses() fwk.DeviceClassLister         { return c.classes }
func (c *counting) DeviceClassResolver() fwk.DeviceClassResolver { return c }
func (c *counting) Get(namespace, name string) (*resourceapi.ResourceClaim, error) {
	return c.objects.Get(namespace, name)
}

func (c *counting) GetDeviceClass(v1.ResourceName) *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{Spec: resourceapi.DeviceClassSpec{Selectors: celOf("device.driver == 'gpu' && device.attributes['gpu'].whole")}}
}

func TestNodesWhereAMemberCanWatchNoGPUAreRefused(t *testing.T) {
	consumes := []resourceapi.DeviceCounterConsumption{{CounterSet: "s"}}
	gpus := func(devices ...resourceapi.Device) *resourceapi.ResourceSlice {
		published := slice("gpus", "gpu", "n", 1)
		published.Spec.Devices = devices
		return published
	}
	is := func(name string, whole *bool, consumes []resourceapi.DeviceCounterConsumption) resourceapi.Device {
		attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"whole": {BoolValue: whole}}
		return resourceapi.Device{Name: name, Attributes: attributes, ConsumesCounters: consumes}
	}
	for name, c := range map[string]struct {
		selector string
		of       *resourceapi.ResourceSlice
		refused  bool
	}{
		"all consume counters":          {"device.driver == 'gpu'", gpus(is("a", new(true), consumes), is("b", new(true), consumes)), true},
		"one consumes none":             {"device.driver == 'gpu'", gpus(is("a", new(true), consumes), is("b", new(true), nil)), false},
		"partitions":                    {"!device.attributes['gpu'].whole", gpus(is("a", new(true), consumes), is("b", new(false), consumes)), false},
		"no device matches":             {"device.driver == 'x'", gpus(is("a", new(true), consumes)), false},
		"a selector can't be evaluated": {"device.attributes['gpu'].missing", gpus(is("a", new(true), consumes)), false},
	} {
		t.Run(name, func(t *testing.T) {
			watching := requestOf("watching", "gpu", c.selector)
			watching.Exactly.AdminAccess = new(true)
			claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}}
			claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{requestOf("gpu", "gpu", ""), watching}
			manager := &counting{objects: objects{claims: []*resourceapi.ResourceClaim{claim}}}
			a := &AdvanceCheck{manager: manager, gpus: []string{"example.com/gpu"}, matcher: newMatcher(feature.Features{})}
			pod := &v1.Pod{Spec: v1.PodSpec{ResourceClaims: []v1.PodResourceClaim{{Name: "mine", ResourceClaimName: &claim.Name}}}}
			question := &gpuQuestion{adminRequests: a.adminRequests(pod), slices: map[string][]*resourceapi.ResourceSlice{"n": {c.of}}}
			reason := a.whyNoAdminAccess(t.Context(), question, "n")
			if refused := strings.HasPrefix(reason, "resourceClaims mine, request watching: adminAccess"); refused != c.refused || reason != "" && !refused {
				t.Errorf("%q", reason)
			}
		})
	}
}
