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
	// setsAtMost is the number of sets of devices that one byte can encode. setBytes bounds all sets of an answer, in
	// bytes. Nodes with further sets are refused with the refusal `differingSets`.
	setsAtMost, setBytes = 255, 256 << 10
	// reasonAtMost bounds a reason, in bytes.
	reasonAtMost = 1024
	// missingAtMost bounds how many missing claims are named.
	missingAtMost = 64
)

var (
	further       = refusal{"", "further reasons"}
	differingSets = refusal{devices.Name, "resourceClaims: the GPUs that match differ on too many nodes; ask with simpler selectors"}
)

// packed is an answer in the form for the cache and the report: columns with one byte per node. A column is empty if all
// its bytes are 0.
type packed struct {
	nodes                 []string
	refusals              []refusal // refused holds the index + 1
	sets                  []gpuSet  // devices holds the index + 1
	refused, room, scores []byte
	devices               [][]byte // a column for each subrequest
	everywhere            *refusal
}

// pack encodes an answer for these nodes.
func pack(result answer, nodes []string) *packed {
	p := &packed{nodes: nodes, everywhere: result.everywhere}
	if result.everywhere != nil {
		p.everywhere = &refusal{result.everywhere.plugin, shorten(result.everywhere.reason)}
	}
	indices, sets := map[refusal]byte{}, map[string]byte{"": 0}
	p.sets = firstSets(result.devices, nodes)
	for i, set := range p.sets {
		sets[set.key] = byte(i + 1)
	}
	for i, node := range nodes {
		for rank, gpus := range result.devices[node] {
			setIndex, ok := sets[gpus.key]
			if _, isRefused := result.refused[node]; !ok && !isRefused {
				p.refused = set(p.refused, len(nodes), i, p.index(indices, differingSets))
			}
			if rank == len(p.devices) {
				p.devices = append(p.devices, make([]byte, len(nodes)))
			}
			p.devices[rank][i] = setIndex
		}
		if cause, isRefused := result.refused[node]; isRefused {
			p.refused = set(p.refused, len(nodes), i, p.index(indices, cause))
		}
		if room := result.room[node]; room > 0 {
			p.room = set(p.room, len(nodes), i, byte(room))
		}
		if score := result.scores[node]; score > 0 {
			p.scores = set(p.scores, len(nodes), i, byte(score))
		}
	}
	return p
}

// firstSets returns the device sets that fit into the report: the most common first, then the shortest. So one node with
// thousands of devices cannot displace the sets of other nodes.
func firstSets(devices map[string][]gpuSet, nodes []string) (reported []gpuSet) {
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
		if len(reported) < setsAtMost && size+len(set.key) <= setBytes {
			reported, size = append(reported, set), size+len(set.key)
		}
	}
	return reported
}

// keysOf returns the keys of these sets.
func keysOf(sets []gpuSet) (keys []string) {
	for _, set := range sets {
		keys = append(keys, set.key)
	}
	return keys
}

func (p *packed) index(indices map[refusal]byte, cause refusal) byte {
	index, ok := indices[cause]
	if ok {
		return index
	}
	if len(p.refusals) >= refusalsAtMost-1 {
		cause = further
	}
	if index, ok = indices[cause]; !ok {
		p.refusals = append(p.refusals, refusal{cause.plugin, shorten(cause.reason)})
		index = byte(len(p.refusals))
		indices[cause] = index
	}
	return index
}

func set(column []byte, length, index int, value byte) []byte {
	if column == nil {
		column = make([]byte, length)
	}
	column[index] = value
	return column
}

func shorten(reason string) string {
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
	answers  map[string]*musterv1.InTreeAnswer // answers in parts with the current nodes
}

// add appends the answer for a kind, or merges the kind with an earlier one that has the same answer. A kind with
// room is never merged, because room counts the pods of one kind.
func (r *reporter) add(k *kind, encoded *packed) {
	pods := make([]uint32, len(k.pods))
	for i, index := range k.pods {
		pods[i] = uint32(index)
	}
	keys := keysOf(encoded.sets)
	key := fmt.Sprintf("%q %q %q %q %d %s %q %s", encoded.refusals, keys, encoded.everywhere, k.missing, len(encoded.scores), encoded.scores, encoded.devices, encoded.refused)
	if equalAnswer := r.answers[key]; equalAnswer != nil && len(encoded.room) == 0 && slices.Equal(r.parts[len(r.parts)-1].Nodes, encoded.nodes) {
		equalAnswer.Pods = append(equalAnswer.Pods, pods...)
		return
	}
	size := len(encoded.refused) + len(encoded.room) + len(encoded.scores) + len(encoded.devices)*len(encoded.nodes) + 5*len(pods) + 256*len(k.missing)
	for _, key := range keys {
		size += len(key)
	}
	if len(r.parts) == 0 || r.size > 0 && r.size+size > partAtMost || !r.fits(encoded) {
		r.begin(encoded.nodes)
	}
	r.size += size
	entry := &musterv1.InTreeAnswer{
		Pods: pods, Refused: r.refusalColumn(encoded), Room: encoded.room, Scores: encoded.scores, MissingClaims: k.missing,
		MoreMissingClaims: uint32(k.furtherMissing),
	}
	if columns := r.deviceColumns(encoded); len(columns) > 0 {
		entry.Devices, entry.MoreDevices = columns[0], columns[1:]
	}
	if encoded.everywhere != nil {
		entry.Everywhere = &musterv1.InTreeRefusal{Plugin: encoded.everywhere.plugin, Reason: encoded.everywhere.reason}
	}
	if len(encoded.room) == 0 {
		r.answers[key] = entry
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
		r.answers = map[string]*musterv1.InTreeAnswer{}
	}
	r.parts = append(r.parts, &musterv1.ReportInTreeRequest{Nodes: nodes, Part: uint32(last + 1)})
	r.size, r.refusals, r.sets = 0, map[refusal]byte{}, map[string]byte{}
}

// fits returns whether the last part has the answer's nodes and has room for its refusals and sets of devices.
func (r *reporter) fits(encoded *packed) bool {
	part := r.parts[len(r.parts)-1]
	newRefusals := 0
	for _, cause := range encoded.refusals {
		if _, ok := r.refusals[cause]; !ok {
			newRefusals++
		}
	}
	newSets := 0
	for _, set := range encoded.sets {
		if _, ok := r.sets[set.key]; !ok {
			newSets++
		}
	}
	return len(r.refusals)+newRefusals <= refusalsAtMost && len(r.sets)+newSets <= setsAtMost && slices.Equal(part.Nodes, encoded.nodes)
}

// deviceColumns returns the columns of devices with the indices of the part.
func (r *reporter) deviceColumns(encoded *packed) (columns [][]byte) {
	part := r.parts[len(r.parts)-1]
	var newIndices [setsAtMost + 1]byte
	for i, set := range encoded.sets {
		index, ok := r.sets[set.key]
		if !ok {
			part.DeviceSets = append(part.DeviceSets, set.message())
			index = byte(len(part.DeviceSets))
			r.sets[set.key] = index
		}
		newIndices[i+1] = index
	}
	for _, original := range encoded.devices {
		column := bytes.Clone(original)
		for i, index := range column {
			column[i] = newIndices[index]
		}
		columns = append(columns, column)
	}
	return columns
}

// refusalColumn returns the column of refusals with the indices of the part.
func (r *reporter) refusalColumn(encoded *packed) []byte {
	part := r.parts[len(r.parts)-1]
	var newIndices [refusalsAtMost + 1]byte
	for i, cause := range encoded.refusals {
		index, ok := r.refusals[cause]
		if !ok {
			part.Refusals = append(part.Refusals, &musterv1.InTreeRefusal{Plugin: cause.plugin, Reason: cause.reason})
			index = byte(len(part.Refusals))
			r.refusals[cause] = index
		}
		newIndices[i+1] = index
	}
	column := bytes.Clone(encoded.refused)
	for i, index := range column {
		column[i] = newIndices[index]
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
