package devices

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Some devices may be in several claims, and each claim takes a share of the memory (DRAConsumableCapacity). The planner
// counts shares in GiB. The allocator counts them exactly, and rounds up what a request asks for.

const gib = 1 << 30

// isShared returns whether several claims may have the device.
func isShared(device *resourceapi.Device) bool {
	return device.AllowMultipleAllocations != nil && *device.AllowMultipleAllocations
}

// unlike returns why the device can't be given as planned, or "". A plan of whole devices must not become one of shares,
// and the other way round: the driver may publish a device in another way by now.
func (p *plan) unlike(device *resourceapi.Device) string {
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

// isShare returns whether a planned device is allocated as planned: whole, or no more of it than its share.
func (p *plan) isShare(result *resourceapi.DeviceRequestAllocationResult) bool {
	if p.memory == 0 {
		return true // unlike has seen that the request takes all
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

// suits returns whether a device that is wholly free meets a request for capacity, as the allocator has it.
func suits(device *resourceapi.Device, asked map[resourceapi.QualifiedName]resource.Quantity) bool {
	for name, amount := range asked {
		capacity, found := device.Capacity[name]
		if !found {
			return false
		}
		if taken := rounded(amount, capacity.RequestPolicy); taken == nil || taken.Cmp(capacity.Value) > 0 {
			return false
		}
	}
	return true
}

// rounded returns what a request takes that asks for this much, or nil if the policy allows none of that.
func rounded(asked resource.Quantity, policy *resourceapi.CapacityRequestPolicy) *resource.Quantity {
	switch {
	case asked.Sign() < 0:
		return nil
	case policy == nil:
		return &asked
	case policy.ValidRange != nil && policy.ValidRange.Min != nil:
		within := policy.ValidRange
		if asked.Cmp(*within.Min) < 0 {
			asked = *within.Min
		} else if step := within.Step; step != nil && step.Value() > 0 {
			least := within.Min.Value()
			if steps, ok := stepsUp(asked, least, step.Value()); ok {
				asked = *resource.NewQuantity(least+steps*step.Value(), step.Format)
			} else {
				return nil
			}
		}
		if within.Max != nil && asked.Cmp(*within.Max) > 0 {
			return nil
		}
		return &asked
	case len(policy.ValidValues) > 0:
		for i := range policy.ValidValues {
			if asked.Cmp(policy.ValidValues[i]) <= 0 {
				return &policy.ValidValues[i]
			}
		}
		return nil
	}
	return &asked
}

// stepsUp returns how many steps above the least value reach what is asked for. It returns false if that is more than an
// int64 holds, which the allocator refuses too.
func stepsUp(asked resource.Quantity, least, step int64) (int64, bool) {
	const most = 1 << 62
	if asked.CmpInt64(most) > 0 || least < 0 || step > most-least {
		return 0, false
	}
	steps := (asked.Value() - least) / step
	if (asked.Value()-least)%step != 0 {
		steps++
	}
	return steps, steps <= (most-least)/step
}
