package intree

import (
	"bytes"
	"context"
	"crypto/sha256"
	"iter"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"

	"muster.dev/shim/internal/metrics"
	"muster.dev/shim/internal/musterv1"
)

// work is an answer that is computed in slices.
type work struct {
	why   why
	next  func() (struct{}, bool) // runs one slice; false when the answer is done
	stop  func()
	began time.Time // start of the current slice
}

// slice works on a question for one slice of time.
func (a *Asker) slice(ctx context.Context, q *question, because why) {
	began := time.Now()
	a.turns.take(q, because)
	w := a.works[q]
	if w == nil {
		w = a.begin(ctx, q, because)
	}
	w.began = began
	if _, more := w.next(); !more {
		w.stop()
		delete(a.works, q)
	}
	took := time.Since(began)
	metrics.InTree(took)
	if because != first {
		if full := began.Add(-credit); a.restUntil.Before(full) {
			a.restUntil = full
		}
		a.restUntil = a.restUntil.Add((1 + restShare) * took)
	}
	a.tidy()
}

// begin starts the work on a question. The work runs in slices, effectively on Run's goroutine.
func (a *Asker) begin(ctx context.Context, q *question, because why) *work {
	w := &work{why: because}
	w.next, w.stop = iter.Pull(func(yield func(struct{}) bool) {
		on := true
		a.answer(ctx, q, func() bool {
			if on && time.Since(w.began) >= a.sliceFor {
				on = yield(struct{}{})
			}
			return on && ctx.Err() == nil
		})
	})
	a.works[q] = w
	return w
}

// tidy stops work on questions that were dropped or replaced.
func (a *Asker) tidy() {
	for q, w := range a.works {
		if !a.open(q) {
			w.stop()
			delete(a.works, q)
		}
	}
}

func (a *Asker) endWorks() {
	for q, w := range a.works {
		w.stop()
		delete(a.works, q)
	}
}

func (a *Asker) open(q *question) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.questions[q.asked.Gang] == q
}

// answer answers one question. It calls pause regularly, so that other questions can be worked on. It stops if pause
// returns false.
func (a *Asker) answer(ctx context.Context, q *question, pause func() bool) {
	a.began(q)
	if err := a.current(); err != nil {
		klog.FromContext(ctx).Error(err, "The cluster can't be listed for in-tree answers")
		a.again(q)
		return
	}
	pods, left := a.waiting(q)
	kept := a.keptOf(q.asked.Namespace) // not what is kept after a later change: keys tell how claims are now
	kinds, ok := a.sorter.kinds(pods, a.single, pause)
	if !ok {
		return
	}
	if a.incomplete(q, pods, kinds) {
		return
	}
	if left == 0 {
		a.drop(q)
		return
	}
	if report := a.inspect(ctx, pods, kinds, kept, pause); report != nil {
		a.send(ctx, q, report)
		if slices.ContainsFunc(pods, func(pod *v1.Pod) bool { return pod != nil && prefers(pod) }) {
			a.setDue(q, scoresAfter)
		}
	}
}

// inspect returns the report for all kinds of pods, or nil if pause returned false. It uses kept answers and adds to them.
func (a *Asker) inspect(ctx context.Context, pods []*v1.Pod, kinds []*kind, kept answers, pause func() bool) []*musterv1.ReportInTreeRequest {
	r := &reporter{}
	rated := &scores{scorer: a.scorer, first: map[string]map[string]uint32{}}
	without := a.shared.unprovisioned(pods)
	for _, k := range kinds {
		if len(k.missing) > 0 {
			r.add(k, pack(answer{}, a.inspector.snapshot.names))
			continue
		}
		alike := make([]*v1.Pod, len(k.pods))
		for i, at := range k.pods {
			alike[i] = pods[at]
		}
		if by := a.shared.refuses(alike[0], without); by != nil {
			r.add(k, pack(answer{everywhere: by}, a.inspector.snapshot.names))
			continue
		}
		key := keyOf(k, alike[0])
		found := kept[key]
		if found == nil {
			names := a.inspector.snapshot.names
			fresh := a.inspector.inspect(ctx, alike, pause)
			if fresh.everywhere == nil {
				fresh.scores = rated.of(ctx, alike[0], fresh.refused)
			}
			if !pause() {
				return nil
			}
			found = pack(fresh, names)
			if len(kept) < keptOfOne {
				kept[key] = found
			}
		}
		r.add(k, found)
	}
	return r.report()
}

// waiting returns the question's unbound pods, with nil in place of the others, and their number. It also stores the
// claims that they name.
func (a *Asker) waiting(q *question) (pods []*v1.Pod, left int) {
	pods = make([]*v1.Pod, len(q.asked.Names))
	claims, unnamed := sets.New[string](), false
	for i, name := range q.asked.Names {
		pod, err := a.pods.Pods(q.asked.Namespace).Get(name)
		if err != nil || string(pod.UID) != q.asked.Uids[i] || pod.Spec.NodeName != "" {
			continue
		}
		pods[i], left = pod, left+1
		for at := range pod.Spec.Volumes[:min(len(pod.Spec.Volumes), volumesAtMost)] {
			if claim := claimName(pod, &pod.Spec.Volumes[at]); claim != "" {
				claims.Insert(claim)
			}
		}
		for at := range pod.Spec.ResourceClaims {
			claim, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[at])
			if unnamed = unnamed || err != nil; claim != nil {
				claims.Insert(deviceClaim(*claim))
			}
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if q.claims = claims; unnamed { // the pod's status will name the claim, which is no cause
		q.due = time.Now().Add(renewAfter)
	}
	return pods, left
}

// began records that the answer covers all changes up to now. After a change the question is answered once more later:
// the plugins read caches that other handlers fill, such as that of patched ResourceSlices, and such a handler may be
// called after ours.
func (a *Asker) began(q *question) {
	a.mu.Lock()
	defer a.mu.Unlock()
	next := never
	if q.named || q.causes < a.causes {
		next = onceMoreAfter
	}
	q.named, q.causes = false, a.causes
	q.due, q.notUntil = time.Now().Add(next), time.Now().Add(renewAfter)
}

// incomplete returns true if the informers lack a pod or a claim, and sets the time of the next try. A pod's claims
// may be created just after it, and those of ephemeral volumes always are. After some tries it returns false, and the
// answer reports what is known.
func (a *Asker) incomplete(q *question, pods []*v1.Pod, kinds []*kind) bool {
	lacks := slices.Contains(pods, nil) ||
		slices.ContainsFunc(kinds, func(k *kind) bool { return len(k.missing) > 0 })
	q.tries++
	a.mu.Lock()
	defer a.mu.Unlock()
	if lacks && q.tries <= retries {
		q.due = time.Now().Add(retryAfter)
		return true
	}
	q.answered = true
	return false
}

// setDue sets the time at which a question is answered again even if no cause has changed.
func (a *Asker) setDue(q *question, after time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if due := time.Now().Add(after); due.Before(q.due) {
		q.due = due
	}
}

// again schedules another try of a question. The pause grows with each failure.
func (a *Asker) again(q *question) {
	pause := min(reportAfter<<min(q.failures, 10), reportAtMost)
	q.failures++
	a.mu.Lock()
	defer a.mu.Unlock()
	q.due, q.notUntil = time.Now().Add(pause), time.Now().Add(pause)
}

// send sends a report to the service, unless it equals the last one.
func (a *Asker) send(ctx context.Context, q *question, parts []*musterv1.ReportInTreeRequest) {
	digest := sha256.New()
	for _, part := range parts {
		part.Epoch, part.Gang, part.Question = q.epoch, q.asked.Gang, q.asked.Question
		text, err := proto.MarshalOptions{Deterministic: true}.Marshal(part)
		if err != nil { // a name that is not UTF-8
			klog.FromContext(ctx).Error(err, "In-tree answers can't be reported", "gang", part.Gang)
			return
		}
		digest.Write(text)
	}
	sum := digest.Sum(nil)
	if bytes.Equal(sum, q.last) {
		return
	}
	for _, part := range parts {
		switch err := a.report(ctx, part); status.Code(err) {
		case codes.OK:
		case codes.FailedPrecondition, codes.InvalidArgument, codes.Unimplemented:
			a.drop(q)
			return
		default:
			klog.FromContext(ctx).V(3).Info("Reporting in-tree answers again", "gang", part.Gang, "error", err)
			a.again(q)
			return
		}
	}
	q.last, q.failures = sum, 0
}

// drop removes a question, unless another question has replaced it.
func (a *Asker) drop(q *question) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.questions[q.asked.Gang] == q {
		delete(a.questions, q.asked.Gang)
	}
}
