package plugin

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// change updates a pod as a user does.
func (h *harness) change(name string, how func(*v1.Pod)) {
	h.t.Helper()
	pod, err := h.client.CoreV1().Pods("ns").Get(h.ctx, name, metav1.GetOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	pod = pod.DeepCopy()
	how(pod)
	if _, err := h.client.CoreV1().Pods("ns").Update(h.ctx, pod, metav1.UpdateOptions{}); err != nil {
		h.t.Fatal(err)
	}
}

func label(pod *v1.Pod)    { pod.Labels = map[string]string{"gpu-topology": "g"} }
func annotate(pod *v1.Pod) { pod.Annotations = map[string]string{"gpu.topology/group": "g"} }
func unname(pod *v1.Pod)   { pod.Labels, pod.Annotations = nil, nil }

// A pod without GPUs that leaves its gang starts as any other pod does. No verdict comes for it any more.
func TestAPodThatLeavesItsGangStarts(t *testing.T) {
	for key, name := range map[string]func(*v1.Pod){"label": label, "annotation": annotate} {
		for state, reach := range map[string]func(*harness){
			"gated": func(h *harness) { h.until("gated", func() bool { return h.gated("p") }) },
			"refused": func(h *harness) {
				h.service.push(verdict(refusedOutcome, 1, "p"))
				h.until("refused", func() bool { return h.condition("p") != "" })
			},
			"at once": func(*harness) {},
		} {
			t.Run(key+", "+state, func(t *testing.T) {
				h := newHarness(t, node("n", "4"))
				h.service.refuse("nothing fits")
				h.run("")
				h.podsWith(name, "", "p")
				reach(h)
				h.change("p", unname)
				h.until("the pod is bound", h.foreignBound)
			})
		}
	}
}

// A pod that waits for a node and then joins a gang is held, and gets the gang's verdict.
func TestAPodThatJoinsAGangWaitsForItsVerdict(t *testing.T) {
	h := newHarness(t, node("n", "4"))
	h.service.refuse("nothing fits")
	h.run("")
	h.podsWith(func(pod *v1.Pod) { pod.Spec.NodeSelector = map[string]string{"no": "node"} }, "", "p")
	h.until("no node fits", func() bool { return h.condition("p") != "" })
	h.change("p", annotate)
	h.service.push(verdict(refusedOutcome, 1, "p"))
	h.until("the gang's reason", func() bool { return strings.Contains(h.condition("p"), "nothing fits") })
}
