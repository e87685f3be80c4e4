package intree

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
)

// maxCachedAnswers bounds how many answers for pods of one namespace a round caches for other questions. An answer takes
// about 10 kB at 5,000 nodes, and a round has time for some hundreds of answers.
const maxCachedAnswers = 256

// round is the state of the cluster since the last event. It is used for at most renewAfter.
type round struct {
	began  time.Time
	causes uint64 // Asker.causes when it began
}

// answers holds one packed answer for each key of keyOf: kinds of pods with equal keys share it.
type answers map[string]*packed

// renew starts a round: it takes a snapshot of the cluster and forgets the answers of the last round.
func (a *Asker) renew() error {
	a.mu.Lock()
	a.round = round{causes: a.causes}
	a.answerCache = map[string]answers{}
	a.mu.Unlock()
	if a.scorer != nil {
		a.scorer.begin()
	}
	err := a.inspector.snapshot.renew()
	if err == nil {
		a.round.began = time.Now()
	}
	return err
}

// current starts a new round if an event has occurred or the round is too old.
func (a *Asker) current() error {
	a.mu.Lock()
	outdated := a.round.causes != a.causes
	a.mu.Unlock()
	if outdated || time.Since(a.round.began) > renewAfter {
		return a.renew()
	}
	return nil
}

// cachedAnswers returns the cached answers for pods of a namespace.
func (a *Asker) cachedAnswers(namespace string) answers {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.answerCache[namespace] == nil {
		a.answerCache[namespace] = answers{}
	}
	return a.answerCache[namespace]
}

// isUnique returns whether a claim differs from all others: a bound pod uses it, or a volume is reserved for it.
func (a *Asker) isUnique(claim string) bool {
	return a.inspector.snapshot.IsPVCUsedByPods(claim) || a.sorter.reserved(claim)
}

// keyOf returns a string that is equal for kinds of one namespace that get the same answer. The key contains the labels
// of pods with preferences, because scores depend on them.
func keyOf(k *kind, pod *v1.Pod) string {
	key := fmt.Sprintf("%d %s", min(len(k.pods), roomAtMost), k.key)
	if prefers(pod) {
		key = fmt.Sprint(pod.Labels, key)
	}
	return key
}
