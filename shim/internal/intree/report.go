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
	// maxPartBytes bounds the answers in one part of a report: in one ReportInTreeRequest. Names of nodes do not count.
	// The service reads a part in some milliseconds.
	maxPartBytes = 128 << 10
	// maxRefusals is the number of refusals that one byte can encode. Further pairs of plugin and reason are
	// reported as the refusal `furtherReasons`.
	maxRefusals = 255
	// maxSets is the number of sets of devices that one byte can encode. maxSetBytes bounds all sets of an answer, in
	// bytes. Nodes with further sets are refused with the refusal `differingSets`.
	maxSets, maxSetBytes = 255, 256 << 10
	// maxReasonBytes bounds a reason, in bytes.
	maxReasonBytes = 1024
	// maxMissing bounds how many missing claims are named.
	maxMissing = 64
)

var (
	furtherReasons = refusal{"", "further reasons"}
	differingSets  = refusal{devices.Name, "resourceClaims: the GPUs that match differ on too many nodes; ask with simpler selectors"}
)

// encodedAnswer is an answer in the form for the cache and the report: columns with one byte for each node. A column is
// empty if all its bytes are 0.
type encodedAnswer struct {
	nodes                 []string
	refusals              []refusal // the column refused has the index into this list, plus 1
	sets                  []gpuSet  // the columns of devices have the index into this list, plus 1
	refused, room, scores []byte
	devices               [][]byte // one column for each subrequest
	everywhere            *refusal // of all nodes, or nil
}

// encodeAnswer encodes an answer for these nodes.
func encodeAnswer(result answer, nodes []string) *encodedAnswer {
	p := &encodedAnswer{nodes: nodes, everywhere: result.everywhere}
	if result.everywhere != nil {
		p.everywhere = &refusal{result.everywhere.plugin, shorten(result.everywhere.reason)}
	}
	indices, sets := map[refusal]byte{}, map[string]byte{"": 0}
	p.sets = reportableSets(result.devices, nodes)
	for i, set := range p.sets {
		sets[set.key] = byte(i + 1)
	}
	for i, node := range nodes {
		for choiceIndex, gpus := range result.devices[node] {
			setIndex, ok := sets[gpus.key]
			if _, isRefused := result.refused[node]; !ok && !isRefused {
				p.refused = setByte(p.refused, len(nodes), i, p.refusalIndex(indices, differingSets))
			}
			if choiceIndex == len(p.devices) {
				p.devices = append(p.devices, make([]byte, len(nodes)))
			}
			p.devices[choiceIndex][i] = setIndex
		}
		if cause, isRefused := result.refused[node]; isRefused {
			p.refused = setByte(p.refused, len(nodes), i, p.refusalIndex(indices, cause))
		}
		if room := result.room[node]; room > 0 {
			p.room = setByte(p.room, len(nodes), i, byte(room))
		}
		if score := result.scores[node]; score > 0 {
			p.scores = setByte(p.scores, len(nodes), i, byte(score))
		}
	}
	return p
}

// reportableSets returns the device sets that fit into the report: the most common first, then the shortest. So one node
// with thousands of devices cannot displace the sets of other nodes.
func reportableSets(devices map[string][]gpuSet, nodes []string) (reported []gpuSet) {
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
		if len(reported) < maxSets && size+len(set.key) <= maxSetBytes {
			reported, size = append(reported, set), size+len(set.key)
		}
	}
	return reported
}

func keysOfSets(sets []gpuSet) (keys []string) {
	for _, set := range sets {
		keys = append(keys, set.key)
	}
	return keys
}

// refusalIndex returns the number of a refusal in the column refused, and adds the refusal if it is new.
func (p *encodedAnswer) refusalIndex(indices map[refusal]byte, cause refusal) byte {
	index, ok := indices[cause]
	if ok {
		return index
	}
	if len(p.refusals) >= maxRefusals-1 {
		cause = furtherReasons
	}
	if index, ok = indices[cause]; !ok {
		p.refusals = append(p.refusals, refusal{cause.plugin, shorten(cause.reason)})
		index = byte(len(p.refusals))
		indices[cause] = index
	}
	return index
}

// setByte sets one byte of a column, which it makes if there is none yet.
func setByte(column []byte, length, index int, value byte) []byte {
	if column == nil {
		column = make([]byte, length)
	}
	column[index] = value
	return column
}

// shorten cuts a reason to maxReasonBytes.
func shorten(reason string) string {
	if len(reason) <= maxReasonBytes {
		return reason
	}
	return strings.ToValidUTF8(reason[:maxReasonBytes], "")
}

// reporter builds one report, in parts that are requests of their own. Equal answers give equal reports, so that an
// unchanged report can be recognized.
type reporter struct {
	parts    []*musterv1.ReportInTreeRequest
	size     int                               // bytes of the last part
	refusals map[refusal]byte                  // numbers in the last part
	sets     map[string]byte                   // numbers in the last part, by key
	answers  map[string]*musterv1.InTreeAnswer // answers in parts with the current nodes
}

// add appends the answer for a kind, or merges the kind with an earlier one that has the same answer. A kind with
// room is never merged, because room counts the pods of one kind.
func (r *reporter) add(k *kind, encoded *encodedAnswer) {
	pods := make([]uint32, len(k.pods))
	for i, index := range k.pods {
		pods[i] = uint32(index)
	}
	keys := keysOfSets(encoded.sets)
	key := fmt.Sprintf("%q %q %q %q %d %s %q %s", encoded.refusals, keys, encoded.everywhere, k.missing, len(encoded.scores), encoded.scores, encoded.devices, encoded.refused)
	if equalAnswer := r.answers[key]; equalAnswer != nil && len(encoded.room) == 0 && slices.Equal(r.parts[len(r.parts)-1].Nodes, encoded.nodes) {
		equalAnswer.Pods = append(equalAnswer.Pods, pods...)
		return
	}
	size := len(encoded.refused) + len(encoded.room) + len(encoded.scores) + len(encoded.devices)*len(encoded.nodes) + 5*len(pods) + 256*len(k.missing)
	for _, key := range keys {
		size += len(key)
	}
	if len(r.parts) == 0 || r.size > 0 && r.size+size > maxPartBytes || !r.fitsLastPart(encoded) {
		r.beginPart(encoded.nodes)
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

// beginPart starts the next part.
func (r *reporter) beginPart(nodes []string) {
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

// fitsLastPart returns whether the last part has the answer's nodes and has room for its refusals and sets of devices.
func (r *reporter) fitsLastPart(encoded *encodedAnswer) bool {
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
	return len(r.refusals)+newRefusals <= maxRefusals && len(r.sets)+newSets <= maxSets && slices.Equal(part.Nodes, encoded.nodes)
}

// deviceColumns returns the answer's columns of devices, with the numbers that the sets have in the last part.
func (r *reporter) deviceColumns(encoded *encodedAnswer) (columns [][]byte) {
	part := r.parts[len(r.parts)-1]
	var newIndices [maxSets + 1]byte
	for i, set := range encoded.sets {
		index, ok := r.sets[set.key]
		if !ok {
			part.DeviceSets = append(part.DeviceSets, set.toMessage())
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

// refusalColumn returns the answer's column of refusals, with the numbers that the refusals have in the last part.
func (r *reporter) refusalColumn(encoded *encodedAnswer) []byte {
	part := r.parts[len(r.parts)-1]
	var newIndices [maxRefusals + 1]byte
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

// allParts returns the parts. If nothing was added, it returns one part without answers.
func (r *reporter) allParts() []*musterv1.ReportInTreeRequest {
	if len(r.parts) == 0 {
		r.beginPart(nil)
	}
	return r.parts
}
