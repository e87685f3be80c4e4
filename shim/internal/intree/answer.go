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

// answerJob computes an answer in slices of time.
type answerJob struct {
	reason     workReason
	next       func() (struct{}, bool) // runs one slice; false when the answer is done
	stop       func()
	sliceStart time.Time // start of the current slice
}

// runSlice works on a question for one slice of time.
func (a *Asker) runSlice(ctx context.Context, q *question, reason workReason) {
	start := time.Now()
	a.turns.record(q, reason)
	job := a.jobs[q]
	if job == nil {
		job = a.startJob(ctx, q, reason)
	}
	job.sliceStart = start
	if _, unfinished := job.next(); !unfinished {
		job.stop()
		delete(a.jobs, q)
	}
	duration := time.Since(start)
	metrics.RecordSlice(duration)
	if reason != unanswered {
		if fullCredit := start.Add(-credit); a.restUntil.Before(fullCredit) {
			a.restUntil = fullCredit
		}
		a.restUntil = a.restUntil.Add((1 + restShare) * duration)
	}
	a.stopDroppedJobs()
}

// startJob starts the work on a question. The job runs in slices, effectively on Run's goroutine.
func (a *Asker) startJob(ctx context.Context, q *question, reason workReason) *answerJob {
	job := &answerJob{reason: reason}
	job.next, job.stop = iter.Pull(func(yield func(struct{}) bool) {
		mayRun := true
		a.answerQuestion(ctx, q, func() bool {
			if mayRun && time.Since(job.sliceStart) >= a.sliceFor {
				mayRun = yield(struct{}{})
			}
			return mayRun && ctx.Err() == nil
		})
	})
	a.jobs[q] = job
	return job
}

// stopDroppedJobs stops the jobs whose questions were dropped or replaced.
func (a *Asker) stopDroppedJobs() {
	for q, job := range a.jobs {
		if !a.isOpen(q) {
			job.stop()
			delete(a.jobs, q)
		}
	}
}

func (a *Asker) stopJobs() {
	for q, job := range a.jobs {
		job.stop()
		delete(a.jobs, q)
	}
}

func (a *Asker) isOpen(q *question) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.questions[q.message.Gang] == q
}

// answerQuestion answers one question. It calls pause regularly, so that other questions can be worked on. It stops if
// pause returns false.
func (a *Asker) answerQuestion(ctx context.Context, q *question, pause func() bool) {
	a.recordStart(q)
	if err := a.ensureRound(); err != nil {
		klog.FromContext(ctx).Error(err, "The cluster can't be listed for in-tree answers")
		a.retryLater(q)
		return
	}
	pods, count := a.unboundPods(q)
	cached := a.cachedAnswers(q.message.Namespace) // this round's map: after a change another map is current, and its keys describe other claims
	kinds, ok := a.sorter.groupPods(pods, a.isUnique, pause)
	if !ok {
		return
	}
	if a.retryIfIncomplete(q, pods, kinds) {
		return
	}
	if count == 0 {
		a.dropQuestion(q)
		return
	}
	if report := a.buildReport(ctx, pods, kinds, cached, pause); report != nil {
		a.sendReport(ctx, q, report)
		if slices.ContainsFunc(pods, func(pod *v1.Pod) bool { return pod != nil && hasPreferences(pod) }) {
			a.setDue(q, scoresAfter)
		}
	}
}

// buildReport returns the report for all kinds of pods, or nil if pause returned false. It uses cached answers, and adds
// new answers to the cache.
func (a *Asker) buildReport(ctx context.Context, pods []*v1.Pod, kinds []*kind, cached answers, pause func() bool) []*musterv1.ReportInTreeRequest {
	r := &reporter{}
	podScores := &scores{scorer: a.scorer, byPreferences: map[string]map[string]uint32{}}
	nodeByClaim := a.shared.unprovisionedClaims(pods)
	for _, k := range kinds {
		if len(k.missing) > 0 {
			r.add(k, encodeAnswer(answer{}, a.inspector.snapshot.names))
			continue
		}
		kindPods := make([]*v1.Pod, len(k.pods))
		for i, index := range k.pods {
			kindPods[i] = pods[index]
		}
		if volumeRefusal := a.shared.claimRefusal(kindPods[0], nodeByClaim); volumeRefusal != nil {
			r.add(k, encodeAnswer(answer{everywhere: volumeRefusal}, a.inspector.snapshot.names))
			continue
		}
		key := kindKey(k, kindPods[0])
		encoded := cached[key]
		if encoded == nil {
			names := a.inspector.snapshot.names
			result := a.inspector.inspect(ctx, kindPods, pause)
			if result.everywhere == nil {
				result.scores = podScores.scoresOf(ctx, kindPods[0], result.refused)
			}
			if !pause() {
				return nil
			}
			encoded = encodeAnswer(result, names)
			if len(cached) < maxCachedAnswers {
				cached[key] = encoded
			}
		}
		r.add(k, encoded)
	}
	return r.allParts()
}

// unboundPods returns the question's unbound pods, with nil in place of other pods, and their number. It also stores the
// claims that they name.
func (a *Asker) unboundPods(q *question) (pods []*v1.Pod, count int) {
	pods = make([]*v1.Pod, len(q.message.Names))
	claims, unnamed := sets.New[string](), false
	for i, name := range q.message.Names {
		pod, err := a.pods.Pods(q.message.Namespace).Get(name)
		if err != nil || string(pod.UID) != q.message.Uids[i] || pod.Spec.NodeName != "" {
			continue
		}
		pods[i], count = pod, count+1
		for j := range pod.Spec.Volumes[:min(len(pod.Spec.Volumes), maxVolumes)] {
			if claim := claimName(pod, &pod.Spec.Volumes[j]); claim != "" {
				claims.Insert(claim)
			}
		}
		for j := range pod.Spec.ResourceClaims {
			claim, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[j])
			if unnamed = unnamed || err != nil; claim != nil {
				claims.Insert(deviceClaimKey(*claim))
			}
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if q.claims = claims; unnamed { // the pod's status will name the claim, and a change of the status is no cause
		q.due = time.Now().Add(renewAfter)
	}
	return pods, count
}

// recordStart records that the answer covers all changes up to now. After a change the question is answered once more
// later. The reason: the plugins read caches that other handlers fill, for example the cache of patched ResourceSlices.
// Such a handler may be called after ours, so the plugins may have read old data.
func (a *Asker) recordStart(q *question) {
	a.mu.Lock()
	defer a.mu.Unlock()
	next := never
	if q.claimChanged || q.causes < a.causes {
		next = onceMoreAfter
	}
	q.claimChanged, q.causes = false, a.causes
	q.due, q.notUntil = time.Now().Add(next), time.Now().Add(renewAfter)
}

// retryIfIncomplete sets the time of the next try and returns true if the informers lack a pod or a claim. A pod's claims
// may be created just after the pod, and claims of ephemeral volumes always are. After the last try it returns false. Then
// the answer omits the missing pods and names the missing claims.
func (a *Asker) retryIfIncomplete(q *question, pods []*v1.Pod, kinds []*kind) bool {
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

// setDue sets the time at which a question is answered again, even without a cause.
func (a *Asker) setDue(q *question, after time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if due := time.Now().Add(after); due.Before(q.due) {
		q.due = due
	}
}

// retryLater schedules another try of a question. The pause grows with each failure.
func (a *Asker) retryLater(q *question) {
	pause := min(reportAfter<<min(q.failures, 10), maxReportPause)
	q.failures++
	a.mu.Lock()
	defer a.mu.Unlock()
	q.due, q.notUntil = time.Now().Add(pause), time.Now().Add(pause)
}

// sendReport sends a report to the service, unless it equals the last one.
func (a *Asker) sendReport(ctx context.Context, q *question, parts []*musterv1.ReportInTreeRequest) {
	digest := sha256.New()
	for _, part := range parts {
		part.Epoch, part.Gang, part.Question = q.epoch, q.message.Gang, q.message.Question
		text, err := proto.MarshalOptions{Deterministic: true}.Marshal(part)
		if err != nil { // a name that is not UTF-8
			klog.FromContext(ctx).Error(err, "In-tree answers can't be reported", "gang", part.Gang)
			return
		}
		digest.Write(text)
	}
	sum := digest.Sum(nil)
	if bytes.Equal(sum, q.lastDigest) {
		return
	}
	for _, part := range parts {
		switch err := a.report(ctx, part); status.Code(err) {
		case codes.OK:
		case codes.FailedPrecondition, codes.InvalidArgument, codes.Unimplemented:
			a.dropQuestion(q)
			return
		default:
			klog.FromContext(ctx).V(3).Info("Reporting in-tree answers again", "gang", part.Gang, "error", err)
			a.retryLater(q)
			return
		}
	}
	q.lastDigest, q.failures = sum, 0
}

// dropQuestion removes a question, unless another question has replaced it.
func (a *Asker) dropQuestion(q *question) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.questions[q.message.Gang] == q {
		delete(a.questions, q.message.Gang)
	}
}
