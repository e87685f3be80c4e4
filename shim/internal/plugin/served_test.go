package plugin

import (
	"context"
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/component-base/featuregate"
	"k8s.io/kubernetes/pkg/features"
)

func TestThePodGroupsOfKubernetesAreMustersAlone(t *testing.T) {
	for _, on := range []bool{false, true} {
		err := checkGangs(func(gate featuregate.Feature) bool { return on && gate == features.GenericWorkload })
		if (err != nil) != on {
			t.Fatalf("gate on %v: %v", on, err)
		}
		if on && !strings.Contains(err.Error(), "Add GenericWorkload=false to --feature-gates of the container shim") {
			t.Errorf("got %q", err)
		}
	}
}

func TestGatesOfResourcesThatAreNotServedAreNamed(t *testing.T) {
	group := func(names ...string) []*metav1.APIResourceList {
		list := &metav1.APIResourceList{GroupVersion: "resource.k8s.io/v1"}
		for _, name := range names {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: name})
		}
		return []*metav1.APIResourceList{list}
	}
	for name, test := range map[string]struct {
		served []*metav1.APIResourceList
		gates  bool
		fails  error
		says   string
	}{
		"it is served":               {served: group("resourceclaims", "devicetaintrules"), gates: true},
		"the group lacks it":         {served: group("resourceclaims"), gates: true, says: "Add DRADeviceTaintRules=false to --feature-gates"},
		"the group is not there":     {gates: true, says: "devicetaintrules of resource.k8s.io/v1"},
		"the gate is off":            {served: group("resourceclaims")},
		"the server does not answer": {gates: true, fails: errors.New("connection refused")},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			client.Resources = test.served
			if test.fails != nil {
				client.PrependReactor("get", "resource", func(clienttesting.Action) (bool, runtime.Object, error) {
					return true, nil, test.fails
				})
			}
			server := client.Discovery().(*fakediscovery.FakeDiscovery)
			err := checkServed(context.Background(), server, func(featuregate.Feature) bool { return test.gates })
			if (err == nil) != (test.says == "") {
				t.Fatalf("got %v, want %q", err, test.says)
			}
			if err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %q, want %q in it", err, test.says)
			}
		})
	}
}
