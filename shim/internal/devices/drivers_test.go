package devices

import (
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
	fwk "k8s.io/kube-scheduler/framework"
)

// driverClasses is a DRA manager with classes whose names are their selectors.
type driverClasses struct{ *objects }

func (driverClasses) DeviceClasses() fwk.DeviceClassLister { return classesBySelector{} }

func (driverClasses) DeviceClassResolver() fwk.DeviceClassResolver { return classesBySelector{} }

type classesBySelector struct{}

func (classesBySelector) List() ([]*resourceapi.DeviceClass, error) { return nil, nil }

func (classesBySelector) Get(name string) (*resourceapi.DeviceClass, error) {
	if name == "gone" {
		return nil, fmt.Errorf("no class")
	}
	return &resourceapi.DeviceClass{Spec: resourceapi.DeviceClassSpec{Selectors: celOf(name)}}, nil
}

func (c classesBySelector) GetDeviceClass(name v1.ResourceName) *resourceapi.DeviceClass {
	if name != "example.com/card" {
		return nil
	}
	class, _ := c.Get("device.driver == 'card'")
	return class
}

func celOf(expression string) []resourceapi.DeviceSelector {
	return []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
}

func TestThePlansThatMatterToAPodAreThoseOfItsDrivers(t *testing.T) {
	exactly := func(class, selector string) []resourceapi.DeviceRequest {
		return []resourceapi.DeviceRequest{{Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class, Selectors: celOf(selector)}}}
	}
	resources := v1.ResourceList{"cpu": {}}
	for name, c := range map[string]struct {
		requests  []resourceapi.DeviceRequest
		extended  v1.ResourceList
		allocated bool
		want      []string // nil: any
	}{
		"its class names the driver":  {exactly(`device.driver == "gpu.example.com"`, "true"), resources, false, []string{"gpu.example.com"}},
		"and says more":               {exactly(` device.driver=='gpu' && device.attributes['gpu'].type == 'mig'`, "true"), resources, false, []string{"gpu"}},
		"the request names it":        {exactly("true", "device.driver == 'nic'"), resources, false, []string{"nic"}},
		"there is an alternative":     {exactly("device.driver == 'a' && true || true", "true"), resources, false, nil},
		"there is a condition":        {exactly("device.driver == 'a' && false ? true : true", "true"), resources, false, nil},
		"it is another driver than a": {exactly("!(device.driver == 'a')", "true"), resources, false, nil},
		"it is part of a comparison":  {exactly("device.driver == 'a' == false", "true"), resources, false, nil},
		"no driver is named":          {exactly("true", "true"), resources, false, nil},
		"the class is gone":           {exactly("gone", "device.driver == 'a'"), resources, false, nil},
		"the claim is allocated":      {exactly("true", "true"), resources, true, []string{}},
		"it has an extended resource": {nil, v1.ResourceList{"example.com/card": {}}, false, []string{"card"}},
		"one of several subrequests": {[]resourceapi.DeviceRequest{{FirstAvailable: []resourceapi.DeviceSubRequest{
			{DeviceClassName: "device.driver == 'a'"}, {DeviceClassName: "device.driver == 'b'"},
		}}}, resources, false, []string{"a", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}}
			claim.Spec.Devices.Requests = c.requests
			if c.allocated {
				claim.Status.Allocation = &resourceapi.AllocationResult{}
			}
			claimName := "c"
			pod := &v1.Pod{Spec: v1.PodSpec{
				ResourceClaims: []v1.PodResourceClaim{{Name: "c", ResourceClaimName: &claimName}},
				Containers:     []v1.Container{{Resources: v1.ResourceRequirements{Requests: c.extended}}},
			}}
			v := &cycleView{SharedDRAManager: driverClasses{&objects{claims: []*resourceapi.ResourceClaim{claim}}}}
			got := v.driversFor(pod)
			if (got == nil) != (c.want == nil) || !slices.Equal(sets.List(got), c.want) && len(c.want) > 0 || len(got) != len(c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
			var queried sets.Set[string]
			p := &Plugin{view: v, memberOf: func(fwk.CycleState) *Member { return nil }}
			p.plannedForOthers = func(_ fwk.CycleState, _ *v1.Pod, drivers sets.Set[string]) []string {
				queried = drivers
				return nil
			}
			cycle, err := p.cycleToShow(nil, pod)
			if err != nil {
				t.Fatal(err)
			}
			cycle.addPlannedForOthers(newAllocatedState(sets.New[structured.DeviceID]()))
			if !queried.Equal(got) || (queried == nil) != (got == nil) {
				t.Errorf("asked for devices of %v", queried)
			}
		})
	}
}
