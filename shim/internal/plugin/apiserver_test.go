package plugin

import (
	"context"
	"os"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// TestRealAPIServer binds a gang through a real API server, if MUSTER_SHIM_KUBECONFIG names one that may be written
// to. The fake API ignores the annotations, UID and resourceVersion of a Binding.
func TestRealAPIServer(t *testing.T) {
	path := os.Getenv("MUSTER_SHIM_KUBECONFIG")
	if path == "" {
		t.Skip("MUSTER_SHIM_KUBECONFIG is not set")
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	h := newHarness(t)
	cfg.QPS, cfg.Burst = 1000, 1000
	h.fake, h.client = nil, kubernetes.NewForConfigOrDie(cfg)
	must := func(err error) {
		t.Helper()
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	_, err = h.client.CoreV1().Namespaces().Create(h.ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}, metav1.CreateOptions{})
	must(err)
	_, err = h.client.CoreV1().Nodes().Create(h.ctx, node("n", "200"), metav1.CreateOptions{})
	must(err)
	// The API server's admission taints new nodes. A node controller would remove the taint.
	liveNode, err := h.client.CoreV1().Nodes().Get(h.ctx, "n", metav1.GetOptions{})
	must(err)
	liveNode.Spec.Taints = nil
	_, err = h.client.CoreV1().Nodes().Update(h.ctx, liveNode, metav1.UpdateOptions{})
	must(err)
	names := members(64)
	h.service.plan(spread(len(names), "n")...)
	h.run("")
	h.pods("gang", names...)
	v := verdict(plannedOutcome, 1, names...)
	for i, name := range names {
		pod, err := h.client.CoreV1().Pods("ns").Get(h.ctx, name, metav1.GetOptions{})
		must(err)
		v.Uids[i] = string(pod.UID)
	}
	h.until("gated", func() bool { return h.gated(names...) })
	h.service.push(v)
	t.Cleanup(func() {
		zero := int64(0)
		for _, name := range names {
			_ = h.client.CoreV1().Pods("ns").Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: &zero})
		}
	})
	for _, name := range names {
		h.until("bound", func() bool {
			pod, err := h.client.CoreV1().Pods("ns").Get(h.ctx, name, metav1.GetOptions{})
			must(err)
			return pod.Spec.NodeName == "n" && pod.Annotations["gpu.topology/allocation"] != ""
		})
	}
	if got := h.service.called(); got != "Filter 1 Score 1 Reserve 1 Permit 1" {
		t.Errorf("calls: %s", got)
	}
	h.until("nothing in flight", func() bool { return len(h.plugin.store.InFlight()) == 0 })
}
