package plugin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/featuregate"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/features"
)

// servedTimeout bounds the request at start. If the API server does not answer, the informers ask it again anyway.
const servedTimeout = 10 * time.Second

// gated lists the resources for which kube-scheduler waits if a feature gate is on, and that older API servers do not
// serve. Without a check the scheduler would start and bind no pod, without any message.
var gated = []struct {
	gate                   featuregate.Feature
	groupVersion, resource string
}{
	{features.DRADeviceTaintRules, resourceapi.SchemeGroupVersion.String(), "devicetaintrules"},
}

// discoverer returns the resources that an API server serves.
type discoverer interface {
	ServerResourcesForGroupVersionWithContext(ctx context.Context, groupVersion string) (*metav1.APIResourceList, error)
}

// checkServed returns an error that names the gates to switch off on this API server. It returns nil if the server
// serves all resources that the gates need, or does not answer.
func checkServed(ctx context.Context, server discoverer, enabled func(featuregate.Feature) bool) error {
	ctx, cancel := context.WithTimeout(ctx, servedTimeout)
	defer cancel()
	var resources, gates []string
	for _, need := range gated {
		if !enabled(need.gate) {
			continue
		}
		list, err := server.ServerResourcesForGroupVersionWithContext(ctx, need.groupVersion)
		if err != nil && !apierrors.IsNotFound(err) {
			klog.FromContext(ctx).Error(err, "Could not ask which resources the API server serves", "groupVersion", need.groupVersion)
			continue
		}
		if err == nil && slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == need.resource }) {
			continue
		}
		resources = append(resources, need.resource+" of "+need.groupVersion)
		gates = append(gates, string(need.gate)+"=false")
	}
	if gates == nil {
		return nil
	}
	return fmt.Errorf("the API server does not serve %s, which the scheduler waits for: it would bind nothing. Add %s to --feature-gates",
		strings.Join(resources, ", "), strings.Join(gates, ","))
}
