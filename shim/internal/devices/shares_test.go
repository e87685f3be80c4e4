package devices

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

func quantity(text string) *resource.Quantity {
	if text == "" {
		return nil
	}
	parsed := resource.MustParse(text)
	return &parsed
}

// within returns a policy with a range: a minimum, a maximum and steps, each "" if it has none.
func within(standard, least, most, step string) *resourceapi.CapacityRequestPolicy {
	return &resourceapi.CapacityRequestPolicy{Default: quantity(standard), ValidRange: &resourceapi.CapacityRequestPolicyRange{
		Min: quantity(least), Max: quantity(most), Step: quantity(step),
	}}
}

func values(standard string, valid ...string) *resourceapi.CapacityRequestPolicy {
	policy := &resourceapi.CapacityRequestPolicy{Default: quantity(standard)}
	for _, text := range valid {
		policy.ValidValues = append(policy.ValidValues, *quantity(text))
	}
	return policy
}

// shared returns a slice of node n whose devices claims share: each has 80Gi.
func shared(policy *resourceapi.CapacityRequestPolicy, names ...string) *resourceapi.ResourceSlice {
	s, on := slice("s", "gpu", "a", 1, names...), "n"
	s.Spec.NodeName = &on
	for i := range s.Spec.Devices {
		s.Spec.Devices[i].AllowMultipleAllocations = new(true)
		s.Spec.Devices[i].Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: *quantity("80Gi"), RequestPolicy: policy}}
	}
	return s
}

// claiming returns a claim for GPUs with these amounts of capacity, as "memory=1Gi".
func claiming(count int64, requested ...string) *resourceapi.ResourceClaim {
	request := requestOf("r", "gpu", "")
	request.Exactly.Count = count
	if len(requested) > 0 {
		request.Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{}}
	}
	for _, text := range requested {
		name, amount, _ := strings.Cut(text, "=")
		request.Exactly.Capacity.Requests[resourceapi.QualifiedName(name)] = *quantity(amount)
	}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "ns"}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{request}
	return claim
}

// twice returns the claim with two copies of its request.
func twice(claim *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	again := claim.Spec.Devices.Requests[0]
	again.Name = "s"
	claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, again)
	return claim
}

// inTreeAllocation returns what the in-tree allocator gives to claims on node n. It gives no allocated device.
func inTreeAllocation(t *testing.T, published []*resourceapi.ResourceSlice, allocated sets.Set[structured.DeviceID], claims ...*resourceapi.ResourceClaim) ([]resourceapi.AllocationResult, error) {
	t.Helper()
	features := structured.Features{ConsumableCapacity: true, PartitionableDevices: true, DeviceTaints: true}
	cache := cel.NewCache(10, cel.Features{EnableConsumableCapacity: true})
	visible := new(slicePairs).inTree(published)
	allocator, err := structured.NewAllocator(t.Context(), features, *newAllocatedState(allocated), classes{}, visible, cache)
	if err != nil {
		t.Fatal(err)
	}
	return allocator.Allocate(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, claims)
}

// allocate asks the in-tree allocator. It returns "gpu-0=30Gi gpu-1=30Gi", or "" if it allocates nothing.
func allocate(t *testing.T, s *resourceapi.ResourceSlice, claims ...*resourceapi.ResourceClaim) ([]resourceapi.AllocationResult, string) {
	t.Helper()
	results, err := inTreeAllocation(t, []*resourceapi.ResourceSlice{s}, sets.New[structured.DeviceID](), claims...)
	if err != nil {
		return nil, ""
	}
	var shares []string
	for _, allocation := range results {
		for _, result := range allocation.Devices.Results {
			consumed := result.ConsumedCapacity["memory"]
			shares = append(shares, result.Device+"="+consumed.String())
		}
	}
	return results, strings.Join(shares, " ")
}

// The answer before planning and the allocator's result must be the same. tests/dialects/test_shares.py has the same
// amounts.
func TestWhatARequestTakes(t *testing.T) {
	steps := within("10Gi", "2Gi", "80Gi", "4Gi")
	valid := values("80Gi", "5Gi", "20Gi", "80Gi")
	for name, c := range map[string]struct {
		policy    *resourceapi.CapacityRequestPolicy
		requested string
		consumed  string // "" if no device has as much
	}{
		"no policy":                       {nil, "memory=3Gi", "3Gi"},
		"all of it":                       {nil, "memory=80Gi", "80Gi"},
		"more than all":                   {nil, "memory=81Gi", ""},
		"a policy without rules":          {&resourceapi.CapacityRequestPolicy{}, "memory=3Gi", "3Gi"},
		"nothing":                         {nil, "memory=0", "0"},
		"negative":                        {nil, "memory=-1Gi", ""},
		"another capacity":                {nil, "compute=1", ""},
		"below the range":                 {steps, "memory=1Gi", "2Gi"},
		"on a step":                       {steps, "memory=6Gi", "6Gi"},
		"between steps":                   {steps, "memory=7Gi", "10Gi"},
		"steps end below the maximum":     {steps, "memory=79Gi", ""},
		"beyond the range":                {steps, "memory=81Gi", ""},
		"beyond the maximum":              {within("2Gi", "2Gi", "40Gi", ""), "memory=41Gi", ""},
		"a range without steps":           {within("2Gi", "2Gi", "", ""), "memory=3500Mi", "3500Mi"},
		"a value":                         {valid, "memory=5Gi", "5Gi"},
		"between values":                  {valid, "memory=6Gi", "20Gi"},
		"beyond all values":               {values("5Gi", "5Gi"), "memory=6Gi", ""},
		"no int64 holds it":               {steps, "memory=99999999999Ti", ""},
		"no int64 holds it, and no steps": {nil, "memory=99999999999Ti", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, claim := shared(c.policy, "gpu-0"), claiming(1, c.requested)
			_, got := allocate(t, s, claim)
			want := ""
			if c.consumed != "" {
				want = "gpu-0=" + c.consumed
			}
			if got != want {
				t.Errorf("the allocator gives %q, want %q", got, want)
			}
			if meetsCapacity(&s.Spec.Devices[0], claim.Spec.Devices.Requests[0].Exactly.Capacity.Requests) != (c.consumed != "") {
				t.Errorf("meetsCapacity says something else than the allocator")
			}
		})
	}
}

// A request for several shares gets different devices. A pod with several such requests can't be planned, because the
// allocator may give it one device several times.
func TestHowTheAllocatorGivesShares(t *testing.T) {
	part := values("10Gi", "10Gi", "80Gi")
	for name, c := range map[string]struct {
		policy *resourceapi.CapacityRequestPolicy
		claims []*resourceapi.ResourceClaim
		want   string
	}{
		"two shares":                       {nil, []*resourceapi.ResourceClaim{claiming(2, "memory=30Gi")}, "gpu-0=30Gi gpu-1=30Gi"},
		"three shares":                     {nil, []*resourceapi.ResourceClaim{claiming(3, "memory=10Gi")}, ""},
		"two requests":                     {nil, []*resourceapi.ResourceClaim{twice(claiming(1, "memory=30Gi"))}, "gpu-0=30Gi gpu-0=30Gi"},
		"two claims":                       {nil, []*resourceapi.ResourceClaim{claiming(1, "memory=30Gi"), claiming(1, "memory=30Gi")}, "gpu-0=30Gi gpu-0=30Gi"},
		"two whole devices":                {nil, []*resourceapi.ResourceClaim{claiming(2)}, "gpu-0=80Gi gpu-1=80Gi"},
		"two claims for whole devices":     {nil, []*resourceapi.ResourceClaim{claiming(1), claiming(1)}, "gpu-0=80Gi gpu-1=80Gi"},
		"three whole devices":              {nil, []*resourceapi.ResourceClaim{claiming(3)}, ""},
		"the default is a part":            {part, []*resourceapi.ResourceClaim{claiming(2)}, "gpu-0=10Gi gpu-1=10Gi"},
		"a request that fits on no device": {nil, []*resourceapi.ResourceClaim{claiming(1, "memory=50Gi"), claiming(1, "memory=50Gi"), claiming(1, "memory=50Gi")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if _, got := allocate(t, shared(c.policy, "gpu-0", "gpu-1"), c.claims...); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestSharesAsPlannedAndOthers(t *testing.T) {
	capacities := map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: *quantity("80Gi")}, "compute": {Value: *quantity("100")}}
	for name, c := range map[string]struct {
		memory  int64
		change  func(*resourceapi.Device)
		claim   *resourceapi.ResourceClaim
		shown   string // why the device is not shown
		refusal string // why the plan's last look refuses what was allocated; "" if it does not
	}{
		"a share":                          {30, nil, claiming(1, "memory=30Gi"), "", ""},
		"less than planned":                {30, nil, claiming(1, "memory=29500Mi"), "", ""},
		"more than planned":                {30, nil, claiming(1, "memory=30721Mi"), "", "device is not planned to be shared like this: gpu/a/gpu-0"},
		"a share twice":                    {30, nil, twice(claiming(1, "memory=30Gi")), "", "not planned to be shared like this"},
		"a whole device for a share":       {30, nil, claiming(1), "", "not planned to be shared like this"},
		"a whole device":                   {0, nil, claiming(1), "", ""},
		"no longer shared":                 {30, func(d *resourceapi.Device) { d.AllowMultipleAllocations = nil }, nil, "is for one claim alone, and 30 GiB of it are planned", ""},
		"two capacities":                   {30, func(d *resourceapi.Device) { d.Capacity = capacities }, nil, "has 2 capacities that claims share", ""},
		"whole, and two capacities":        {0, func(d *resourceapi.Device) { d.Capacity = capacities }, nil, "has 2 capacities that claims share", ""},
		"whole, and of one claim":          {0, func(d *resourceapi.Device) { d.AllowMultipleAllocations, d.Capacity = nil, capacities }, claiming(1), "", ""},
		"whole, and the default is a part": {0, func(d *resourceapi.Device) { d.Capacity = shared(values("10Gi", "10Gi"), "x").Spec.Devices[0].Capacity }, nil, "a request without capacity takes a part of it", ""},
		"a share where the default is a part": {30, func(d *resourceapi.Device) {
			d.Capacity = shared(within("10Gi", "1Gi", "", "1Gi"), "x").Spec.Devices[0].Capacity
		}, claiming(1, "memory=30Gi"), "", ""},
		"rounded up by a policy that is newer": {30, func(d *resourceapi.Device) {
			d.Capacity = shared(within("40Gi", "40Gi", "", ""), "x").Spec.Devices[0].Capacity
		}, claiming(1, "memory=30Gi"), "", "not planned to be shared like this"},
	} {
		t.Run(name, func(t *testing.T) {
			s := shared(nil, "gpu-0", "gpu-1")
			if c.change != nil {
				c.change(&s.Spec.Devices[0])
			}
			p, err := newPlan([]string{"gpu/a/gpu-0"})
			p.node = "n"
			if err != nil {
				t.Fatal(err)
			}
			p.memory = c.memory
			shown, err := p.restrict([]*resourceapi.ResourceSlice{s})
			if !says(err, c.shown) {
				t.Fatalf("shown: %v", err)
			}
			if c.shown != "" {
				return
			}
			results, _ := allocate(t, shown[0], c.claim)
			if len(results) != 1 {
				t.Fatalf("%d allocations", len(results))
			}
			claim := &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{Allocation: &results[0]}}
			if err := p.checkAllocation(claim); !says(err, c.refusal) {
				t.Errorf("check: %v", err)
			}
		})
	}
}

// says returns whether the error has these words. Without words the error must be nil.
func says(err error, words string) bool {
	return err == nil && words == "" || err != nil && words != "" && strings.Contains(err.Error(), words)
}

func TestOnlyGPUsWithTheCapacitySuitARequest(t *testing.T) {
	s := shared(nil, "gpu-0", "gpu-1")
	s.Spec.Devices[1].Capacity["memory"] = resourceapi.DeviceCapacity{Value: *quantity("40Gi")}
	for requested, want := range map[string]string{"memory=30Gi": "all", "memory=50Gi": "gpu/gpu-0", "memory=90Gi": "r: no GPU of the node that matches the selectors has the capacity"} {
		wants := gpuChoice{capacity: claiming(1, requested).Spec.Devices.Requests[0].Exactly.Capacity.Requests}
		result, reason := testMatcher().findUsableGPUs(t.Context(), "r", wants, []*resourceapi.ResourceSlice{s})
		if reason == "" && result.all {
			reason = "all"
		} else if reason == "" {
			reason = strings.Join(result.names, " ")
		}
		if !strings.HasPrefix(reason, want) {
			t.Errorf("%s: %q", requested, reason)
		}
	}
}
