package intree

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"muster.dev/shim/internal/musterv1"
)

// reporter builds one report: names of nodes, and pairs of plugin and reason, are in it once.
type reporter struct {
	report   *musterv1.ReportInTreeRequest
	nodes    map[string]uint32
	refusals map[refusal]uint32
	same     map[string]*musterv1.InTreeAnswer
}

func newReporter() *reporter {
	return &reporter{
		report: &musterv1.ReportInTreeRequest{}, nodes: map[string]uint32{}, refusals: map[refusal]uint32{},
		same: map[string]*musterv1.InTreeAnswer{},
	}
}

// add appends the answer for a kind. Equal answers give equal reports, so that an unchanged one can be told.
func (r *reporter) add(k *kind, found answer) {
	said := &musterv1.InTreeAnswer{MissingClaims: k.missing}
	for _, i := range k.pods {
		said.Pods = append(said.Pods, uint32(i))
	}
	if found.everywhere != nil {
		said.Everywhere = &musterv1.InTreeRefusal{Plugin: found.everywhere.plugin, Reason: found.everywhere.reason}
	}
	for _, node := range slices.Sorted(maps.Keys(found.refused)) {
		said.RefusedNodes = append(said.RefusedNodes, r.node(node))
		said.RefusedBy = append(said.RefusedBy, r.refusal(found.refused[node]))
	}
	for _, node := range slices.Sorted(maps.Keys(found.scores)) {
		said.ScoredNodes = append(said.ScoredNodes, r.node(node))
		said.Scores = append(said.Scores, found.scores[node])
	}
	for _, node := range slices.Sorted(maps.Keys(found.room)) {
		said.RoomNodes = append(said.RoomNodes, r.node(node))
		said.Room = append(said.Room, uint32(found.room[node]))
	}
	r.append(said)
}

// append merges kinds that get the same answer. Not those with room: it counts the pods of one kind.
func (r *reporter) append(said *musterv1.InTreeAnswer) {
	pods := said.Pods
	said.Pods = nil
	key, err := proto.MarshalOptions{Deterministic: true}.Marshal(said)
	if same := r.same[string(key)]; err == nil && len(said.Room) == 0 && same != nil {
		same.Pods = append(same.Pods, pods...)
		return
	}
	said.Pods = pods
	r.same[string(key)] = said
	r.report.Answers = append(r.report.Answers, said)
}

func (r *reporter) node(name string) uint32 {
	at, known := r.nodes[name]
	if !known {
		at = uint32(len(r.report.Nodes))
		r.nodes[name] = at
		r.report.Nodes = append(r.report.Nodes, name)
	}
	return at
}

func (r *reporter) refusal(which refusal) uint32 {
	at, known := r.refusals[which]
	if !known {
		at = uint32(len(r.report.Refusals))
		r.refusals[which] = at
		r.report.Refusals = append(r.report.Refusals, &musterv1.InTreeRefusal{Plugin: which.plugin, Reason: which.reason})
	}
	return at
}
