package devices

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func claimOf(uid string, devices ...string) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}}
	if len(devices) > 0 {
		claim.Status.Allocation = &resourceapi.AllocationResult{}
	}
	for _, name := range devices {
		claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Driver: "gpu", Pool: "a", Device: name})
	}
	return claim
}

// A claim for an extended resource is signalled under a temporary UID, created, written, and seen, in this order or
// with the informer first. At no step between Reserve and the end of the claim is its device free.
func TestADeviceIsTakenFromReserveToTheEndOfItsClaim(t *testing.T) {
	signal := func(k *allocatedDevices) { k.recordSignalled("temporary", claimOf("temporary", "d0")) }
	created := func(k *allocatedDevices) { k.recordClaim(claimOf("real")) }
	written := func(k *allocatedDevices) { k.recordWritten(claimOf("real", "d0")) }
	observed := func(k *allocatedDevices) { k.recordClaim(claimOf("real", "d0")) }
	over := func(k *allocatedDevices) { k.forgetSignalled("temporary") }
	for name, steps := range map[string][]func(*allocatedDevices){
		"the informer comes last":       {signal, written, over, created, observed},
		"it shows the new claim first":  {signal, created, written, over, observed},
		"it shows the allocation first": {signal, created, observed, written, over},
		"it shows the claim twice":      {signal, created, written, observed, observed, over},
	} {
		t.Run(name, func(t *testing.T) {
			k := newAllocatedDevices()
			p, err := newPlan([]string{"gpu/a/d0"})
			if err != nil || !k.areFree(p, nil) {
				t.Fatal(err)
			}
			for i, step := range steps {
				step(k)
				if k.areFree(p, nil) {
					t.Fatalf("free after step %d", i)
				}
			}
			k.recordClaim(claimOf("real"))
			if !k.areFree(p, nil) {
				t.Error("not free after the claim was deallocated")
			}
		})
	}
}

func TestAClaimMadeAgainUnderItsNameIsAnotherOne(t *testing.T) {
	k := newAllocatedDevices()
	p, _ := newPlan([]string{"gpu/a/d0"})
	k.recordClaim(claimOf("one", "d0"))
	k.updateClaim(claimOf("one", "d0"), claimOf("two", "d1"))
	if !k.areFree(p, nil) {
		t.Error("not free after its claim is gone")
	}
}

func TestADeviceIsFreeWhenAllThatHoldItEnd(t *testing.T) {
	k := newAllocatedDevices()
	p, _ := newPlan([]string{"gpu/a/d0"})
	k.recordSignalled("one", claimOf("one", "d0", "d1"))
	k.recordClaim(claimOf("two", "d0"))
	k.forgetSignalled("one")
	if k.areFree(p, nil) {
		t.Error("free while another claim has it")
	}
	k.recordClaim(claimOf("two", "d1"))
	if !k.areFree(p, nil) {
		t.Error("not free after its claim has another device")
	}
}
