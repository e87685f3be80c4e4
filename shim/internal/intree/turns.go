package intree

// turns records when each question and namespace was last worked on. The namespace that has waited longest is next, with
// its question that has waited longest.
type turns struct {
	now        uint64
	renewals   uint64
	namespaces map[string]uint64
	questions  map[*question]uint64
}

// maxRemembered bounds the entries. When it is reached, all entries are cleared, and all questions are equal again.
const maxRemembered = 4096

func newTurns() turns {
	return turns{namespaces: map[string]uint64{}, questions: map[*question]uint64{}}
}

// record notes that a question is worked on now.
func (t *turns) record(q *question, reason workReason) {
	if len(t.questions) >= maxRemembered || len(t.namespaces) >= maxRemembered {
		clear(t.questions)
		clear(t.namespaces)
	}
	t.now++
	if reason != unanswered {
		t.renewals++
	}
	t.questions[q], t.namespaces[q.message.Namespace] = t.now, t.now
}

// isBefore returns whether the question comes before the other question. The two kinds of renewals alternate, so that
// neither kind can block the other: after an even number of renewals, those because of a claim that the pods name come
// first.
func (t *turns) isBefore(q *question, reason workReason, otherQuestion *question, otherReason workReason) bool {
	if reason != otherReason {
		order := [...]int{unanswered: 2, claimChanged: 0, otherChange: 1}
		if t.renewals%2 == 1 {
			order = [...]int{unanswered: 2, claimChanged: 1, otherChange: 0}
		}
		return order[reason] < order[otherReason]
	}
	if a, b := t.namespaces[q.message.Namespace], t.namespaces[otherQuestion.message.Namespace]; a != b {
		return a < b
	}
	return t.questions[q] < t.questions[otherQuestion]
}
