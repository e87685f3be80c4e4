package plugin

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// cards adds two network cards of the node n, which another DRA driver serves as example.com/nic.
func (h *harness) cards() {
	h.add(driverClass("nic", nicDriver, "example.com/nic"),
		sliceOf("n-nic", nicDriver, "n", resourceapi.Device{Name: "card-0"}, resourceapi.Device{Name: "card-1"}))
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
				h.place("m0")
				next(t, "binding", h.bound)
			})
		}
	}
}
