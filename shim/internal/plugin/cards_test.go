package plugin

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// cards adds two network cards of the node n, which another DRA driver serves as example.com/nic.
func (h *harness) cards() {
	name, on := "example.com/nic", "n"
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "nic"}, Spec: resourceapi.DeviceClassSpec{
		ExtendedResourceName: &name,
		Selectors:            []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "device.driver == 'nic.example.com'"}}},
	}}
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "n-nic"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "nic.example.com", NodeName: &on, Pool: resourceapi.ResourcePool{Name: "n", Generation: 1, ResourceSliceCount: 1},
		Devices: []resourceapi.Device{{Name: "card-0"}, {Name: "card-1"}},
	}}
	for _, obj := range []runtime.Object{class, slice} {
		if err := h.fake.Tracker().Add(obj); err != nil {
			h.t.Fatal(err)
		}
	}
}

// A member gets a card by an extended resource in addition to its GPUs, with GPUs of a device plugin and of a DRA driver.
func TestAMemberGetsCardsByAnExtendedResource(t *testing.T) {
	for source, make := range map[string]func(*testing.T) *harness{
		"a device plugin": func(t *testing.T) *harness { return newHarness(t, node("n", "64")) },
		"DRA":             dra,
	} {
		for _, name := range []v1.ResourceName{"example.com/nic", "deviceclass.resource.kubernetes.io/nic"} {
			t.Run(source+", "+string(name), func(t *testing.T) {
				h := make(t)
				h.cards()
				if source == "DRA" {
					h.planDevices([]int{3})
				} else {
					h.service.plan(spread(1, "n")...)
				}
				h.run("")
				h.podsWith(func(pod *v1.Pod) {
					pod.Spec.Containers[0].Resources.Requests[name] = resource.MustParse("1")
					pod.Spec.Containers[0].Resources.Limits[name] = resource.MustParse("1")
				}, "1", "m0")
				h.until("gated", func() bool { return h.gated("m0") })
				h.service.push(verdict(plannedOutcome, 1, "m0"))
				next(t, "binding", h.bound)
			})
		}
	}
}
