package intree

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
)

// maxCachedAnswers bounds how many answers for pods of one namespace a round caches for other questions. An answer takes
// about 10 kB at 5,000 nodes, and a round has time for some hundreds of answers.
const maxCachedAnswers = 256

// round is the time in which one snapshot of the cluster is used: until the next cause, and for renewAfter at most.
type round struct {
	began  time.Time
	causes uint64 // Asker.causes when it began
}

// answers holds one encoded answer for each key of kindKey. Kinds of pods with equal keys share an answer.
type answers map[string]*encodedAnswer

// startRound starts a round: it takes a snapshot of the cluster and forgets the answers of the last round.
func (a *Asker) startRound() error {
	a.mu.Lock()
	a.round = round{causes: a.causes}
	a.answerCache = map[string]answers{}
	a.mu.Unlock()
	if a.scorer != nil {
		a.scorer.beginRound()
	}
	err := a.inspector.snapshot.refresh()
	if err == nil {
		a.round.began = time.Now()
	}
	return err
}

// ensureRound starts a new round if a cause has come since the last round began, or if that round is too old.
func (a *Asker) ensureRound() error {
	a.mu.Lock()
	outdated := a.round.causes != a.causes
	a.mu.Unlock()
	if outdated || time.Since(a.round.began) > renewAfter {
		return a.startRound()
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
	return a.inspector.snapshot.IsPVCUsedByPods(claim) || a.sorter.isReserved(claim)
}

// kindKey returns a string that is equal for kinds of one namespace that get the same answer. The key contains the labels
// of pods with preferences, because scores depend on them.
func kindKey(k *kind, pod *v1.Pod) string {
	key := fmt.Sprintf("%d %s", min(len(k.pods), maxRoom), k.key)
	if hasPreferences(pod) {
		key = fmt.Sprint(pod.Labels, key)
	}
	return key
}
