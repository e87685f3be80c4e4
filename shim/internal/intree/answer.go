package intree

import (
	"bytes"
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"muster.dev/shim/internal/musterv1"
)

// answerAll answers these questions, and reports what has changed. It may take many seconds where many gangs wait.
// Questions that come meanwhile go between: the service waits for their answers, and plans without after a time.
func (a *Asker) answerAll(ctx context.Context, due []*question) {
	if !a.answerSome(ctx, due[:1]) {
		return
	}
	for i := range due[1:] {
		if first := a.unanswered(time.Now()); len(first) > 0 && !a.answerSome(ctx, first) {
			return
		}
		if ctx.Err() != nil {
			return
		}
		a.answer(ctx, due[1+i])
	}
}

// answerSome answers on a new snapshot; whether there is one.
func (a *Asker) answerSome(ctx context.Context, due []*question) bool {
	if err := a.renew(); err != nil {
		klog.FromContext(ctx).Error(err, "The cluster can't be listed for in-tree answers")
		return false
	}
	for _, q := range due {
		if ctx.Err() != nil {
			return false
		}
		a.answer(ctx, q)
	}
	return true
}

// answer answers one question on the snapshot as it is.
func (a *Asker) answer(ctx context.Context, q *question) {
	pods, left := a.waiting(q)
	kinds := a.sorter.kinds(pods, a.inspector.snapshot.IsPVCUsedByPods)
	if a.early(q, pods, kinds) {
		return
	}
	if left == 0 {
		a.drop(q)
		return
	}
	began := time.Now()
	report := a.inspect(ctx, pods, kinds)
	report.Epoch, report.Gang, report.Question = q.epoch, q.asked.Gang, q.asked.Question
	a.send(ctx, q, report)
	if slices.ContainsFunc(pods, func(pod *v1.Pod) bool { return pod != nil && prefers(pod) }) {
		a.scoreAgain(q, time.Since(began))
	}
}

// renew takes a snapshot of the cluster.
func (a *Asker) renew() error {
	if a.scorer != nil {
		a.scorer.begin()
	}
	return a.inspector.snapshot.renew(a.handle.SharedInformerFactory().Core().V1().Nodes().Lister(), a.pods)
}

// inspect answers for each kind of pods.
func (a *Asker) inspect(ctx context.Context, pods []*v1.Pod, kinds []*kind) *musterv1.ReportInTreeRequest {
	r := newReporter()
	rated := &scores{scorer: a.scorer, first: map[string]map[string]uint32{}}
	for _, k := range kinds {
		if len(k.missing) > 0 {
			r.add(k, answer{})
			continue
		}
		alike := make([]*v1.Pod, len(k.pods))
		for i, at := range k.pods {
			alike[i] = pods[at]
		}
		found := a.inspector.inspect(ctx, alike)
		if found.everywhere == nil {
			found.scores = rated.of(ctx, alike[0], found.refused)
		}
		r.add(k, found)
	}
	return r.report
}

// waiting are the question's pods that are not bound, nil for the others; it notes their claims.
func (a *Asker) waiting(q *question) (pods []*v1.Pod, left int) {
	pods = make([]*v1.Pod, len(q.asked.Names))
	claims := sets.New[string]()
	for i, name := range q.asked.Names {
		pod, err := a.pods.Pods(q.asked.Namespace).Get(name)
		if err != nil || string(pod.UID) != q.asked.Uids[i] || pod.Spec.NodeName != "" {
			continue
		}
		pods[i], left = pod, left+1
		for at := range pod.Spec.Volumes {
			if claim := claimName(pod, &pod.Spec.Volumes[at]); claim != "" {
				claims.Insert(pod.Namespace + "/" + claim)
			}
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	q.claims = claims
	return pods, left
}

// early says that the informers do not know all yet, and sets the time of the next try. A pod's claims may
// come a moment after it, as those of ephemeral volumes always do.
func (a *Asker) early(q *question, pods []*v1.Pod, kinds []*kind) bool {
	lacks := false
	for _, pod := range pods {
		lacks = lacks || pod == nil
	}
	for _, k := range kinds {
		lacks = lacks || len(k.missing) > 0
	}
	q.tries++
	a.mu.Lock()
	defer a.mu.Unlock()
	if lacks && q.tries <= retries {
		q.due = time.Now().Add(retryAfter)
		return true
	}
	q.due = time.Now().Add(never)
	return false
}

// scoreAgain sets the time at which a question is answered for new scores. However many there are, such answers
// take a part of the time alone, as renewals do.
func (a *Asker) scoreAgain(q *question, took time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	q.due = time.Now().Add(max(scoresAfter, restShare*took*time.Duration(len(a.questions))))
}

// send reports to the service unless it has heard the same already. A report that fails is tried again with
// the next renewal.
func (a *Asker) send(ctx context.Context, q *question, report *musterv1.ReportInTreeRequest) {
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(report)
	if err == nil && bytes.Equal(text, q.last) {
		return
	}
	switch err := a.report(ctx, report); status.Code(err) {
	case codes.OK:
		q.last = text
	case codes.FailedPrecondition, codes.InvalidArgument, codes.Unimplemented:
		a.drop(q)
	default:
		klog.FromContext(ctx).V(3).Info("Reporting in-tree answers again", "gang", report.Gang, "error", err)
		a.touched()
	}
}

// drop forgets a question, unless another has replaced it.
func (a *Asker) drop(q *question) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.questions[q.asked.Gang] == q {
		delete(a.questions, q.asked.Gang)
	}
}
