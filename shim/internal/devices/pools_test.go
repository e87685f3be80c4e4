package devices

import (
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
)

// on returns the slice as a slice of a node. Its pool has this count of slices.
func on(node string, count int64, of *resourceapi.ResourceSlice) *resourceapi.ResourceSlice {
	if node != "" {
		of.Spec.NodeName = &node
	}
	of.Spec.Pool.ResourceSliceCount = count
	return of
}

// Any node may publish slices in the pool of another node. The device d0 of node n is planned. `got` says whether the
// in-tree allocator gives the device. The answer is the same for all slices and for the slices that it is shown.
var pools = map[string]struct {
	all   []*resourceapi.ResourceSlice
	shown []string
	part  bool
	got   bool
}{
	"of the node alone": {
		all: []*resourceapi.ResourceSlice{on("n", 1, slice("s", "gpu", "a", 1, "d0"))}, shown: []string{"s: d0"}, got: true,
	},
	"another node has a slice of it": {
		all:   []*resourceapi.ResourceSlice{on("n", 1, slice("s", "gpu", "a", 1, "d0")), on("m", 1, slice("t", "gpu", "a", 1, "d1"))},
		shown: []string{"s: d0"}, got: true,
	},
	"another node has a newer one": {
		all:   []*resourceapi.ResourceSlice{on("n", 1, slice("s", "gpu", "a", 1, "d0")), on("m", 1, slice("t", "gpu", "a", 9))},
		shown: []string{"s: d0"}, got: true,
	},
	"another node has the device too": {
		all:   []*resourceapi.ResourceSlice{on("n", 1, slice("s", "gpu", "a", 1, "d0")), on("m", 2, slice("r", "gpu", "a", 1, "d0", "d0"))},
		shown: []string{"s: d0"}, got: true,
	},
	"a slice of the node is missing": {
		all: []*resourceapi.ResourceSlice{on("n", 2, slice("s", "gpu", "a", 1, "d0"))}, shown: []string{"s: d0"}, part: true,
	},
	"another node completes it": {
		all:   []*resourceapi.ResourceSlice{on("n", 2, slice("s", "gpu", "a", 1, "d0")), on("m", 2, slice("t", "gpu", "a", 1, "d1"))},
		shown: []string{"s: d0", "t: "}, got: true,
	},
	"in part, and another node is newer": {
		all:   []*resourceapi.ResourceSlice{on("n", 2, slice("s", "gpu", "a", 1, "d0")), on("m", 2, slice("t", "gpu", "a", 2, "d1"))},
		shown: []string{"s: d0", "t: "}, part: true,
	},
	"the node itself has a newer one": {
		all:   []*resourceapi.ResourceSlice{on("n", 1, slice("s", "gpu", "a", 1, "d0")), on("n", 1, slice("t", "gpu", "a", 2, "d1"))},
		shown: []string{"t: "},
	},
}

func TestPoolsWithSlicesOfOtherNodes(t *testing.T) {
	for name, c := range pools {
		t.Run(name, func(t *testing.T) {
			p, _ := newPlan([]string{"gpu/a/d0"})
			p.node = "n"
			restricted, err := p.restrict(c.all)
			if got := shown(restricted); err != nil || !slices.Equal(got, c.shown) {
				t.Errorf("shown: %q, %v, want %q", got, err, c.shown)
			}
			for of, published := range map[string][]*resourceapi.ResourceSlice{"all": c.all, "shown": restricted} {
				if got := isGiven(t, "d0", published); got != c.got {
					t.Errorf("given of what is %s: %v", of, got)
				}
			}
			result, incompletePools := slicesByNode(c.all)
			if got := incompletePools.Has(poolOn{"gpu", "a", "n"}); got != c.part {
				t.Errorf("incomplete: %v", got)
			}
			if got := strings.Join(shown(result["n"]), ", "); c.got && got != "s: d0" {
				t.Errorf("asked about: %q", got)
			}
		})
	}
}

// isGiven returns whether the in-tree allocator gives this device on node n.
func isGiven(t *testing.T, name string, published []*resourceapi.ResourceSlice) bool {
	t.Helper()
	allocated := sets.New[structured.DeviceID]()
	for _, of := range published { // no other device of the pool may be chosen
		for i := range of.Spec.Devices {
			if of.Spec.Devices[i].Name != name {
				allocated.Insert(structured.MakeDeviceID("gpu", "a", of.Spec.Devices[i].Name))
			}
		}
	}
	result, err := inTreeAllocation(t, published, allocated, claiming(1))
	if err != nil {
		t.Fatal(err)
	}
	return len(result) == 1
}
