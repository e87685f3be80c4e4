package devices

import (
	"regexp"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// oneDriver matches a selector that only devices of one driver satisfy, unless it has an alternative.
var oneDriver = regexp.MustCompile(`^\s*device\.driver\s*==\s*(?:"([a-zA-Z0-9.-]+)"|'([a-zA-Z0-9.-]+)')\s*(?:&&|$)`)

// drivers returns the drivers whose devices a pod may still get, or nil if they may be any. Plans for devices of other
// drivers are not its concern, and must cost it no time.
func (v *view) drivers(pod *v1.Pod) sets.Set[string] {
	found := sets.New[string]()
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil
		}
		if name == nil {
			continue // this pod needs none
		}
		claim, err := v.SharedDRAManager.ResourceClaims().Get(pod.Namespace, *name)
		if err != nil {
			return nil
		}
		if claim.Status.Allocation == nil && !v.addDriversOf(claim, found) {
			return nil
		}
	}
	for _, containers := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			for name := range containers[i].Resources.Requests {
				if class := v.DeviceClassResolver().GetDeviceClass(name); class != nil && !addDriver(found, class.Spec.Selectors) {
					return nil
				}
			}
		}
	}
	return found
}

// addDriversOf adds the drivers of a claim's requests. It returns false if they may be any.
func (v *view) addDriversOf(claim *resourceapi.ResourceClaim, to sets.Set[string]) bool {
	add := func(name string, selectors []resourceapi.DeviceSelector) bool {
		class, err := v.DeviceClasses().Get(name)
		return err == nil && (addDriver(to, class.Spec.Selectors) || addDriver(to, selectors))
	}
	for _, request := range claim.Spec.Devices.Requests {
		if exactly := request.Exactly; exactly != nil && !add(exactly.DeviceClassName, exactly.Selectors) {
			return false
		}
		for _, some := range request.FirstAvailable {
			if !add(some.DeviceClassName, some.Selectors) {
				return false
			}
		}
	}
	return true
}

// addDriver adds the driver that one of the selectors names. All of them must match. It returns false if none names one.
func addDriver(to sets.Set[string], selectors []resourceapi.DeviceSelector) bool {
	for _, expression := range expressions(selectors) {
		named := oneDriver.FindStringSubmatch(expression)
		if named != nil && !strings.Contains(expression, "||") && !strings.Contains(expression, "?") {
			to.Insert(named[1] + named[2])
			return true
		}
	}
	return false
}
