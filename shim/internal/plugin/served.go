package plugin

import (
	"context"
	"fmt"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/component-base/featuregate"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/features"
)

// servedTimeout bounds the request at start. If the API server does not answer, the informers ask it again anyway.
const servedTimeout = 10 * time.Second

// checkGangs returns an error if kube-scheduler would schedule the pods of a PodGroup itself, in cycles of its own. Muster
// could then start no gang with some of its pods, because one gated pod holds up the whole PodGroup.
func checkGangs(enabled func(featuregate.Feature) bool) error {
	if !enabled(features.GenericWorkload) {
		return nil
	}
	return fmt.Errorf("the feature gate %s is on in this process, so kube-scheduler would hold up the pods of PodGroups. Add %[1]s=false to --feature-gates of the container shim",
		features.GenericWorkload)
}

// checkServed returns an error that names the gate to switch off, if the API server does not serve the resource that the
// gate needs. kube-scheduler would wait for this resource and bind no pod, without any message. Older API servers do not
// serve it. checkServed returns nil if the server does not answer.
func checkServed(ctx context.Context, server discovery.DiscoveryInterfaceWithContext, enabled func(featuregate.Feature) bool) error {
	const gate, resource = features.DRADeviceTaintRules, "devicetaintrules"
	groupVersion := resourceapi.SchemeGroupVersion.String()
	if !enabled(gate) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, servedTimeout)
	defer cancel()
	list, err := server.ServerResourcesForGroupVersionWithContext(ctx, groupVersion)
	if err != nil && !apierrors.IsNotFound(err) {
		klog.FromContext(ctx).Error(err, "Could not ask which resources the API server serves", "groupVersion", groupVersion)
		return nil
	}
	if err == nil && slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == resource }) {
		return nil
	}
	return fmt.Errorf("the API server does not serve %s of %s, which the scheduler waits for: it would bind nothing. Add %s=false to --feature-gates",
		resource, groupVersion, gate)
}
