package intree

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"muster.dev/shim/internal/devices"
	"muster.dev/shim/internal/musterv1"
)

const (
	// partAtMost bounds the answers in one part of a report, in bytes, apart from the names of nodes. The service
	// reads a part in some milliseconds.
	partAtMost = 128 << 10
	// refusalsAtMost is the number of refusals that one byte can encode. Further pairs of plugin and reason are
	// reported as the refusal `further`.
	refusalsAtMost = 255
	// setsAtMost is the number of sets of devices that one byte can encode. setBytes bounds all of an answer, in bytes.
	// Nodes with further sets are refused as `unlike`.
	setsAtMost, setBytes = 255, 256 << 10
	// reasonAtMost bounds a reason, in bytes.
	reasonAtMost = 1024
	// missingAtMost bounds how many missing claims are named.
	missingAtMost = 64
)

var (
	further = refusal{"", "further reasons"}
	unlike  = refusal{devices.Name, "resourceClaims: the GPUs that match differ on too many nodes; ask with simpler selectors"}
)

// packed is an answer in the form in which it is kept and sent: columns with one byte per node. A column is empty if
// all its bytes are 0.
type packed struct {
	nodes                 []string
	refusals              []refusal // refused holds the index + 1
	sets                  []gpuSet  // devices holds the index + 1
	refused, room, scores []byte
	devices               [][]byte // a column for each subrequest
	everywhere            *refusal
}

// pack encodes an answer for these nodes.
func pack(found answer, nodes []string) *packed {
	p := &packed{nodes: nodes, everywhere: found.everywhere}
	if found.everywhere != nil {
		p.everywhere = &refusal{found.everywhere.plugin, short(found.everywhere.reason)}
	}
	index, sets := map[refusal]byte{}, map[string]byte{"": 0}
	p.sets = firstSets(found.devices, nodes)
	for i, set := range p.sets {
		sets[set.key] = byte(i + 1)
	}
	for i, node := range nodes {
		for rank, gpus := range found.devices[node] {
			at, known := sets[gpus.key]
			if _, out := found.refused[node]; !known && !out {
				p.refused = set(p.refused, len(nodes), i, p.index(index, unlike))
			}
			if rank == len(p.devices) {
				p.devices = append(p.devices, make([]byte, len(nodes)))
			}
			p.devices[rank][i] = at
		}
		if by, out := found.refused[node]; out {
			p.refused = set(p.refused, len(nodes), i, p.index(index, by))
		}
		if room := found.room[node]; room > 0 {
			p.room = set(p.room, len(nodes), i, byte(room))
		}
		if score := found.scores[node]; score > 0 {
			p.scores = set(p.scores, len(nodes), i, byte(score))
		}
	}
	return p
}

// firstSets returns the sets of devices that are told: those of most nodes first, and of these the shortest. Else a node
// that publishes thousands of devices could have others refused.
func firstSets(devices map[string][]gpuSet, nodes []string) (first []gpuSet) {
	var sets []gpuSet
	nodesOf, size := map[string]int{}, 0
	for _, node := range nodes {
		for _, set := range devices[node] {
			if nodesOf[set.key]++; nodesOf[set.key] == 1 && set.key != "" {
				sets = append(sets, set)
			}
		}
	}
	slices.SortStableFunc(sets, func(a, b gpuSet) int {
		return cmp.Or(cmp.Compare(nodesOf[b.key], nodesOf[a.key]), cmp.Compare(len(a.key), len(b.key)))
	})
	for _, set := range sets {
		if len(first) < setsAtMost && size+len(set.key) <= setBytes {
			first, size = append(first, set), size+len(set.key)
		}
	}
	return first
}

// keysOf returns the keys of these sets.
func keysOf(sets []gpuSet) (keys []string) {
	for _, set := range sets {
		keys = append(keys, set.key)
	}
	return keys
}

func (p *packed) index(known map[refusal]byte, by refusal) byte {
	at, found := known[by]
	if found {
		return at
	}
	if len(p.refusals) >= refusalsAtMost-1 {
		by = further
	}
	if at, found = known[by]; !found {
		p.refusals = append(p.refusals, refusal{by.plugin, short(by.reason)})
		at = byte(len(p.refusals))
		known[by] = at
	}
	return at
}

func set(column []byte, length, at int, value byte) []byte {
	if column == nil {
		column = make([]byte, length)
	}
	column[at] = value
	return column
}

func short(reason string) string {
	if len(reason) <= reasonAtMost {
		return reason
	}
	return strings.ToValidUTF8(reason[:reasonAtMost], "")
}

// reporter builds the parts of one report. Equal answers give equal reports, so that an unchanged report can be
// recognized.
type reporter struct {
	parts    []*musterv1.ReportInTreeRequest
	size     int // bytes of the last part
	refusals map[refusal]byte
	sets     map[string]byte
	same     map[string]*musterv1.InTreeAnswer // answers in parts with the current nodes
}

// add appends the answer for a kind, or merges the kind with an earlier one that has the same answer. A kind with
// room is never merged, because room counts the pods of one kind.
func (r *reporter) add(k *kind, found *packed) {
	pods := make([]uint32, len(k.pods))
	for i, at := range k.pods {
		pods[i] = uint32(at)
	}
	keys := keysOf(found.sets)
	key := fmt.Sprintf("%q %q %q %q %d %s %q %s", found.refusals, keys, found.everywhere, k.missing, len(found.scores), found.scores, found.devices, found.refused)
	if same := r.same[key]; same != nil && len(found.room) == 0 && slices.Equal(r.parts[len(r.parts)-1].Nodes, found.nodes) {
		same.Pods = append(same.Pods, pods...)
		return
	}
	size := len(found.refused) + len(found.room) + len(found.scores) + len(found.devices)*len(found.nodes) + 5*len(pods) + 256*len(k.missing)
	for _, key := range keys {
		size += len(key)
	}
	if len(r.parts) == 0 || r.size > 0 && r.size+size > partAtMost || !r.holds(found) {
		r.begin(found.nodes)
	}
	r.size += size
	entry := &musterv1.InTreeAnswer{
		Pods: pods, Refused: r.translated(found), Room: found.room, Scores: found.scores, MissingClaims: k.missing,
		MoreMissingClaims: uint32(k.more),
	}
	if columns := r.numbered(found); len(columns) > 0 {
		entry.Devices, entry.MoreDevices = columns[0], columns[1:]
	}
	if found.everywhere != nil {
		entry.Everywhere = &musterv1.InTreeRefusal{Plugin: found.everywhere.plugin, Reason: found.everywhere.reason}
	}
	if len(found.room) == 0 {
		r.same[key] = entry
	}
	last := r.parts[len(r.parts)-1]
	last.Answers = append(last.Answers, entry)
}

// begin starts the next part.
func (r *reporter) begin(nodes []string) {
	last := len(r.parts) - 1
	if last >= 0 {
		r.parts[last].More = true
	}
	if last < 0 || !slices.Equal(r.parts[last].Nodes, nodes) {
		r.same = map[string]*musterv1.InTreeAnswer{}
	}
	r.parts = append(r.parts, &musterv1.ReportInTreeRequest{Nodes: nodes, Part: uint32(last + 1)})
	r.size, r.refusals, r.sets = 0, map[refusal]byte{}, map[string]byte{}
}

// holds returns whether the last part has the answer's nodes and can take its refusals.
func (r *reporter) holds(found *packed) bool {
	part := r.parts[len(r.parts)-1]
	added := 0
	for _, by := range found.refusals {
		if _, known := r.refusals[by]; !known {
			added++
		}
	}
	more := 0
	for _, set := range found.sets {
		if _, known := r.sets[set.key]; !known {
			more++
		}
	}
	return len(r.refusals)+added <= refusalsAtMost && len(r.sets)+more <= setsAtMost && slices.Equal(part.Nodes, found.nodes)
}

// numbered returns the columns of devices with the indices of the part.
func (r *reporter) numbered(found *packed) (columns [][]byte) {
	part := r.parts[len(r.parts)-1]
	var to [setsAtMost + 1]byte
	for i, set := range found.sets {
		at, known := r.sets[set.key]
		if !known {
			part.DeviceSets = append(part.DeviceSets, set.message())
			at = byte(len(part.DeviceSets))
			r.sets[set.key] = at
		}
		to[i+1] = at
	}
	for _, of := range found.devices {
		column := bytes.Clone(of)
		for i, at := range column {
			column[i] = to[at]
		}
		columns = append(columns, column)
	}
	return columns
}

// translated returns the column of refusals with the indices of the part.
func (r *reporter) translated(found *packed) []byte {
	part := r.parts[len(r.parts)-1]
	var to [refusalsAtMost + 1]byte
	for i, by := range found.refusals {
		at, known := r.refusals[by]
		if !known {
			part.Refusals = append(part.Refusals, &musterv1.InTreeRefusal{Plugin: by.plugin, Reason: by.reason})
			at = byte(len(part.Refusals))
			r.refusals[by] = at
		}
		to[i+1] = at
	}
	column := bytes.Clone(found.refused)
	for i, by := range column {
		column[i] = to[by]
	}
	return column
}

// report returns the parts. If nothing was added, it returns one part without answers.
func (r *reporter) report() []*musterv1.ReportInTreeRequest {
	if len(r.parts) == 0 {
		r.begin(nil)
	}
	return r.parts
}
