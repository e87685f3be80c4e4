package devices

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
)

// gpusAt returns GPUs with these values of attributes of the driver "gpu", by their names.
func gpusAt(attributes ...map[resourceapi.QualifiedName]resourceapi.DeviceAttribute) (gpus []gpu) {
	for i, values := range attributes {
		name := fmt.Sprintf("d%d", i)
		gpus = append(gpus, gpu{"gpu/" + name, "gpu", "p", &resourceapi.Device{Name: name, Attributes: values}})
	}
	return gpus
}

func TestWhichGPUsAgree(t *testing.T) {
	type attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute
	text, number, version := "1", int64(1), "1.0.0"
	long := resourceapi.DeviceAttribute{StringValues: []string{"1"}}
	a, b := resourceapi.DeviceAttribute{StringValue: &text}, resourceapi.DeviceAttribute{IntValue: &number}
	for name, c := range map[string]struct {
		attributes []resourceapi.FullyQualifiedName
		gpus       []gpu
		want       string
	}{
		"texts, and numbers that look like them": {[]resourceapi.FullyQualifiedName{"x/a"}, gpusAt(attributes{"x/a": a}, attributes{"x/a": b}, attributes{"x/a": a}, attributes{"x/a": b}), "[02 13]"},
		"versions and booleans":                  {[]resourceapi.FullyQualifiedName{"x/a"}, gpusAt(attributes{"x/a": {VersionValue: &version}}, attributes{"x/a": {BoolValue: new(true)}}, attributes{"x/a": {VersionValue: &version}}), "[02 1]"},
		"the driver's own attribute":             {[]resourceapi.FullyQualifiedName{"gpu/a"}, gpusAt(attributes{"a": a}, attributes{"gpu/a": a}, attributes{"x/a": a}), "[01]"},
		"on two attributes":                      {[]resourceapi.FullyQualifiedName{"x/a", "x/b"}, gpusAt(attributes{"x/a": a, "x/b": b}, attributes{"x/a": a}, attributes{"x/a": a, "x/b": a}, attributes{"x/a": a, "x/b": b}), "[03 2]"},
		"lists agree with nothing":               {[]resourceapi.FullyQualifiedName{"x/a"}, gpusAt(attributes{"x/a": long}, attributes{}), "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, group := range (&matchAttributeClaim{attributes: c.attributes}).groupsOf(c.gpus) {
				var names string
				for _, member := range group {
					names += strings.TrimPrefix(member.device.Name, "d")
				}
				got = append(got, names)
			}
			if fmt.Sprint(got) != c.want {
				t.Errorf("got %v, want %s", got, c.want)
			}
		})
	}
}

// asksToAgree is a question for a GPU and a card of the same value of x/a, on a node with 20 GPUs of as many values.
func asksToAgree() (*AdvanceCheck, *gpuQuestion, *v1.Node, usableGPUs) {
	features := feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
	a := &AdvanceCheck{manager: &objects{}, matcher: newMatcher(features), features: dynamicresources.AllocatorFeatures(features), celCache: cel.NewCache(2, cel.Features{})}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	cards := slice("nics", "nic", "n", 1)
	cards.Spec.NodeName = &node.Name
	var usable usableGPUs
	for i := range 20 {
		value := int64(i)
		shared := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"x/a": {IntValue: &value}}
		name := fmt.Sprintf("d%d", i)
		usable.gpus = append(usable.gpus, gpu{"gpu/" + name, "gpu", "p", &resourceapi.Device{Name: name, Attributes: shared}})
		cards.Spec.Devices = append(cards.Spec.Devices, resourceapi.Device{Name: name, Attributes: shared})
	}
	attribute := resourceapi.FullyQualifiedName("x/a")
	card := requestOf("n", "nic", "device.driver == 'nic'")
	claim := &resourceapi.ResourceClaim{Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
		Requests: []resourceapi.DeviceRequest{anchorRequest("g"), card}, Constraints: []resourceapi.DeviceConstraint{{MatchAttribute: &attribute}},
	}}}
	return a, &gpuQuestion{slices: map[string][]*resourceapi.ResourceSlice{"n": {cards}}, matchClaim: &matchAttributeClaim{
		label: "c", otherDevicesMustAgree: true, attributes: []resourceapi.FullyQualifiedName{attribute}, claims: []*resourceapi.ResourceClaim{claim},
		gpus: []resourceapi.DeviceRequest{requestOf("g", "gpu", "")}, allocated: newAllocatedState(sets.New[structured.DeviceID]()),
	}}, node, usable
}

func TestSomeGroupsOfANodeAreAskedAbout(t *testing.T) {
	a, question, node, usable := asksToAgree()
	suitable, limited, reason := a.gpusWithPeers(t.Context(), question, 0, node, usable)
	if len(suitable.names) != maxGroups || suitable.all || len(limited) > 0 || reason != "" {
		t.Errorf("%v, %v, %q", suitable.names, limited, reason)
	}
}

// What users write may hold the allocator for long.
func TestTheAllocatorIsStoppedForAllGroupsOfANode(t *testing.T) {
	a, question, node, usable := asksToAgree()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, reason := a.gpusWithPeers(ctx, question, 0, node, usable); reason != "c: the allocator took more than 200ms for the node" {
		t.Errorf("%q", reason)
	}
}

// lookups counts how often classes are read: once for each pod that the allocator tries, and once to count devices.
type lookups struct {
	objects
	classes
	count int
}

func (l *lookups) DeviceClasses() fwk.DeviceClassLister                    { return l }
func (l *lookups) List() ([]*resourceapi.DeviceClass, error)               { return nil, nil }
func (l *lookups) GetDeviceClass(v1.ResourceName) *resourceapi.DeviceClass { return nil }
func (l *lookups) Get(name string) (*resourceapi.DeviceClass, error) {
	l.count++
	return l.classes.Get(name)
}

// The allocator tries all cards in all orders before it says that there is none for one more pod.
func TestMorePodsThanThereAreCardsForAreNotTried(t *testing.T) {
	for name, c := range map[string]struct {
		change func(cards []resourceapi.Device, question *gpuQuestion)
		pods   int
	}{
		"other cards have another value": {func(cards []resourceapi.Device, _ *gpuQuestion) { cards[0].Attributes, cards[1].Attributes = nil, nil }, 9},
		"a card is allocated": {func(_ []resourceapi.Device, question *gpuQuestion) {
			question.matchClaim.allocated.AllocatedDevices.Insert(structured.MakeDeviceID("nic", "n", "d3"))
		}, 10},
		"a card has a taint": {func(cards []resourceapi.Device, _ *gpuQuestion) {
			cards[2].Taints = []resourceapi.DeviceTaint{{Key: "broken", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
		}, 10},
		"a pod has several cards": {func(_ []resourceapi.Device, question *gpuQuestion) {
			question.matchClaim.claims[0].Spec.Devices.Requests[1].Exactly.Count = 2
		}, 5},
		"a pod has cards by several requests": {func(_ []resourceapi.Device, question *gpuQuestion) {
			devices := &question.matchClaim.claims[0].Spec.Devices
			second := *devices.Requests[1].DeepCopy()
			second.Name = "second"
			devices.Requests = append(devices.Requests, second)
		}, 5},
		"none": {func(cards []resourceapi.Device, _ *gpuQuestion) {
			for i := range cards {
				cards[i].Attributes = nil
			}
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			a, question, node, usable := asksToAgree()
			for i := range usable.gpus {
				usable.gpus[i].device.Attributes = usable.gpus[0].device.Attributes
			}
			cards := question.slices["n"][0].Spec.Devices[:11]
			question.slices["n"][0].Spec.Devices = cards
			for i := range cards {
				cards[i].Attributes = usable.gpus[0].device.Attributes
			}
			c.change(cards, question)
			manager := &lookups{}
			a.manager = manager
			requests := len(question.matchClaim.claims[0].Spec.Devices.Requests) - 1
			pods, err := a.podsPerGroup(t.Context(), question, node, usable.gpus, 1, maxTogether)
			if err != nil || pods != c.pods || manager.count != (1+c.pods)*requests {
				t.Errorf("%d pods with %d lookups of %d requests, %v; want %d", pods, manager.count, requests, err, c.pods)
			}
		})
	}
}

// Devices that can't be counted do not lower the bound: the allocator is asked.
func TestCardsThatSeveralPodsMayHaveAreNotCounted(t *testing.T) {
	text := "x"
	for name, change := range map[string]func(*resourceapi.Device, *resourceapi.DeviceRequest){
		"given several times": func(d *resourceapi.Device, _ *resourceapi.DeviceRequest) { d.AllowMultipleAllocations = new(true) },
		"watched":             func(_ *resourceapi.Device, r *resourceapi.DeviceRequest) { r.Exactly.AdminAccess = new(true) },
		"all": func(_ *resourceapi.Device, r *resourceapi.DeviceRequest) {
			r.Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
		},
		"subrequests": func(_ *resourceapi.Device, r *resourceapi.DeviceRequest) { r.Exactly = nil },
	} {
		t.Run(name, func(t *testing.T) {
			a, question, _, usable := asksToAgree()
			g, cards := question.matchClaim, question.slices["n"]
			change(&cards[0].Spec.Devices[0], &g.claims[0].Spec.Devices.Requests[1])
			if got := a.maxPods(t.Context(), g, peerDevices{cards, sets.New[structured.DeviceID](), usable.gpus[0]}, 7); got != 7 {
				t.Errorf("at most %d", got)
			}
		})
	}
	list := resourceapi.DeviceAttribute{StringValues: []string{text}}
	if value := (resourceapi.DeviceAttribute{StringValue: &text}); cannotAgree(valueOf(value), list) || cannotAgree(valueOf(value), value) || !cannotAgree(valueOf(value), resourceapi.DeviceAttribute{}) {
		t.Error("a list may agree, and no value does not")
	}
}

// The allocator returns an error if one of all cards does not agree. The group that agrees may have the cards.
func TestAllCardsAgreeWithOneGroupAlone(t *testing.T) {
	a, question, node, usable := asksToAgree()
	usable.gpus = usable.gpus[:2]
	question.slices["n"][0].Spec.Devices = question.slices["n"][0].Spec.Devices[:1]
	question.slices["n"][0].Spec.Devices[0].Attributes = usable.gpus[1].device.Attributes
	request := question.matchClaim.claims[0].Spec.Devices.Requests[1].Exactly
	request.AllocationMode, request.Count = resourceapi.DeviceAllocationModeAll, 0
	suitable, _, reason := a.gpusWithPeers(t.Context(), question, 0, node, usable)
	if reason != "" || !slices.Equal(suitable.names, []string{usable.gpus[1].name}) {
		t.Errorf("%v %s", suitable.names, reason)
	}
	question.slices["n"][0].Spec.Devices[0].Attributes = nil
	if _, _, reason := a.gpusWithPeers(t.Context(), question, 0, node, usable); reason == "" {
		t.Error("no group has it")
	}
}
