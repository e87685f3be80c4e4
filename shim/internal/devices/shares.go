package devices

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Some devices may be in several claims, and each claim takes a share of the memory (DRAConsumableCapacity). The planner
// counts shares in GiB. The allocator counts bytes, and rounds up the amount of a request.

const gib = 1 << 30

// isShared returns whether several claims may have the device.
func isShared(device *resourceapi.Device) bool {
	return device.AllowMultipleAllocations != nil && *device.AllowMultipleAllocations
}

// whyNotAsPlanned returns why the device can't be allocated as planned, or "". A plan of whole devices must not become a
// plan of shares, and the other way round: the driver may publish the device differently by now.
func (p *plan) whyNotAsPlanned(device *resourceapi.Device) string {
	switch {
	case p.memory > 0 && !isShared(device):
		return fmt.Sprintf("is for one claim alone, and %d GiB of it are planned", p.memory)
	case isShared(device) && len(device.Capacity) != 1:
		return fmt.Sprintf("has %d capacities that claims share; one alone can be planned", len(device.Capacity))
	case p.memory == 0 && isShared(device) && !isTakenWhole(device):
		return "is planned whole, and a request without capacity takes a part of it"
	}
	return ""
}

// isTakenWhole returns whether a request without capacity takes all of the device.
func isTakenWhole(device *resourceapi.Device) bool {
	for _, capacity := range device.Capacity {
		if policy := capacity.RequestPolicy; policy != nil && policy.Default != nil && policy.Default.Cmp(capacity.Value) < 0 {
			return false
		}
	}
	return true
}

// isWithinShare returns whether a planned device is allocated as planned: whole, or no more of it than its share.
func (p *plan) isWithinShare(result *resourceapi.DeviceRequestAllocationResult) bool {
	if p.memory == 0 {
		return true // whyNotAsPlanned has checked that the request takes the whole device
	}
	if result.ShareID == nil || len(result.ConsumedCapacity) != 1 {
		return false
	}
	for _, consumed := range result.ConsumedCapacity {
		if consumed.CmpInt64(p.memory*gib) > 0 {
			return false
		}
	}
	return true
}

// meetsCapacity returns whether a completely free device has the requested capacity, by the allocator's rules.
func meetsCapacity(device *resourceapi.Device, requested map[resourceapi.QualifiedName]resource.Quantity) bool {
	for name, amount := range requested {
		capacity, ok := device.Capacity[name]
		if !ok {
			return false
		}
		if consumed := roundUp(amount, capacity.RequestPolicy); consumed == nil || consumed.Cmp(capacity.Value) > 0 {
			return false
		}
	}
	return true
}

// roundUp returns the quantity that a request for this quantity consumes, or nil if the policy allows none.
func roundUp(quantity resource.Quantity, policy *resourceapi.CapacityRequestPolicy) *resource.Quantity {
	switch {
	case quantity.Sign() < 0:
		return nil
	case policy == nil:
		return &quantity
	case policy.ValidRange != nil && policy.ValidRange.Min != nil:
		validRange := policy.ValidRange
		if quantity.Cmp(*validRange.Min) < 0 {
			quantity = *validRange.Min
		} else if step := validRange.Step; step != nil && step.Value() > 0 {
			minimum := validRange.Min.Value()
			if steps, ok := stepsUp(quantity, minimum, step.Value()); ok {
				quantity = *resource.NewQuantity(minimum+steps*step.Value(), step.Format)
			} else {
				return nil
			}
		}
		if validRange.Max != nil && quantity.Cmp(*validRange.Max) > 0 {
			return nil
		}
		return &quantity
	case len(policy.ValidValues) > 0:
		for i := range policy.ValidValues {
			if quantity.Cmp(policy.ValidValues[i]) <= 0 {
				return &policy.ValidValues[i]
			}
		}
		return nil
	}
	return &quantity
}

// stepsUp returns the number of steps from the minimum up to the quantity. It returns false if the result does not fit
// into an int64; the allocator refuses such a request too.
func stepsUp(quantity resource.Quantity, minimum, step int64) (int64, bool) {
	const limit = 1 << 62
	if quantity.CmpInt64(limit) > 0 || minimum < 0 || step > limit-minimum {
		return 0, false
	}
	steps := (quantity.Value() - minimum) / step
	if (quantity.Value()-minimum)%step != 0 {
		steps++
	}
	return steps, steps <= (limit-minimum)/step
}
