package intree

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// keptAnswers bounds how many answers a round keeps for other questions: about 10 kB each at 5,000 nodes.
const keptAnswers = 1024

// round is what is known of the cluster since the last event, for a second at most.
type round struct {
	began  time.Time
	events uint64
	meant  sets.Set[string] // claims that a volume is reserved for
	kept   map[string]*packed
}

// renew begins a round: it takes a snapshot of the cluster, and forgets answers.
func (a *Asker) renew() error {
	a.mu.Lock()
	a.round = round{events: a.events, kept: map[string]*packed{}}
	a.mu.Unlock()
	if a.scorer != nil {
		a.scorer.begin()
	}
	a.round.meant = a.sorter.meant()
	err := a.inspector.snapshot.renew(a.handle.SharedInformerFactory().Core().V1().Nodes().Lister(), a.pods)
	if err == nil {
		a.round.began = time.Now()
	}
	return err
}

// current renews unless the round is still true.
func (a *Asker) current() error {
	a.mu.Lock()
	old := a.round.events != a.events
	a.mu.Unlock()
	if old || time.Since(a.round.began) > renewAfter {
		return a.renew()
	}
	return nil
}

// single says whether a claim is like no other: a bound pod uses it, or a volume is reserved for it.
func (a *Asker) single(claim string) bool {
	return a.inspector.snapshot.IsPVCUsedByPods(claim) || a.round.meant.Has(claim)
}

// keyOf is equal for kinds of different questions that get the same answer. Scores depend on the pods' labels.
func keyOf(k *kind, pod *v1.Pod) string {
	key := fmt.Sprintf("%d %s", min(len(k.pods), roomAtMost), k.key)
	if prefers(pod) {
		key = fmt.Sprint(pod.Labels, key)
	}
	return key
}
