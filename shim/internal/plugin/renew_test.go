package plugin

import (
	"errors"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"muster.dev/shim/internal/musterv1"
)

// conflicting answers the first Binding of m1 with a conflict, after another client has changed its pod.
func conflicting(h *harness, change func(*v1.Pod)) {
	first := true
	h.bind = func(b *v1.Binding) error {
		if b.Name != "m1" || !first {
			return nil
		}
		first = false
		pod, err := h.client.CoreV1().Pods(b.Namespace).Get(h.ctx, b.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		pod = pod.DeepCopy()
		change(pod)
		if _, err := h.client.CoreV1().Pods(b.Namespace).Update(h.ctx, pod, metav1.UpdateOptions{}); err != nil {
			return err
		}
		return apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, b.Name, errors.New("resourceVersion"))
	}
}

func TestBindingIsRenewedForAPodThatChanged(t *testing.T) {
	h := newHarness(t, node("n", "16"))
	h.service.plan(spread(2, "n")...)
	conflicting(h, func(pod *v1.Pod) {
		pod.Labels = map[string]string{"by": "somebody"}
		pod.ResourceVersion = "4711"
	})
	h.runPlanned("m0", "m1")
	bindings := map[string]*v1.Binding{}
	for range 2 {
		b := next(t, "binding", h.bound)
		bindings[b.Name] = b
	}
	if b := bindings["m1"]; b == nil || b.ResourceVersion != "4711" {
		t.Errorf("binding of m1: %+v", b)
	}
	h.until("nothing in flight", func() bool { return len(h.plugin.store.InFlight()) == 0 })
	select {
	case r := <-h.service.reports:
		t.Errorf("reported: %v", r)
	default:
	}
}

func TestBindingIsNotRenewedForAPodThatIsNoLongerOurs(t *testing.T) {
	cases := map[string]func(*v1.Pod){
		"bound by another scheduler": func(pod *v1.Pod) { pod.Spec.NodeName, pod.ResourceVersion = "elsewhere", "4711" },
		"created anew":               func(pod *v1.Pod) { pod.UID, pod.ResourceVersion = "another", "4711" },
		"carries a forged allocation": func(pod *v1.Pod) {
			pod.Annotations, pod.ResourceVersion = map[string]string{"gpu.topology/allocation": "{}"}, "4711"
		},
		"another leader has freed its devices": func(pod *v1.Pod) {
			pod.Status.ExtendedResourceClaimStatus = &v1.PodExtendedResourceClaimStatus{ResourceClaimName: "c"}
			pod.Status.Conditions = []v1.PodCondition{{
				Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: "SchedulerError",
				Message: "an earlier attempt was cut off; its devices (ResourceClaim c) are freed",
			}}
			pod.ResourceVersion = "4711"
		},
		"unchanged": func(*v1.Pod) {},
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, node("n", "16"))
			h.service.plan(spread(2, "n")...)
			conflicting(h, change)
			h.runPlanned("m0", "m1")
			if r := next(t, "report", h.service.reports); r.Fate != musterv1.BindingFate_BINDING_FATE_REFUSED {
				t.Errorf("reported: %v", r)
			}
			if b := next(t, "binding", h.bound); b.Name != "m0" {
				t.Errorf("bound: %s", b.Name)
			}
		})
	}
}
