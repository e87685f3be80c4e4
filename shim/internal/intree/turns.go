package intree

// turns remembers who was worked on when: the namespace that waits longest is next, and in it the question that does.
type turns struct {
	now        uint64
	renewals   uint64
	namespaces map[string]uint64
	questions  map[*question]uint64
}

// remembered bounds the turns that are kept. Without them everybody has equal turns again.
const remembered = 4096

func newTurns() turns {
	return turns{namespaces: map[string]uint64{}, questions: map[*question]uint64{}}
}

// take notes that a question has its turn.
func (t *turns) take(q *question, because why) {
	if len(t.questions) >= remembered || len(t.namespaces) >= remembered {
		clear(t.questions)
		clear(t.namespaces)
	}
	t.now++
	if because != first {
		t.renewals++
	}
	t.questions[q], t.namespaces[q.asked.Namespace] = t.now, t.now
}

// before says whether the question comes before the other. Of renewals those that an object named go first; every
// second turn is of the others, so that nobody can keep them waiting.
func (t *turns) before(q *question, is why, other *question, was why) bool {
	if is != was {
		order := [...]int{first: 2, named: 0, changed: 1}
		if t.renewals%2 == 1 {
			order = [...]int{first: 2, named: 1, changed: 0}
		}
		return order[is] < order[was]
	}
	if a, b := t.namespaces[q.asked.Namespace], t.namespaces[other.asked.Namespace]; a != b {
		return a < b
	}
	return t.questions[q] < t.questions[other]
}
