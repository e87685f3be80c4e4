package devices

import (
	"regexp"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// oneDriver matches a selector that only devices of one driver satisfy, unless it has an alternative.
var oneDriver = regexp.MustCompile(`^\s*device\.driver\s*==\s*(?:"([a-zA-Z0-9.-]+)"|'([a-zA-Z0-9.-]+)')\s*(?:&&|$)`)

// driversFor returns the drivers whose devices a pod may still get, or nil if it may get devices of any driver. So
// plans for devices of other drivers cost its cycle no time.
func (v *cycleView) driversFor(pod *v1.Pod) sets.Set[string] {
	drivers := sets.New[string]()
	for _, claim := range claimsOf(v.SharedDRAManager, pod) {
		if claim == nil || claim.Status.Allocation == nil && !v.addDriversOf(claim, drivers) {
			return nil
		}
	}
	for name := range RequestedResources(pod) {
		if class := v.DeviceClassResolver().GetDeviceClass(name); class != nil && !addDriver(drivers, class.Spec.Selectors) {
			return nil
		}
	}
	return drivers
}

// addDriversOf adds the drivers of a claim's requests. It returns false if a request may get devices of any driver.
func (v *cycleView) addDriversOf(claim *resourceapi.ResourceClaim, to sets.Set[string]) bool {
	add := func(name string, selectors []resourceapi.DeviceSelector) bool {
		class, err := v.DeviceClasses().Get(name)
		return err == nil && (addDriver(to, class.Spec.Selectors) || addDriver(to, selectors))
	}
	for _, request := range claim.Spec.Devices.Requests {
		if exactly := request.Exactly; exactly != nil && !add(exactly.DeviceClassName, exactly.Selectors) {
			return false
		}
		for _, subrequest := range request.FirstAvailable {
			if !add(subrequest.DeviceClassName, subrequest.Selectors) {
				return false
			}
		}
	}
	return true
}

// addDriver adds the driver that one of the selectors names. That is enough, because all selectors must match. It returns
// false if no selector names a driver.
func addDriver(to sets.Set[string], selectors []resourceapi.DeviceSelector) bool {
	for _, expression := range celExpressions(selectors) {
		match := oneDriver.FindStringSubmatch(expression)
		if match != nil && !strings.Contains(expression, "||") && !strings.Contains(expression, "?") {
			to.Insert(match[1] + match[2])
			return true
		}
	}
	return false
}
