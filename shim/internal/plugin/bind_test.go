package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"
	fwk "k8s.io/kube-scheduler/framework"

	"muster.dev/shim/internal/metrics"
	"muster.dev/shim/internal/musterv1"
)

// bindHandle implements the part of Handle that sendBinding needs.
type bindHandle struct {
	fwk.Handle
	client kubernetes.Interface
	cacher fwk.APICacher
}

func (h *bindHandle) ClientSet() kubernetes.Interface { return h.client }
func (h *bindHandle) APICacher() fwk.APICacher        { return h.cacher }

func TestBindingIsSentOnce(t *testing.T) {
	var bodies []v1.Binding
	var path string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var b v1.Binding
		if err := json.Unmarshal(body, &b); err != nil {
			t.Error(err)
		}
		bodies, path = append(bodies, b), r.URL.Path
		w.Header().Set("Retry-After", "0") // client-go would try again
		w.WriteHeader(http.StatusInternalServerError)
	}))
	defer server.Close()
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	binding := &v1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u", ResourceVersion: "5", Annotations: map[string]string{"a/b": "c"}},
		Target:     v1.ObjectReference{Kind: "Node", Name: "n"},
	}
	err := sendBinding(context.Background(), &bindHandle{client: client}, binding)
	if got := fateOf(err, false); got != musterv1.BindingFate_BINDING_FATE_UNKNOWN {
		t.Errorf("fate of %v: %v", err, got)
	}
	if len(bodies) != 1 || path != "/api/v1/namespaces/ns/pods/p/binding" {
		t.Fatalf("%d sent, to %s", len(bodies), path)
	}
	if b := bodies[0]; b.UID != "u" || b.ResourceVersion != "5" || b.Annotations["a/b"] != "c" || b.Target.Name != "n" {
		t.Errorf("sent: %+v", b)
	}
}

type cacher struct {
	fwk.APICacher
	got *v1.Binding
}

func (c *cacher) BindPod(b *v1.Binding) (<-chan error, error)      { c.got = b; return nil, nil }
func (c *cacher) WaitOnFinish(context.Context, <-chan error) error { return nil }

func TestBindingGoesThroughTheCacher(t *testing.T) {
	c := &cacher{}
	if err := sendBinding(context.Background(), &bindHandle{cacher: c}, &v1.Binding{}); err != nil || c.got == nil {
		t.Errorf("%v, %v", err, c.got)
	}
}

func TestFate(t *testing.T) {
	const (
		never   = musterv1.BindingFate_BINDING_FATE_NEVER_SENT
		refused = musterv1.BindingFate_BINDING_FATE_REFUSED
		unknown = musterv1.BindingFate_BINDING_FATE_UNKNOWN
	)
	pods := schema.GroupResource{Resource: "pods"}
	conflict := apierrors.NewConflict(pods, "p", errors.New("resourceVersion"))
	cases := map[string]struct {
		err     error
		retried bool
		want    musterv1.BindingFate
	}{
		"conflict":                  {conflict, false, refused},
		"conflict, wrapped":         {fmt.Errorf("binding: %w", conflict), false, refused},
		"conflict after retries":    {conflict, true, unknown},
		"gone":                      {apierrors.NewNotFound(pods, "p"), false, refused},
		"forbidden":                 {apierrors.NewForbidden(pods, "p", nil), false, refused},
		"too many requests":         {apierrors.NewTooManyRequests("", 1), false, refused},
		"server's deadline":         {apierrors.NewTimeoutError("", 1), false, unknown},
		"internal error":            {apierrors.NewInternalError(errors.New("etcd")), false, unknown},
		"our deadline":              {context.DeadlineExceeded, false, unknown},
		"connection lost":           {io.ErrUnexpectedEOF, false, unknown},
		"no connection made at all": {syscall.ECONNREFUSED, false, never},
	}
	for name, c := range cases {
		if got := fateOf(c.err, c.retried); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestABindingIsNoCallOfTheService(t *testing.T) {
	results := map[musterv1.BindingFate]string{
		fateOf(nil, false):                           "bound",
		musterv1.BindingFate_BINDING_FATE_REFUSED:    "refused",
		musterv1.BindingFate_BINDING_FATE_UNKNOWN:    "unknown",
		musterv1.BindingFate_BINDING_FATE_NEVER_SENT: "never_sent",
	}
	if len(results) != len(musterv1.BindingFate_name) {
		t.Fatalf("%d fates have results, of %d", len(results), len(musterv1.BindingFate_name))
	}
	metrics.Register()
	for fate, want := range results {
		if got := resultOf(fate); got != want {
			t.Errorf("%v: %s, want %s", fate, got, want)
		}
		metrics.RecordBinding(resultOf(fate), time.Millisecond)
	}
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				switch {
				case family.GetName() == "muster_shim_binding_seconds":
					seen[label.GetValue()] = true
				case family.GetName() == "muster_shim_unary_seconds" && label.GetValue() == "Binding":
					t.Error("a Binding counts as a call of the service")
				}
			}
		}
	}
	if len(seen) != len(results) {
		t.Errorf("results in the metrics: %v", seen)
	}
}

func TestCheckAnnotations(t *testing.T) {
	cases := map[string]struct {
		has, adds map[string]string
		want      bool
	}{
		"good":            {map[string]string{"x": "y"}, map[string]string{"gpu.topology/allocation": "{}"}, true},
		"bad key":         {nil, map[string]string{"not a key": "v"}, false},
		"too long":        {map[string]string{"x": strings.Repeat("x", 200<<10)}, map[string]string{"k": strings.Repeat("y", 100<<10)}, false},
		"forged":          {map[string]string{"k": "0,1"}, map[string]string{"k": "2,3"}, false},
		"forged, unasked": {map[string]string{"k": "0,1"}, map[string]string{"k": ""}, false},
	}
	for name, c := range cases {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: c.has}}
		if err := checkAnnotations(pod, c.adds); (err == nil) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The API server accepts a Binding to a node that does not exist.
func TestANodeThatGoesWhilePermitIsAskedGetsNoBinding(t *testing.T) {
	h := newHarness(t, node("stays", "16"), node("goes", "16"))
	h.service.plan([]string{"stays"}, []string{"goes"})
	permitted := h.service.permit
	h.service.permit = func(r *musterv1.PermitRequest) (*musterv1.PermitResponse, error) {
		if err := h.client.CoreV1().Nodes().Delete(h.ctx, "goes", metav1.DeleteOptions{}); err != nil {
			return nil, err
		}
		h.until("the informer knows", func() bool { _, err := h.plugin.nodes.Get("goes"); return err != nil })
		return permitted(r)
	}
	h.runPlanned("m0", "m1")
	for range 2 {
		if report := next(t, "report", h.service.reports); report.Fate != fateNeverSent || !strings.Contains(report.Message, `"goes" not found`) {
			t.Errorf("report: %v", report)
		}
	}
	if len(h.bound) != 0 {
		t.Errorf("bound: %v", <-h.bound)
	}
}
