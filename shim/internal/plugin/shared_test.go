package plugin

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

const selectedNode = "volume.kubernetes.io/selected-node"

func (h *harness) claim(name string) *v1.PersistentVolumeClaim {
	h.t.Helper()
	claim, err := h.client.CoreV1().PersistentVolumeClaims("ns").Get(h.ctx, name, metav1.GetOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	return claim
}

// provision binds a claim to a new volume that all nodes can reach, as a driver and the controller manager do.
func (h *harness) provision(name string) {
	h.t.Helper()
	pv := localVolume("made-"+name, "shared", "", name)
	pv.Spec.NodeAffinity = nil
	if _, err := h.client.CoreV1().PersistentVolumes().Create(h.ctx, pv, metav1.CreateOptions{}); err != nil {
		h.t.Fatal(err)
	}
	claim := h.claim(name)
	claim.Spec.VolumeName = pv.Name
	claim.Annotations["pv.kubernetes.io/bind-completed"] = "yes"
	if _, err := h.client.CoreV1().PersistentVolumeClaims("ns").Update(h.ctx, claim, metav1.UpdateOptions{}); err != nil {
		h.t.Fatal(err)
	}
	h.until("the informers know the volume", func() bool {
		pvs, claims := h.plugin.handle.SharedInformerFactory().Core().V1().PersistentVolumes(), h.plugin.handle.SharedInformerFactory().Core().V1().PersistentVolumeClaims()
		_, err := pvs.Lister().Get(pv.Name)
		bound, err2 := claims.Lister().PersistentVolumeClaims("ns").Get(name)
		return err == nil && err2 == nil && bound.Spec.VolumeName != ""
	})
}

func TestASharedClaimHasItsVolumeBeforeItsGangStarts(t *testing.T) {
	h := newHarness(t, zoned(2)...)
	h.add(lateClass("shared", "example.com/shared"), claimOf("data", "shared", ""))
	h.run("")
	names := h.claimants("data", "data")
	h.service.plan([]string{"n1"}, []string{"n0"})
	h.service.ask(inTreeQuestion(1, names...))
	if refused, _ := refusalsOf(next(t, "answer", h.service.inTree), 0); len(refused) > 0 {
		t.Errorf("refused before the volume is asked for: %v", refused)
	}
	h.service.push(verdict(plannedOutcome, 1, names...))
	const want = "the volume of PersistentVolumeClaim data, which members share, is being made for node n1"
	if report := next(t, "report", h.service.reports); report.Plugin != "" || report.Message != want || report.Fate != fateNeverSent {
		t.Errorf("report: %v", report)
	}
	if on := h.claim("data").Annotations[selectedNode]; on != "n1" {
		t.Errorf("volume asked for on %q", on)
	}
	if by := next(t, "answer", h.service.inTree).Answers[0].Everywhere; by.GetPlugin() != "VolumeBinding" || by.GetReason() != want {
		t.Errorf("while it is being made: %v", by)
	}
	if !h.gated(names...) || h.nominated("n0")+h.nominated("n1") > 0 {
		t.Error("the gang holds something while its volume is being made")
	}
	// A new plan changes nothing.
	h.service.plan([]string{"n0"}, []string{"n1"})
	h.service.push(verdict(plannedOutcome, 2, names...))
	if report := next(t, "second report", h.service.reports); report.Message != want || h.claim("data").Annotations[selectedNode] != "n1" {
		t.Errorf("second report: %v", report)
	}
	h.provision("data")
	report := next(t, "answer, once it is made", h.service.inTree)
	if refused, _ := refusalsOf(report, 0); report.Answers[0].Everywhere != nil || len(refused) > 0 {
		t.Errorf("once it is made: %v", report)
	}
	h.service.push(verdict(plannedOutcome, 3, names...))
	h.waitForBindings(len(names))
}

func TestClaimsThatGoBeforeTheirGang(t *testing.T) {
	late := func() runtime.Object { return lateClass("shared", "example.com/shared") }
	claim := claimOf("data", "shared", "")
	claim.Annotations = map[string]string{selectedNode: "gone"}
	for name, test := range map[string]struct {
		claims  []string // claims of the members, in order
		objects []runtime.Object
		fails   bool
		on      map[string]string // claim → node for which its volume is requested
		bound   string            // volume that is bound to the claim "data"
		says    string            // "": the gang continues
	}{
		"a volume that is there": {
			claims:  []string{"data", "data"},
			objects: []runtime.Object{lateClass("shared", "kubernetes.io/no-provisioner"), claimOf("data", "shared", ""), localVolume("pv", "shared", "n0", "")},
			bound:   "pv", says: "PersistentVolumeClaim data",
		},
		"the member with most of them stands for all": {
			claims:  []string{"other", "data,other", "data"},
			objects: []runtime.Object{late(), claimOf("data", "shared", ""), claimOf("other", "shared", "")},
			on:      map[string]string{"data": "n1", "other": "n1"}, says: "is being made for node n1",
		},
		"one after another": {
			claims:  []string{"data", "data", "other", "other"},
			objects: []runtime.Object{late(), claimOf("data", "shared", ""), claimOf("other", "shared", "")},
			on:      map[string]string{"data": "n0", "other": ""}, says: "is being made for node n0",
		},
		"not those of one member alone": {
			claims:  []string{"data,own", "data"},
			objects: []runtime.Object{late(), claimOf("data", "shared", ""), claimOf("own", "shared", "")},
			on:      map[string]string{"data": "n0", "own": ""}, says: "PersistentVolumeClaim data,",
		},
		"mounted twice": {
			claims:  []string{"data,data", "data"},
			objects: []runtime.Object{late(), claimOf("data", "shared", "")},
			on:      map[string]string{"data": "n0"}, says: "is being made for node n0",
		},
		"asked for already, for a node that has gone": {
			claims:  []string{"data", "data"},
			objects: []runtime.Object{late(), claim},
			on:      map[string]string{"data": "gone"}, says: "is being made for a node that is not there",
		},
		"the API server says no": {
			claims: []string{"data", "data"}, fails: true,
			objects: []runtime.Object{late(), claimOf("data", "shared", "")},
			on:      map[string]string{"data": ""}, says: "no volume could be asked for PersistentVolumeClaim data: quota",
		},
		"nobody shares": {
			claims:  []string{"data", "other"},
			objects: []runtime.Object{late(), claimOf("data", "shared", ""), claimOf("other", "shared", "")},
		},
		"all have volumes": {
			claims:  []string{"data", "data"},
			objects: []runtime.Object{late(), localVolume("pv", "shared", "n0", "data"), claimOf("data", "shared", "pv")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, zoned(4)...)
			h.add(test.objects...)
			if test.fails {
				h.fake.PrependReactor("update", "persistentvolumeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
					return true, nil, errors.New("quota")
				})
			}
			h.run("")
			names := h.claimants(test.claims...)
			var plan [][]string
			for i := range names {
				plan = append(plan, []string{fmt.Sprintf("n%d", i)})
			}
			h.until("the informer knows the pods", func() bool {
				for _, name := range names {
					if _, err := h.plugin.pods.Pods("ns").Get(name); err != nil {
						return false
					}
				}
				return true
			})
			h.service.plan(plan...)
			h.service.push(verdict(plannedOutcome, 1, names...))
			if test.says == "" {
				h.until("a member reserves", func() bool { return strings.Contains(h.service.called(), "Reserve 1") })
				return
			}
			if report := next(t, "report", h.service.reports); !strings.Contains(report.Message, test.says) {
				t.Errorf("report: %v", report)
			}
			for claim, node := range test.on {
				if on := h.claim(claim).Annotations[selectedNode]; on != node {
					t.Errorf("volume of %s asked for on %q, want %q", claim, on, node)
				}
			}
			if test.bound != "" {
				pv, err := h.client.CoreV1().PersistentVolumes().Get(h.ctx, test.bound, metav1.GetOptions{})
				if err != nil || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.Name != "data" {
					t.Errorf("volume %v, %v", pv, err)
				}
			}
		})
	}
}
