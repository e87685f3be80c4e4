package intree

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	schedulermetrics "k8s.io/kubernetes/pkg/scheduler/metrics"

	"muster.dev/shim/internal/musterv1"
)

func questionOf(gang int) *musterv1.InTreeQuestion {
	pod := fmt.Sprintf("p%d", gang)
	return &musterv1.InTreeQuestion{Gang: fmt.Sprint(gang), Question: 1, Namespace: "ns", Names: []string{pod}, Uids: []string{pod}}
}

func TestANewQuestionDoesNotWaitForARenewal(t *testing.T) {
	schedulermetrics.Register()
	const gangs = 20
	client := fake.NewClientset(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
	for i := range gangs + 1 {
		for _, object := range []metav1.Object{claim(i, "late", ""), userOf(i, fmt.Sprintf("c%d", i), "")} {
			var err error
			switch made := object.(type) {
			case *v1.Pod:
				err = client.Tracker().Add(made)
			case *v1.PersistentVolumeClaim:
				err = client.Tracker().Add(made)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	handle, err := frameworkruntime.NewFramework(t.Context(), nil, nil,
		frameworkruntime.WithClientSet(client), frameworkruntime.WithInformerFactory(factory))
	if err != nil {
		t.Fatal(err)
	}
	told := []string{}
	var a *Asker
	a = New(handle, func(_ context.Context, r *musterv1.ReportInTreeRequest) error {
		told = append(told, r.Gang)
		if len(told) == gangs+3 {
			a.Ask(questionOf(gangs)) // a renewal is under way
		}
		return status.Error(codes.Unavailable, "so that all is told again")
	})
	if err := a.prepare(t.Context(), []config.Plugin{{Name: names.VolumeBinding}}, nil); err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	a.Begin(1)
	for i := range gangs {
		a.Ask(questionOf(i))
	}
	for round := range 2 {
		due, renews, _ := a.due(time.Now())
		if len(due) != gangs || renews != (round == 1) {
			t.Fatalf("round %d: %d due, renews %v", round, len(due), renews)
		}
		a.answerAll(t.Context(), due)
		a.touched()
	}
	if at := slices.Index(told, fmt.Sprint(gangs)); at != gangs+3 {
		t.Errorf("the new question was answered at %d of %d, want %d", at, len(told), gangs+3)
	}
	if len(told) != 2*gangs+1 {
		t.Errorf("%d reports, want %d: each question once a round", len(told), 2*gangs+1)
	}
}
