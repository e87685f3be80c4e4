package gangs

import (
	"fmt"

	"muster.dev/shim/internal/musterv1"
)

// Answer is what Filter and Score said for a whole gang, checked once, so that a hook may index it.
type Answer struct {
	reason     string
	nodes      []string
	offsets    []uint32
	candidates []uint32
	scores     []uint32
}

// Refusal keeps the sentence of a refused gang.
func Refusal(reason string) *Answer { return &Answer{reason: reason} }

// NewAnswer checks the indices: a bad one must cost this gang, not the scheduler.
func NewAnswer(members int, filter *musterv1.FilterResponse, score *musterv1.ScoreResponse) (*Answer, error) {
	a := &Answer{nodes: filter.Nodes, offsets: filter.Offsets, candidates: filter.Candidates, scores: score.Scores}
	if len(a.offsets) != members+1 {
		return nil, fmt.Errorf("%d offsets for %d members", len(a.offsets), members)
	}
	if int(a.offsets[members]) != len(a.candidates) {
		return nil, fmt.Errorf("offsets end at %d of %d candidates", a.offsets[members], len(a.candidates))
	}
	if len(a.scores) != len(a.candidates) {
		return nil, fmt.Errorf("%d scores for %d candidates", len(a.scores), len(a.candidates))
	}
	for i := range members {
		if a.offsets[i] >= a.offsets[i+1] {
			return nil, fmt.Errorf("member %d has no candidate", i)
		}
	}
	for _, c := range a.candidates {
		if int(c) >= len(a.nodes) {
			return nil, fmt.Errorf("candidate %d of %d nodes", c, len(a.nodes))
		}
	}
	return a, nil
}

// Planned is the node that member i is meant for.
func (a *Answer) Planned(i int) string { return a.nodes[a.candidates[a.offsets[i]]] }

// Candidates counts the nodes that member i may go to.
func (a *Answer) Candidates(i int) int { return int(a.offsets[i+1] - a.offsets[i]) }

// Scores maps each node that member i may go to, or only the planned one, to its score, at most 100 as the
// framework demands.
func (a *Answer) Scores(i int, only bool) map[string]int64 {
	first, end := a.offsets[i], a.offsets[i+1]
	if only {
		end = first + 1
	}
	scores := make(map[string]int64, end-first)
	for at := first; at < end; at++ {
		scores[a.nodes[a.candidates[at]]] = int64(min(a.scores[at], 100))
	}
	return scores
}
