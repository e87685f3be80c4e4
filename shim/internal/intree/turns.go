package intree

// turns records when each question and namespace was last worked on. The next namespace is the one that has waited
// longest, and so is the question within it.
type turns struct {
	now        uint64
	renewals   uint64
	namespaces map[string]uint64
	questions  map[*question]uint64
}

// remembered bounds the entries that are kept. When it is reached, all entries are cleared, and all questions are
// equal again.
const remembered = 4096

func newTurns() turns {
	return turns{namespaces: map[string]uint64{}, questions: map[*question]uint64{}}
}

// take records that a question is worked on now.
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

// before returns whether the question comes before the other. Renewals because of an object that the pods name come
// before other renewals. After every second renewal it is the other way round, so that neither kind can block the
// other.
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
