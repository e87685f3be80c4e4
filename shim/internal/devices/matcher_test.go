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
	fwk "k8s.io/kube-scheduler/framework"
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
		reason    string // or the GPUs, if they are not all
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
			wants := gpuChoice{class: "class", gpuSelectors: []string{isGPU}, selectors: append([]string{isGPU}, c.selectors...)}
			result, reason := testMatcher().findUsableGPUs(t.Context(), "claim c", wants, c.node)
			if reason == "" && !result.all {
				reason = strings.Join(result.names, " ")
			}
			if !strings.HasPrefix(reason, c.reason) || reason != "" && c.reason == "" {
				t.Errorf("got %q", reason)
			}
		})
	}
}

func TestGPUsHaveTheirPoolInTheirNamesOnlyIfTheDriverHasSeveral(t *testing.T) {
	wants := gpuChoice{gpuSelectors: []string{"device.driver != 'nic' && device.attributes[device.driver].model != 'no GPU'"}}
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
			result, reason := testMatcher().findUsableGPUs(t.Context(), "r", wants, c.node)
			if got := strings.Join(result.names, " "); got != c.want || reason != "" {
				t.Errorf("got %q, %q", got, reason)
			}
		})
	}
}

func TestASliceIsEvaluatedAgainWhenItChanges(t *testing.T) {
	m := testMatcher()
	wants := gpuChoice{gpuSelectors: []string{"device.driver == 'gpu'"}, selectors: []string{"device.attributes['gpu'].model == 'a'"}}
	before, after := modelled("gpu", "b"), modelled("gpu", "a")
	after.ResourceVersion = "2"
	if _, reason := m.findUsableGPUs(t.Context(), "r", wants, []*resourceapi.ResourceSlice{before}); reason == "" {
		t.Error("the first version suits")
	}
	if _, reason := m.findUsableGPUs(t.Context(), "r", wants, []*resourceapi.ResourceSlice{after}); reason != "" {
		t.Errorf("the second version: %s", reason)
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
	s.Spec.Devices[3].Taints = taint(OwnedTaint, resourceapi.DeviceTaintEffectNoSchedule)
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
				wants.selectors = []string{"device.attributes['gpu'].model == '" + c.model + "'"}
			}
			result, reason := testMatcher().findUsableGPUs(t.Context(), "r", wants, []*resourceapi.ResourceSlice{s})
			if got := reason; got == "" && (strings.Join(result.names, " ") != c.want || result.all != c.all) || got != "" && got != c.want {
				t.Errorf("got %v %q", result, reason)
			}
		})
	}
}

// matchingNames returns the names of the GPUs that a pod may have on a node by each subrequest.
func matchingNames(state fwk.CycleState, node string) (names [][]string) {
	for _, gpus := range MatchingOn(state, node) {
		names = append(names, gpus.Names)
	}
	return names
}

func TestRequestsOfAPodMustHaveTheSameGPUsToChooseFrom(t *testing.T) {
	a := &AdvanceCheck{matcher: testMatcher()}
	request := func(label string, models ...string) gpuRequest {
		r := gpuRequest{label: label}
		for _, model := range models {
			r.subrequests = append(r.subrequests, gpuChoice{selectors: []string{"device.attributes['gpu'].model != '" + model + "'"}})
		}
		return r
	}
	for name, c := range map[string]struct {
		requests []gpuRequest
		reason   string
		matching [][]string
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
			question, state := &gpuQuestion{requests: c.requests, slices: map[string][]*resourceapi.ResourceSlice{"node": {s}}}, framework.NewCycleState()
			state.Write(questionKey, question)
			reason := a.recordMatchingGPUs(t.Context(), question, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}})
			if matching := matchingNames(state, "node"); reason != c.reason || !reflect.DeepEqual(matching, c.matching) {
				t.Errorf("got %q, %#v", reason, matching)
			}
			if lists := matchingNames(state, "other"); lists[0] != nil {
				t.Errorf("another node: %v", lists)
			}
		})
	}
}

// A user may write a selector that fails on all devices of a large cluster.
func TestOneErrorOfASelectorIsRemembered(t *testing.T) {
	m := testMatcher()
	fails := m.resultsOf("device.attributes['gpu'].speed == 1")
	first, second := modelled("gpu", "a", "b"), modelled("gpu", "c")
	second.UID = "another"
	want := fails.matchSlice(t.Context(), first).errs[0]
	for _, got := range []error{fails.matchSlice(t.Context(), first).errs[1], fails.matchSlice(t.Context(), second).errs[0]} {
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
	result, incompletePools := slicesByNode([]*resourceapi.ResourceSlice{old, current, shared})
	if len(result) != 2 || len(result["n"]) != 1 || result["n"][0].Name != "t" || len(result[""]) != 1 {
		t.Errorf("got %v", result)
	}
	if of := (poolOn{driver: "gpu", pool: "b"}); len(incompletePools) != 1 || !incompletePools.Has(of) {
		t.Errorf("missing slices: %v", incompletePools)
	}
}

// The allocator gives all devices that match, or no device. A tainted device counts, and so does a device next to the
// GPUs.
func TestWhichNodesSuitARequestForAllDevices(t *testing.T) {
	const isGPU, isA = "device.driver == 'gpu'", "device.attributes['gpu'].model == 'a'"
	worn := resourceapi.DeviceToleration{Key: "worn", Operator: resourceapi.DeviceTolerationOpExists}
	many := slices.Repeat([]string{"a"}, 33)
	for name, c := range map[string]struct {
		selectors   []string
		tolerations []resourceapi.DeviceToleration
		models      []string
		change      func(*resourceapi.ResourceSlice, *gpuQuestion)
		reason      string
		matching    [][]string
	}{
		"all GPUs":              {[]string{isGPU}, nil, []string{"a", "b"}, nil, "", [][]string{{"gpu/d0", "gpu/d1"}}},
		"those that match":      {[]string{isGPU, isA}, nil, []string{"a", "b", "a"}, nil, "", [][]string{{"gpu/d0", "gpu/d2"}}},
		"none":                  {[]string{isGPU, isA}, nil, []string{"b"}, nil, "r: no GPU of the node matches the selectors", [][]string{nil}},
		"one that has a taint":  {[]string{isGPU}, nil, []string{"a", "worn"}, nil, "r: allocationMode All, and GPU d1 of the node has a taint", [][]string{nil}},
		"a taint of another":    {[]string{isGPU, isA}, nil, []string{"a", "worn"}, nil, "", [][]string{{"gpu/d0"}}},
		"a taint is tolerated":  {[]string{isGPU}, []resourceapi.DeviceToleration{worn}, []string{"a", "worn"}, nil, "", [][]string{{"gpu/d0", "gpu/d1"}}},
		"more than a claim has": {[]string{isGPU}, nil, many, nil, "r: allocationMode All matches 33 GPUs of the node; a claim may have 32", [][]string{nil}},
		"another driver's too": {nil, nil, []string{"a"}, func(_ *resourceapi.ResourceSlice, question *gpuQuestion) {
			question.slices["node"] = append(question.slices["node"], modelled("nic", "x"))
		}, "r: allocationMode All, and device d0 of nic matches that is no GPU by its DeviceClass", [][]string{nil}},
		"a selector fails on another driver's": {[]string{"device.attributes['gpu'].model == 'a'"}, nil, []string{"a"}, func(_ *resourceapi.ResourceSlice, question *gpuQuestion) {
			question.slices["node"] = append(question.slices["node"], modelled("nic", "x"))
		}, "r: allocationMode All: a selector can't be evaluated", [][]string{nil}},
		"another driver's do not match": {[]string{isGPU}, nil, []string{"a"}, func(_ *resourceapi.ResourceSlice, question *gpuQuestion) {
			question.slices["node"] = append(question.slices["node"], modelled("nic", "x"))
		}, "", [][]string{{"gpu/d0"}}},
		"devices of no single node": {[]string{isGPU}, nil, []string{"a"}, func(_ *resourceapi.ResourceSlice, question *gpuQuestion) {
			question.slices[""] = append(question.slices[""], modelled("gpu", "x"))
		}, "r: allocationMode All, and device d0 of gpu belongs to no single node", [][]string{nil}},
		"a pool is published in part": {[]string{isGPU}, nil, []string{"a"}, func(s *resourceapi.ResourceSlice, question *gpuQuestion) {
			question.incompletePools.Insert(poolOf(s))
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
			choice := gpuChoice{class: "class", gpuSelectors: []string{isGPU}, selectors: c.selectors, tolerations: c.tolerations, takesAll: true}
			question := &gpuQuestion{
				requests: []gpuRequest{{label: "r", subrequests: []gpuChoice{choice}}},
				slices:   map[string][]*resourceapi.ResourceSlice{"node": {s}}, incompletePools: sets.New[poolOn](),
			}
			if c.change != nil {
				c.change(s, question)
			}
			state := framework.NewCycleState()
			state.Write(questionKey, question)
			reason := (&AdvanceCheck{matcher: testMatcher()}).recordMatchingGPUs(t.Context(), question, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}})
			if !strings.HasPrefix(reason, c.reason) || reason != "" && c.reason == "" {
				t.Errorf("got %q", reason)
			}
			if matching := matchingNames(state, "node"); !reflect.DeepEqual(matching, c.matching) {
				t.Errorf("got %q", matching)
			}
		})
	}
}

func TestANodeWithTooManyGPUsIsRefused(t *testing.T) {
	models := slices.Repeat([]string{"a"}, maxOffered+1)
	wants := gpuChoice{class: "class", gpuSelectors: []string{"true"}}
	_, reason := testMatcher().findUsableGPUs(t.Context(), "claim c", wants, []*resourceapi.ResourceSlice{modelled("gpu", models...)})
	if reason != "claim c: the node has more than 1024 GPUs of DeviceClass class" {
		t.Errorf("got %q", reason)
	}
	if _, reason = testMatcher().findUsableGPUs(t.Context(), "claim c", wants, []*resourceapi.ResourceSlice{modelled("gpu", models[1:]...)}); reason != "" {
		t.Errorf("got %q", reason)
	}
}

func TestDevicesAreNotLookedAtWithoutTime(t *testing.T) {
	m, wants := testMatcher(), gpuChoice{class: "class", gpuSelectors: []string{"true"}}
	node := []*resourceapi.ResourceSlice{modelled("gpu", "a", "b")}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, reason := m.findUsableGPUs(ctx, "claim c", wants, node); reason != "claim c: to look at the devices of the node takes too long" {
		t.Errorf("got %q", reason)
	}
	if result, reason := m.findUsableGPUs(t.Context(), "claim c", wants, node); reason != "" || len(result.names) != 2 {
		t.Errorf("got %v, %q: what was not looked at is remembered", result, reason)
	}
}

// ending is a context that ends after this number of calls.
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
	wants := gpuChoice{class: "class", gpuSelectors: []string{"true"}, selectors: []string{"true", "1 == 1"}}
	late := 0
	for checks := 0; ; checks++ {
		result, reason := testMatcher().findUsableGPUs(&ending{t.Context(), checks}, "claim c", wants, node)
		if reason == "" {
			if len(result.names) != 3 || late < 4 {
				t.Errorf("after %d checks: %v, %d times late", checks, result.names, late)
			}
			return
		}
		if late++; reason != "claim c: to look at the devices of the node takes too long" {
			t.Fatalf("after %d checks: %q", checks, reason)
		}
	}
}
