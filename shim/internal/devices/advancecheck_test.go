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
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// objects is a DRA manager with these claims, and with classes whose names tell the extended resource.
type objects struct {
	fwk.SharedDRAManager
	fwk.ResourceClaimTracker
	claims []*resourceapi.ResourceClaim
}

func (o *objects) ResourceClaims() fwk.ResourceClaimTracker     { return o }
func (o *objects) DeviceClasses() fwk.DeviceClassLister         { return classes{} }
func (o *objects) DeviceClassResolver() fwk.DeviceClassResolver { return classes{} }

func (o *objects) Get(_, name string) (*resourceapi.ResourceClaim, error) {
	if at := slices.IndexFunc(o.claims, func(c *resourceapi.ResourceClaim) bool { return c.Name == name }); at >= 0 {
		return o.claims[at], nil
	}
	return nil, fmt.Errorf("no claim %s", name)
}

type classes struct{}

func (classes) List() ([]*resourceapi.DeviceClass, error) { return nil, nil }

func (classes) Get(name string) (*resourceapi.DeviceClass, error) {
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if resource := "example.com/" + name; name != "nic" {
		class.Spec.ExtendedResourceName = &resource
	}
	return class, nil
}

func (classes) GetDeviceClass(v1.ResourceName) *resourceapi.DeviceClass { return nil }

// requestOf returns a request for one device of a class. The expression is its selector, or "".
func requestOf(name, class, expression string) resourceapi.DeviceRequest {
	exact := &resourceapi.ExactDeviceRequest{DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}
	if expression != "" {
		exact.Selectors = celOf(expression)
	}
	return resourceapi.DeviceRequest{Name: name, Exactly: exact}
}

func asking(requests ...resourceapi.DeviceRequest) (*AdvanceCheck, *v1.Pod) {
	pod, manager := &v1.Pod{}, &objects{}
	watching := requestOf("watching", "gpu", "")
	watching.Exactly.AdminAccess = new(true)
	for _, name := range []string{"c", "d"} { // of two members, as one pod
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
			Name: name, OwnerReferences: []metav1.OwnerReference{{Kind: "Pod", Controller: new(true)}},
		}}
		claim.Spec.Devices.Requests = append(slices.Clone(requests), watching, requestOf("card", "nic", ""), resourceapi.DeviceRequest{Name: "some"})
		claim.Status.Allocation = &resourceapi.AllocationResult{}
		manager.claims = append(manager.claims, claim)
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, v1.PodResourceClaim{Name: "pods-" + name, ResourceClaimName: &name})
	}
	missing := "missing"
	pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, v1.PodResourceClaim{Name: "m", ResourceClaimName: &missing})
	return &AdvanceCheck{manager: manager, gpus: []string{"example.com/gpu", "example.com/big"}}, pod
}

func TestEqualRequestsForGPUsAreEvaluatedOnce(t *testing.T) {
	a, pod := asking(requestOf("a", "gpu", "x"), requestOf("b", "gpu", "x"), requestOf("c", "gpu", "y"), requestOf("d", "big", "x"), requestOf("e", "other", "x"))
	var requests []string
	for _, request := range a.gpuRequests(pod) {
		requests = append(requests, fmt.Sprintf("%s %s %v", request.label, request.subrequests[0].class, request.subrequests[0].selectors))
	}
	want := []string{
		"resourceClaims pods-c, request a gpu [x]", "resourceClaims pods-c, request c gpu [y]", "resourceClaims pods-c, request d big [x]",
	}
	if !slices.Equal(requests, want) {
		t.Errorf("got %q", requests)
	}
}

func TestRequestsWithOtherTolerationsAreEvaluatedToo(t *testing.T) {
	worn := requestOf("b", "gpu", "x")
	worn.Exactly.Tolerations = []resourceapi.DeviceToleration{{Key: "worn", Operator: resourceapi.DeviceTolerationOpExists}}
	a, pod := asking(requestOf("a", "gpu", "x"), worn)
	if requests := a.gpuRequests(pod); len(requests) != 2 || len(requests[1].subrequests[0].tolerations) != 1 {
		t.Errorf("got %v", requests)
	}
}

func TestAClaimThatPodsShareAndThatHasItsDevicesAsksForNoMore(t *testing.T) {
	a, pod := asking(requestOf("a", "gpu", "x"))
	for _, claim := range a.manager.(*objects).claims {
		claim.OwnerReferences = nil
	}
	if requests := a.gpuRequests(pod); len(requests) > 0 {
		t.Errorf("got %v", requests)
	}
}

func TestSubrequestsForGPUsAreEvaluatedInTheirOrder(t *testing.T) {
	ordered := resourceapi.DeviceRequest{Name: "s", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "x", DeviceClassName: "big"}, {Name: "y", DeviceClassName: "gpu"},
	}}
	cards := resourceapi.DeviceRequest{Name: "o", FirstAvailable: []resourceapi.DeviceSubRequest{{Name: "x", DeviceClassName: "nic"}}}
	a, pod := asking(ordered, cards)
	requests := a.gpuRequests(pod)
	if len(requests) != 1 || requests[0].subrequest(0).class != "big" || requests[0].subrequest(1).class != "gpu" || requests[0].subrequest(7).class != "gpu" {
		t.Errorf("got %v", requests)
	}
}

func TestTheInTreePluginIsAskedForAllButGPUs(t *testing.T) {
	a, _ := asking(requestOf("a", "gpu", ""), requestOf("e", "other", ""))
	claim, err := (&questionView{ResourceClaimTracker: a.manager.ResourceClaims(), check: a}).Get("ns", "c")
	if err != nil {
		t.Fatal(err)
	}
	var requests []string
	for _, request := range claim.Spec.Devices.Requests {
		requests = append(requests, request.Name)
	}
	if !slices.Equal(requests, []string{"e", "watching", "card", "some"}) {
		t.Errorf("got %q", requests)
	}
	if claim.Status.Allocation != nil {
		t.Error("it is shown with what an earlier attempt has left")
	}
	if original, _ := a.manager.ResourceClaims().Get("ns", "c"); len(original.Spec.Devices.Requests) != 5 || original.Status.Allocation == nil {
		t.Error("the claim itself was changed")
	}
}

// More selectors than the matcher remembers would be compiled again for each node.
func TestAPodWithTooManySelectorsIsRefused(t *testing.T) {
	var requests []resourceapi.DeviceRequest
	for i := range maxRequests {
		request := requestOf(fmt.Sprint(i), "gpu", fmt.Sprint("common", i))
		for j := range 2 {
			request.Exactly.Selectors = append(request.Exactly.Selectors, celOf(fmt.Sprint(i, j))...)
		}
		requests = append(requests, request)
	}
	a, pod := asking(requests...)
	_, status := a.PreFilter(t.Context(), framework.NewCycleState(), pod, nil)
	if want := "48 different selectors; at most 32"; status.Code() != fwk.Unschedulable || !strings.Contains(status.Message(), want) {
		t.Errorf("got %v", status)
	}
}

func TestFurtherNodesAreRefusedOnlyIfTheyAreSlowWhenTheTimeIsSpent(t *testing.T) {
	a, pod := asking(requestOf("a", "gpu", "x"))
	a.matcher = testMatcher()
	question, state := &gpuQuestion{requests: a.gpuRequests(pod)}, framework.NewCycleState()
	question.overtime.Store(int64(spareTime))
	state.Write(questionKey, question)
	node := framework.NewNodeInfo()
	node.SetNode(&v1.Node{})
	if status := a.Filter(t.Context(), state, pod, node); !strings.Contains(status.Message(), "no GPUs of DeviceClass") {
		t.Errorf("got %v", status)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if status := a.Filter(ctx, state, pod, node); status.Message() != reasonSlow {
		t.Errorf("got %v", status)
	}
	question.overtime.Store(0)
	if status := a.Filter(ctx, state, pod, node); status.Message() != reasonTooLong {
		t.Errorf("got %v", status)
	}
}
