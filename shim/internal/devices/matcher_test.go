package devices

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
)

// modelled returns a slice of the node, whose devices have these models.
func modelled(driver string, models ...string) *resourceapi.ResourceSlice {
	s := slice(driver, driver, "n", 1)
	s.UID, s.ResourceVersion = types.UID(driver), "1"
	for i := range models {
		s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{
			Name:       fmt.Sprintf("d%d", i),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"model": {StringValue: &models[i]}},
		})
	}
	return s
}

func testMatcher() *matcher {
	return newMatcher(feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate))
}

func TestWhichNodesSuitARequest(t *testing.T) {
	const isGPU = "device.driver == 'gpu'"
	numbers := "[" + strings.Repeat("1, ", 50) + "1]"
	for name, c := range map[string]struct {
		selectors []string
		node      []*resourceapi.ResourceSlice
		why       string // or the GPUs, if they are not all
	}{
		"without selectors": {nil, []*resourceapi.ResourceSlice{modelled("gpu", "a", "b")}, ""},
		"all match":         {[]string{"device.attributes['gpu'].model == 'a'"}, []*resourceapi.ResourceSlice{modelled("gpu", "a", "a")}, ""},
		"some match": {
			[]string{"device.attributes['gpu'].model == 'a'"}, []*resourceapi.ResourceSlice{modelled("gpu", "a", "b", "a")},
			"gpu/d0 gpu/d2",
		},
		"none matches": {
			[]string{"device.attributes['gpu'].model == 'c'"}, []*resourceapi.ResourceSlice{modelled("gpu", "a", "b")},
			"claim c: no GPU of the node matches the selectors",
		},
		"all of several must be satisfied": {
			[]string{"device.attributes['gpu'].model != 'c'", "device.attributes['gpu'].model != 'a'"}, []*resourceapi.ResourceSlice{modelled("gpu", "a", "a")},
			"claim c: no GPU of the node matches the selectors",
		},
		"no slices":      {nil, nil, "claim c: the node has no GPUs of DeviceClass class"},
		"another driver": {nil, []*resourceapi.ResourceSlice{modelled("nic", "a")}, "claim c: the node has no GPUs of DeviceClass class"},
		"devices of another driver are not looked at": {
			[]string{"device.attributes['gpu'].model == 'a'"}, []*resourceapi.ResourceSlice{modelled("nic", "a"), modelled("gpu", "a")}, "",
		},
		"an attribute that is not there": {[]string{"device.attributes['gpu'].speed == 1"}, []*resourceapi.ResourceSlice{modelled("gpu", "a")}, "claim c: a selector can't be evaluated: no such key: speed"},
		"no CEL":                         {[]string{"device.model ="}, []*resourceapi.ResourceSlice{modelled("gpu", "a")}, "claim c: a selector can't be evaluated: compilation failed"},
		"it costs too much": {
			[]string{numbers + ".all(x, " + numbers + ".all(y, x == y))"}, []*resourceapi.ResourceSlice{modelled("gpu", "a")},
			"claim c: a selector can't be evaluated: operation cancelled: actual cost limit exceeded",
		},
	} {
		t.Run(name, func(t *testing.T) {
			wants := gpuChoice{class: "class", counted: []string{isGPU}, wanted: append([]string{isGPU}, c.selectors...)}
			found, why := testMatcher().usable(t.Context(), "claim c", wants, c.node)
			if why == "" && !found.all {
				why = strings.Join(found.names, " ")
			}
			if !strings.HasPrefix(why, c.why) || why != "" && c.why == "" {
				t.Errorf("got %q", why)
			}
		})
	}
}

func TestGPUsHaveTheirPoolInTheirNamesOnlyIfTheDriverHasSeveral(t *testing.T) {
	wants := gpuChoice{counted: []string{"device.driver != 'nic' && device.attributes[device.driver].model != 'no GPU'"}}
	in := func(pool string, s *resourceapi.ResourceSlice) *resourceapi.ResourceSlice {
		s.Spec.Pool.Name, s.UID = pool, types.UID(pool+s.Spec.Driver)
		return s
	}
	for name, c := range map[string]struct {
		node []*resourceapi.ResourceSlice
		want string
	}{
		"one pool":                      {[]*resourceapi.ResourceSlice{in("p", modelled("gpu", "a")), in("p", modelled("nic", "a"))}, "gpu/d0"},
		"a pool for each driver":        {[]*resourceapi.ResourceSlice{in("p", modelled("gpu", "a")), in("q", modelled("big", "a"))}, "big/d0 gpu/d0"},
		"two pools":                     {[]*resourceapi.ResourceSlice{in("p", modelled("gpu", "a")), in("q", modelled("gpu", "a"))}, "gpu/p/d0 gpu/q/d0"},
		"a second pool without GPUs":    {[]*resourceapi.ResourceSlice{in("p", modelled("gpu", "a")), in("q", modelled("gpu", "no GPU"))}, "gpu/d0"},
		"a second pool with other ones": {[]*resourceapi.ResourceSlice{in("p", modelled("gpu", "a", "no GPU")), in("q", modelled("gpu", "no GPU", "a"))}, "gpu/p/d0 gpu/q/d1"},
	} {
		t.Run(name, func(t *testing.T) {
			found, why := testMatcher().usable(t.Context(), "r", wants, c.node)
			if got := strings.Join(found.names, " "); got != c.want || why != "" {
				t.Errorf("got %q, %q", got, why)
			}
		})
	}
}

func TestASliceIsEvaluatedAgainWhenItChanges(t *testing.T) {
	m := testMatcher()
	wants := gpuChoice{counted: []string{"device.driver == 'gpu'"}, wanted: []string{"device.attributes['gpu'].model == 'a'"}}
	before, after := modelled("gpu", "b"), modelled("gpu", "a")
	after.ResourceVersion = "2"
	if _, why := m.usable(t.Context(), "r", wants, []*resourceapi.ResourceSlice{before}); why == "" {
		t.Error("the first version suits")
	}
	if _, why := m.usable(t.Context(), "r", wants, []*resourceapi.ResourceSlice{after}); why != "" {
		t.Errorf("the second version: %s", why)
	}
}

func TestATaintedGPUIsForRequestsThatTolerateIt(t *testing.T) {
	taint := func(key string, effect resourceapi.DeviceTaintEffect) []resourceapi.DeviceTaint {
		return []resourceapi.DeviceTaint{{Key: key, Value: "v", Effect: effect}}
	}
	s := modelled("gpu", "a", "a", "b", "a")
	s.Spec.Devices[0].Taints = taint("worn", resourceapi.DeviceTaintEffectNoSchedule)
	s.Spec.Devices[1].Taints = taint("note", resourceapi.DeviceTaintEffectNone)
	s.Spec.Devices[2].Taints = taint("worn", resourceapi.DeviceTaintEffectNoExecute)
	s.Spec.Devices[3].Taints = taint(Owned, resourceapi.DeviceTaintEffectNoSchedule)
	worn := resourceapi.DeviceToleration{Key: "worn", Operator: resourceapi.DeviceTolerationOpExists}
	once := worn
	once.Effect = resourceapi.DeviceTaintEffectNoSchedule
	for name, c := range map[string]struct {
		tolerations []resourceapi.DeviceToleration
		model       string
		want        string
		all         bool
	}{
		"none tolerated":               {nil, "", "gpu/d1 gpu/d3", true},
		"all tolerated":                {[]resourceapi.DeviceToleration{worn}, "", "gpu/d0 gpu/d1 gpu/d2 gpu/d3", false},
		"one effect tolerated":         {[]resourceapi.DeviceToleration{once}, "", "gpu/d0 gpu/d1 gpu/d3", false},
		"another key":                  {[]resourceapi.DeviceToleration{{Key: "other", Operator: resourceapi.DeviceTolerationOpExists}}, "", "gpu/d1 gpu/d3", true},
		"the selector leaves out some": {[]resourceapi.DeviceToleration{worn}, "b", "gpu/d2", false},
		"all that match have taints":   {nil, "b", "r: all GPUs of the node that match the selectors have taints", false},
	} {
		t.Run(name, func(t *testing.T) {
			wants := gpuChoice{tolerations: c.tolerations}
			if c.model != "" {
				wants.wanted = []string{"device.attributes['gpu'].model == '" + c.model + "'"}
			}
			found, why := testMatcher().usable(t.Context(), "r", wants, []*resourceapi.ResourceSlice{s})
			if got := why; got == "" && (strings.Join(found.names, " ") != c.want || found.all != c.all) || got != "" && got != c.want {
				t.Errorf("got %v %q", found, why)
			}
		})
	}
}

func TestRequestsOfAPodMustHaveTheSameGPUsToChooseFrom(t *testing.T) {
	a := &Asking{matcher: testMatcher()}
	request := func(where string, models ...string) gpuRequest {
		r := gpuRequest{where: where}
		for _, model := range models {
			r.subrequests = append(r.subrequests, gpuChoice{wanted: []string{"device.attributes['gpu'].model != '" + model + "'"}})
		}
		return r
	}
	for name, c := range map[string]struct {
		requests []gpuRequest
		why      string
		some     [][]string
	}{
		"equal":             {[]gpuRequest{request("r", "b"), request("s", "b")}, "", [][]string{{"gpu/d0", "gpu/d2"}}},
		"different":         {[]gpuRequest{request("r", "a"), request("s", "b")}, "r may have other GPUs of the node than s; such nodes are not planned yet", [][]string{nil}},
		"none":              {nil, "", [][]string{nil}},
		"subrequests":       {[]gpuRequest{request("r", "b", "c", "a")}, "", [][]string{{"gpu/d0", "gpu/d2"}, nil, {"gpu/d1"}}},
		"fewer subrequests": {[]gpuRequest{request("r", "b", "a"), request("s", "b")}, "", [][]string{{"gpu/d0", "gpu/d2"}, {}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := modelled("gpu", "a", "b", "a")
			s.Spec.Pool.Name = "node"
			asked, state := &askedGPUs{requests: c.requests, slices: map[string][]*resourceapi.ResourceSlice{"node": {s}}}, framework.NewCycleState()
			state.Write(askedKey, asked)
			why := a.narrow(t.Context(), asked, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}})
			if some := SomeOf(state, "node"); why != c.why || !reflect.DeepEqual(some, c.some) {
				t.Errorf("got %q, %#v", why, some)
			}
			if other := SomeOf(state, "other"); other[0] != nil {
				t.Errorf("another node: %v", other)
			}
		})
	}
}

// A user may write a selector that fails on all devices of a large cluster.
func TestOneErrorOfASelectorIsRemembered(t *testing.T) {
	m := testMatcher()
	fails := m.matches("device.attributes['gpu'].speed == 1")
	first, second := modelled("gpu", "a", "b"), modelled("gpu", "c")
	second.UID = "another"
	want := fails.on(t.Context(), first).errs[0]
	for _, got := range []error{fails.on(t.Context(), first).errs[1], fails.on(t.Context(), second).errs[0]} {
		if want == nil || got != want {
			t.Errorf("got %v, not the first error %v", got, want)
		}
	}
}

func TestOnlyTheNewestSlicesOfAPoolCount(t *testing.T) {
	node := "n"
	old, current, shared := slice("s", "gpu", "a", 1), slice("t", "gpu", "a", 2), slice("u", "gpu", "b", 1)
	old.Spec.NodeName, current.Spec.NodeName = &node, &node
	shared.Spec.Pool.ResourceSliceCount = 2
	found, partial := byNode([]*resourceapi.ResourceSlice{old, current, shared})
	if len(found) != 2 || len(found["n"]) != 1 || found["n"][0].Name != "t" || len(found[""]) != 1 {
		t.Errorf("got %v", found)
	}
	if of := (poolOn{driver: "gpu", pool: "b"}); len(partial) != 1 || !partial.Has(of) {
		t.Errorf("missing slices: %v", partial)
	}
}

// The allocator gives all devices that match, or none: one that is tainted, or that it sees next to the GPUs, counts too.
func TestWhichNodesSuitARequestForAllDevices(t *testing.T) {
	const isGPU, isA = "device.driver == 'gpu'", "device.attributes['gpu'].model == 'a'"
	worn := resourceapi.DeviceToleration{Key: "worn", Operator: resourceapi.DeviceTolerationOpExists}
	many := slices.Repeat([]string{"a"}, 33)
	for name, c := range map[string]struct {
		wanted      []string
		tolerations []resourceapi.DeviceToleration
		models      []string
		change      func(*resourceapi.ResourceSlice, *askedGPUs)
		why         string
		some        [][]string
	}{
		"all GPUs":              {[]string{isGPU}, nil, []string{"a", "b"}, nil, "", [][]string{{"gpu/d0", "gpu/d1"}}},
		"those that match":      {[]string{isGPU, isA}, nil, []string{"a", "b", "a"}, nil, "", [][]string{{"gpu/d0", "gpu/d2"}}},
		"none":                  {[]string{isGPU, isA}, nil, []string{"b"}, nil, "r: no GPU of the node matches the selectors", [][]string{nil}},
		"one that has a taint":  {[]string{isGPU}, nil, []string{"a", "worn"}, nil, "r: allocationMode All, and GPU d1 of the node has a taint", [][]string{nil}},
		"a taint of another":    {[]string{isGPU, isA}, nil, []string{"a", "worn"}, nil, "", [][]string{{"gpu/d0"}}},
		"a taint is tolerated":  {[]string{isGPU}, []resourceapi.DeviceToleration{worn}, []string{"a", "worn"}, nil, "", [][]string{{"gpu/d0", "gpu/d1"}}},
		"more than a claim has": {[]string{isGPU}, nil, many, nil, "r: allocationMode All matches 33 GPUs of the node; a claim may have 32", [][]string{nil}},
		"another driver's too": {nil, nil, []string{"a"}, func(_ *resourceapi.ResourceSlice, asked *askedGPUs) {
			asked.slices["node"] = append(asked.slices["node"], modelled("nic", "x"))
		}, "r: allocationMode All, and device d0 of nic matches that is no GPU by its DeviceClass", [][]string{nil}},
		"a selector fails on another driver's": {[]string{"device.attributes['gpu'].model == 'a'"}, nil, []string{"a"}, func(_ *resourceapi.ResourceSlice, asked *askedGPUs) {
			asked.slices["node"] = append(asked.slices["node"], modelled("nic", "x"))
		}, "r: allocationMode All: a selector can't be evaluated", [][]string{nil}},
		"another driver's do not match": {[]string{isGPU}, nil, []string{"a"}, func(_ *resourceapi.ResourceSlice, asked *askedGPUs) {
			asked.slices["node"] = append(asked.slices["node"], modelled("nic", "x"))
		}, "", [][]string{{"gpu/d0"}}},
		"devices of no single node": {[]string{isGPU}, nil, []string{"a"}, func(_ *resourceapi.ResourceSlice, asked *askedGPUs) {
			asked.slices[""] = append(asked.slices[""], modelled("gpu", "x"))
		}, "r: allocationMode All, and device d0 of gpu belongs to no single node", [][]string{nil}},
		"a pool is published in part": {[]string{isGPU}, nil, []string{"a"}, func(s *resourceapi.ResourceSlice, asked *askedGPUs) {
			asked.partial.Insert(poolOf(s))
		}, "r: allocationMode All, and slices of pool node of gpu are missing", [][]string{nil}},
	} {
		t.Run(name, func(t *testing.T) {
			s := modelled("gpu", c.models...)
			s.Spec.Pool.Name = "node"
			for i := range s.Spec.Devices {
				if c.models[i] == "worn" {
					s.Spec.Devices[i].Taints = []resourceapi.DeviceTaint{{Key: "worn", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
				}
			}
			choice := gpuChoice{class: "class", counted: []string{isGPU}, wanted: c.wanted, tolerations: c.tolerations, every: true}
			asked := &askedGPUs{
				requests: []gpuRequest{{where: "r", subrequests: []gpuChoice{choice}}},
				slices:   map[string][]*resourceapi.ResourceSlice{"node": {s}}, partial: sets.New[poolOn](),
			}
			if c.change != nil {
				c.change(s, asked)
			}
			state := framework.NewCycleState()
			state.Write(askedKey, asked)
			why := (&Asking{matcher: testMatcher()}).narrow(t.Context(), asked, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}})
			if !strings.HasPrefix(why, c.why) || why != "" && c.why == "" {
				t.Errorf("got %q", why)
			}
			if some := SomeOf(state, "node"); !reflect.DeepEqual(some, c.some) {
				t.Errorf("got %q", some)
			}
		})
	}
}

func TestANodeWithTooManyGPUsIsRefused(t *testing.T) {
	models := slices.Repeat([]string{"a"}, maxOffered+1)
	wants := gpuChoice{class: "class", counted: []string{"true"}}
	_, why := testMatcher().usable(t.Context(), "claim c", wants, []*resourceapi.ResourceSlice{modelled("gpu", models...)})
	if why != "claim c: the node has more than 1024 GPUs of DeviceClass class" {
		t.Errorf("got %q", why)
	}
	if _, why = testMatcher().usable(t.Context(), "claim c", wants, []*resourceapi.ResourceSlice{modelled("gpu", models[1:]...)}); why != "" {
		t.Errorf("got %q", why)
	}
}

func TestDevicesAreNotLookedAtWithoutTime(t *testing.T) {
	m, wants := testMatcher(), gpuChoice{class: "class", counted: []string{"true"}}
	node := []*resourceapi.ResourceSlice{modelled("gpu", "a", "b")}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, why := m.usable(ctx, "claim c", wants, node); why != "claim c: to look at the devices of the node takes too long" {
		t.Errorf("got %q", why)
	}
	if found, why := m.usable(t.Context(), "claim c", wants, node); why != "" || len(found.names) != 2 {
		t.Errorf("got %v, %q: what was not looked at is remembered", found, why)
	}
}

// ending is a context that ends once it has been asked so often.
type ending struct {
	context.Context
	checks int
}

func (e *ending) Err() error {
	if e.checks--; e.checks < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

func TestGPUsAreNotTakenForOthersWhenTimeEnds(t *testing.T) {
	node := []*resourceapi.ResourceSlice{modelled("gpu", "a", "b"), modelled("gpu", "c")}
	wants := gpuChoice{class: "class", counted: []string{"true"}, wanted: []string{"true", "1 == 1"}}
	late := 0
	for checks := 0; ; checks++ {
		found, why := testMatcher().usable(&ending{t.Context(), checks}, "claim c", wants, node)
		if why == "" {
			if len(found.names) != 3 || late < 4 {
				t.Errorf("after %d checks: %v, %d times late", checks, found.names, late)
			}
			return
		}
		if late++; why != "claim c: to look at the devices of the node takes too long" {
			t.Fatalf("after %d checks: %q", checks, why)
		}
	}
}
