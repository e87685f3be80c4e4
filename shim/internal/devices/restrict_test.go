package devices

import (
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
)

func slice(name, driver, pool string, generation int64, devices ...string) *resourceapi.ResourceSlice {
	s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}}
	s.Spec = resourceapi.ResourceSliceSpec{Driver: driver, Pool: resourceapi.ResourcePool{Name: pool, Generation: generation, ResourceSliceCount: 1}}
	for _, device := range devices {
		s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{Name: device})
	}
	return s
}

// shown returns slices as "name: devices".
func shown(all []*resourceapi.ResourceSlice) (descriptions []string) {
	for _, s := range all {
		var names []string
		for i := range s.Spec.Devices {
			names = append(names, s.Spec.Devices[i].Name)
		}
		descriptions = append(descriptions, s.Name+": "+strings.Join(names, " "))
	}
	slices.Sort(descriptions)
	return descriptions
}

func TestWhatTheAllocatorSees(t *testing.T) {
	for name, c := range map[string]struct {
		plan []string
		all  []*resourceapi.ResourceSlice
		want []string
	}{
		"the planned devices in the plan's order": {
			[]string{"gpu/a/d3", "gpu/a/d1"},
			[]*resourceapi.ResourceSlice{slice("s", "gpu", "a", 1, "d0", "d1", "d2", "d3")},
			[]string{"s: d3 d1"},
		},
		"no other pool of the driver": {
			[]string{"gpu/a/d0"},
			[]*resourceapi.ResourceSlice{slice("s", "gpu", "a", 1, "d0"), slice("t", "gpu", "b", 1, "d0")},
			[]string{"s: d0"},
		},
		"all of another driver": {
			[]string{"gpu/a/d0"},
			[]*resourceapi.ResourceSlice{slice("s", "gpu", "a", 1, "d0", "d1"), slice("t", "nic", "a", 1, "n0", "n1")},
			[]string{"s: d0", "t: n0 n1"},
		},
		"all devices in the first slice of the pool, and its other slices empty": {
			[]string{"gpu/a/d2", "gpu/a/d0"},
			[]*resourceapi.ResourceSlice{slice("t", "gpu", "a", 1, "d0", "d1"), slice("s", "gpu", "a", 1, "d2", "d3")},
			[]string{"s: d2 d0", "t: "},
		},
		"nothing of an older generation": {
			[]string{"gpu/a/d0", "gpu/a/d1"},
			[]*resourceapi.ResourceSlice{slice("old", "gpu", "a", 1, "d0", "d1"), slice("new", "gpu", "a", 2, "d0")},
			[]string{"new: d0"},
		},
		"a pool's name may contain a slash": {
			[]string{"gpu/a/b/d0"},
			[]*resourceapi.ResourceSlice{slice("s", "gpu", "a/b", 1, "d0", "d1")},
			[]string{"s: d0"},
		},
		"nothing if the device is gone": {
			[]string{"gpu/a/d9"},
			[]*resourceapi.ResourceSlice{slice("s", "gpu", "a", 1, "d0")},
			[]string{"s: "},
		},
		"everything if nothing is planned": {
			nil,
			[]*resourceapi.ResourceSlice{slice("s", "gpu", "a", 1, "d0")},
			[]string{"s: d0"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := newPlan(c.plan)
			if err != nil {
				t.Fatal(err)
			}
			before := shown(c.all)
			got, err := p.restrict(c.all)
			if err != nil || !slices.Equal(shown(got), c.want) {
				t.Errorf("got %q, %v; want %q", shown(got), err, c.want)
			}
			if !slices.Equal(shown(c.all), before) {
				t.Errorf("the informer's slices were changed: %q", shown(c.all))
			}
		})
	}
}

func TestWhatAMemberThatWatchesSees(t *testing.T) {
	all := []*resourceapi.ResourceSlice{
		slice("s", "gpu", "a", 1, "d0", "d1"), slice("t", "gpu", "a", 1, "d2"), slice("u", "gpu", "b", 1, "e0"),
		slice("v", "gpu", "c", 1, "f0"), slice("w", "nic", "a", 1, "n0"),
	}
	thisNode, otherNode := "here", "there"
	for i, node := range []*string{&thisNode, &thisNode, &thisNode, &otherNode, &thisNode} {
		all[i].Spec.NodeName = node
	}
	p, _ := newPlan([]string{"gpu/a/d1"})
	p.node, p.showUnplanned = thisNode, true
	got, err := p.restrict(all)
	if want := []string{"s: d0", "t: d2 d1", "u: e0", "w: n0"}; err != nil || !slices.Equal(shown(got), want) {
		t.Errorf("%q, %v", shown(got), err)
	}
	want := []device{{"gpu", "b", "e0"}, {"gpu", "a", "d0"}, {"gpu", "a", "d2"}}
	if watched := p.shownUnplanned(all); !slices.Equal(watched, want) {
		t.Errorf("%v", watched)
	}
}

func TestWhichPlannedDevicesAreGone(t *testing.T) {
	all := []*resourceapi.ResourceSlice{
		slice("old", "gpu", "a", 1, "d0", "d7"), slice("s", "gpu", "a", 2, "d0", "d1"), slice("t", "gpu", "a", 2, "d2"),
		slice("older", "gpu", "a", 1, "d8"), slice("u", "nic", "a", 1, "d9"),
	}
	for plan, want := range map[string]string{
		"gpu/a/d0 gpu/a/d1 gpu/a/d2": "",
		"gpu/a/d0 gpu/a/d7":          "the planned device gpu/a/d7 is in no ResourceSlice",
		"gpu/a/d8 gpu/a/d9 gpu/b/d0": "the planned device gpu/a/d8 and 2 more are in no ResourceSlice",
		"nic/a/d9":                   "",
	} {
		p, err := newPlan(strings.Fields(plan))
		if err != nil {
			t.Fatal(err)
		}
		if got := describeMissing(p.missingDevices(all)); got != want {
			t.Errorf("%s: %q, want %q", plan, got, want)
		}
	}
}

func TestThePlannedDeviceIsShownWithoutOurTaint(t *testing.T) {
	s := slice("s", "gpu", "a", 1, "d0")
	s.Spec.Devices[0].Taints = []resourceapi.DeviceTaint{{Key: "broken"}, {Key: OwnedTaint}}
	p, _ := newPlan([]string{"gpu/a/d0"})
	got, err := p.restrict([]*resourceapi.ResourceSlice{s})
	if err != nil || len(got[0].Spec.Devices[0].Taints) != 1 || got[0].Spec.Devices[0].Taints[0].Key != "broken" {
		t.Errorf("%v, %v", got[0].Spec.Devices, err)
	}
	if len(s.Spec.Devices[0].Taints) != 2 {
		t.Error("the informer's slice was changed")
	}
}

func TestDevicesThatMayBeAllocatedSeveralTimesAreRefused(t *testing.T) {
	s := slice("s", "gpu", "a", 1, "d0")
	s.Spec.Devices[0].AllowMultipleAllocations = new(true)
	p, _ := newPlan([]string{"gpu/a/d0"})
	if _, err := p.restrict([]*resourceapi.ResourceSlice{s}); err == nil {
		t.Error("shown")
	}
}

// consuming returns a slice whose devices consume counters of a set: "d0-1" those of "d0".
func consuming(name string, generation int64, devices ...string) *resourceapi.ResourceSlice {
	s := slice(name, "gpu", "a", generation, devices...)
	for i := range s.Spec.Devices {
		of, _, _ := strings.Cut(s.Spec.Devices[i].Name, "-")
		halves := resource.MustParse("2")
		if of != s.Spec.Devices[i].Name {
			halves = resource.MustParse("1")
		}
		s.Spec.Devices[i].ConsumesCounters = []resourceapi.DeviceCounterConsumption{{
			CounterSet: of, Counters: map[string]resourceapi.Counter{"halves": {Value: halves}},
		}}
	}
	return s
}

func TestWhatIsShownOfDevicesThatShareCounters(t *testing.T) {
	counters := slice("c", "gpu", "a", 1)
	for _, name := range []string{"d0", "d1", "d2"} {
		counters.Spec.SharedCounters = append(counters.Spec.SharedCounters, resourceapi.CounterSet{
			Name: name, Counters: map[string]resourceapi.Counter{"halves": {Value: resource.MustParse("2")}},
		})
	}
	isWhole := func(slice *resourceapi.ResourceSlice, at int) bool {
		return !strings.Contains(slice.Spec.Devices[at].Name, "-")
	}
	all := []*resourceapi.ResourceSlice{counters, consuming("s", 1, "d0", "d0-0", "d1"), consuming("t", 1, "d1-0", "d2-1")}
	for name, c := range map[string]struct {
		allocated []device
		hasOthers bool
		watching  bool
		want      []string
	}{
		"the planned device, in no slice with counters": {nil, false, false, []string{"c: ", "s: d1", "t: "}},
		"what is allocated of the pool":                 {[]device{{"gpu", "a", "d0-0"}, {"gpu", "b", "d2-1"}}, false, false, []string{"c: ", "s: d1 d0-0", "t: "}},
		"a GPU that is allocated":                       {[]device{{"gpu", "a", "d0"}}, false, false, []string{"c: ", "s: d1 d0", "t: "}},
		"partitions for other requests, and no GPU":     {nil, true, false, []string{"c: ", "s: d1 d0-0", "t: d2-1"}},
		"nothing to watch":                              {nil, false, true, []string{"c: ", "s: ", "t: d1"}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := newPlan([]string{"gpu/a/d1"})
			if err != nil {
				t.Fatal(err)
			}
			p.allocated, p.showUnplanned, p.isGPU = sets.New(c.allocated...), c.watching, isWhole
			if c.hasOthers {
				p.otherRequests.Insert("uid/parts")
			}
			got, err := p.restrict(all)
			if err != nil || !slices.Equal(shown(got), c.want) {
				t.Errorf("got %q, %v; want %q", shown(got), err, c.want)
			}
			if len(got[0].Spec.SharedCounters) != 3 {
				t.Error("counters are not shown")
			}
			if watched := p.shownUnplanned(all); len(watched) > 0 {
				t.Errorf("watched: %v", watched)
			}
		})
	}
}

func TestTheLastLookAtOtherRequests(t *testing.T) {
	p, _ := newPlan([]string{"gpu/a/d0"})
	p.otherRequests.Insert("uid/parts")
	for request, ok := range map[string]bool{"parts": true, "parts/first": true, "gpus": false} {
		claim := claimOf("uid", "d1-0")
		claim.Status.Allocation.Devices.Results[0].Request = request
		if err := p.checkAllocation(claim); (err == nil) != ok {
			t.Errorf("%s: %v", request, err)
		}
	}
}

func TestPlansThatNameNoDevices(t *testing.T) {
	for _, device := range []string{"", "gpu", "gpu/a", "gpu//d0", "/a/d0", "gpu/a/"} {
		if _, err := newPlan([]string{device}); err == nil {
			t.Errorf("%q is read", device)
		}
	}
	if _, err := newPlan([]string{"gpu/a/d0", "gpu/a/d0"}); err == nil {
		t.Error("a device twice is read")
	}
}

func TestTheLastLook(t *testing.T) {
	for name, c := range map[string]struct {
		plan     []string
		extended bool
		results  []string
		ok       bool
	}{
		"exactly the plan": {[]string{"gpu/a/d0", "gpu/a/d1"}, true, []string{"gpu/a/d1", "gpu/a/d0"}, true},
		"fewer":            {[]string{"gpu/a/d0", "gpu/a/d1"}, true, []string{"gpu/a/d0"}, false},
		"another device":   {[]string{"gpu/a/d0"}, true, []string{"gpu/a/d1"}, false},
		"another pool":     {[]string{"gpu/a/d0"}, true, []string{"gpu/b/d0"}, false},
		"another driver":   {[]string{"gpu/a/d0"}, true, []string{"nic/a/d0"}, false},
		"an extended resource and nothing planned": {nil, true, []string{"gpu/a/d0"}, false},
		"cards by an extended resource, no GPUs":   {nil, true, []string{"nic/a/n0/card"}, true},
		"GPUs and cards by extended resources":     {[]string{"gpu/a/d0"}, true, []string{"gpu/a/d0", "nic/a/n0/card"}, true},
		"another GPU, and cards":                   {[]string{"gpu/a/d0"}, true, []string{"gpu/a/d1", "nic/a/n0/card"}, false},
		"fewer GPUs, and cards":                    {[]string{"gpu/a/d0", "gpu/a/d1"}, true, []string{"gpu/a/d0", "nic/a/n0/card"}, false},
		"the user's claim of another driver":       {[]string{"gpu/a/d0"}, false, []string{"nic/a/n0"}, true},
		"the user's claim of a planned driver":     {[]string{"gpu/a/d0"}, false, []string{"gpu/a/d1"}, false},
		"the user's claim and nothing planned":     {nil, false, []string{"nic/a/n0"}, true},
		"a device that is watched":                 {[]string{"gpu/a/d0"}, false, []string{"gpu/a/d0", "gpu/a/d1/watched"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			claim := &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}}}
			if c.extended {
				claim.Annotations = map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"}
			}
			for _, device := range c.results {
				part := strings.Split(device, "/")
				result := resourceapi.DeviceRequestAllocationResult{Driver: part[0], Pool: part[1], Device: part[2]}
				switch {
				case len(part) > 3 && part[3] == "watched":
					result.AdminAccess = new(true)
				case len(part) > 3:
					result.Request = part[3]
					claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: part[3], Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: part[3]}}}
				}
				claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results, result)
			}
			p, err := newPlan(c.plan)
			if err != nil {
				t.Fatal(err)
			}
			p.isGPUClass = func(class string) bool { return class == "gpu" }
			if err := p.checkAllocation(claim); (err == nil) != c.ok {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestRivalsShareCountersWithPlannedDevices(t *testing.T) {
	published := cache.NewSharedIndexInformer(nil, &inTreeSlice{}, 0, cache.Indexers{})
	if err := indexByPool(published); err != nil {
		t.Fatal(err)
	}
	if err := indexByPool(published); err != nil {
		t.Fatal("indexed twice:", err)
	}
	competitor := consuming("o", 1, "d0", "d0-0")
	competitor.Spec.Pool.Name = "b"
	plain := slice("p", "gpu", "a", 1, "d5")
	for _, s := range []*resourceapi.ResourceSlice{consuming("s", 1, "d0", "d0-0", "d1", "d1-0"), consuming("t", 1, "d0-1"), competitor, plain} {
		if err := published.GetIndexer().Add(toInTree(s)); err != nil {
			t.Fatal(err)
		}
	}
	v := &cycleView{published: published.GetIndexer()}
	for plan, want := range map[string]string{"gpu/a/d0": "d0-0 d0-1", "gpu/a/d1": "d1-0", "gpu/a/d5": "", "gpu/c/d0": ""} {
		p, _ := newPlan([]string{plan})
		var names []string
		for _, rival := range v.competingDevices(p) {
			names = append(names, rival.name)
		}
		slices.Sort(names)
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s: %q, want %q", plan, got, want)
		}
	}
	k := newAllocatedDevices()
	p, _ := newPlan([]string{"gpu/a/d0"})
	k.recordClaim(claimOf("one", "d1-0"))
	if !k.areFree(p, v.competingDevices(p)) {
		t.Error("not free next to a partition of another device")
	}
	k.recordClaim(claimOf("two", "d0-1"))
	if k.areFree(p, v.competingDevices(p)) {
		t.Error("free while a partition of it is allocated")
	}
}
