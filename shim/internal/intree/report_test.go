package intree

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"muster.dev/shim/internal/devices"
)

func TestAReportComesInPartsOfBoundedSize(t *testing.T) {
	nodes := make([]string, 5000)
	for i := range nodes {
		nodes[i] = fmt.Sprintf("node-%05d", i)
	}
	r := &reporter{}
	for i := range maxKinds {
		result := answer{refused: map[string]refusal{}}
		for _, node := range nodes {
			result.refused[node] = refusal{"Plugin", "why"}
		}
		delete(result.refused, nodes[i])
		r.add(&kind{pods: []int{i}}, encodeAnswer(result, nodes))
	}
	parts := r.allParts()
	var pods []uint32
	for i, part := range parts {
		if size := proto.Size(part); size > maxPartBytes+len(nodes)*20 {
			t.Errorf("part %d has %d bytes", i, size)
		}
		if int(part.Part) != i || part.More != (i+1 < len(parts)) {
			t.Errorf("part %d is number %d, more %v", i, part.Part, part.More)
		}
		for _, entry := range part.Answers {
			pods = append(pods, entry.Pods...)
			if open := slices.Index(entry.Refused, 0); open != int(entry.Pods[0]) || part.Refusals[entry.Refused[4999]-1].Reason != "why" {
				t.Errorf("pods %v: node %d is open", entry.Pods, open)
			}
		}
	}
	if len(parts) < 2 || len(pods) != maxKinds {
		t.Errorf("%d parts with %d pods", len(parts), len(pods))
	}
}

func TestAReportTellsApartAsManyRefusalsAsAByteCan(t *testing.T) {
	nodes := make([]string, 1000)
	result := answer{refused: map[string]refusal{}}
	second := answer{refused: map[string]refusal{}}
	for i := range nodes {
		nodes[i] = fmt.Sprintf("n%04d", i)
		result.refused[nodes[i]] = refusal{"Extender", fmt.Sprint("why ", i)}
		second.refused[nodes[i]] = refusal{"Extender", fmt.Sprint("else ", i%10)}
	}
	r := &reporter{}
	r.add(&kind{pods: []int{0}}, encodeAnswer(result, nodes))
	r.add(&kind{pods: []int{1}}, encodeAnswer(second, nodes))
	parts := r.allParts()
	if len(parts) != 2 || len(parts[0].Refusals) != maxRefusals || len(parts[1].Refusals) != 10 {
		t.Fatalf("%d parts", len(parts))
	}
	refusalOf := func(part, node int) string {
		return parts[part].Refusals[parts[part].Answers[0].Refused[node]-1].Reason
	}
	if refusalOf(0, 0) != "why 0" || refusalOf(0, 253) != "why 253" || refusalOf(0, 254) != furtherReasons.reason || refusalOf(0, 999) != furtherReasons.reason || refusalOf(1, 999) != "else 9" {
		t.Errorf("told: %s, %s, %s, %s", refusalOf(0, 253), refusalOf(0, 254), refusalOf(0, 999), refusalOf(1, 999))
	}
}

func TestAReportNamesSomeOfManyMissingClaims(t *testing.T) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p0", UID: types.UID("p0")}}
	for i := range 100 {
		pod.Spec.Volumes = append(pod.Spec.Volumes, userOf(0, fmt.Sprintf("c%d", i), "").Spec.Volumes...)
	}
	a := askerOf(t.Context(), t, volumePlugins, nil, append(nodesOf(1), pod)...)
	kinds, _ := a.sorter.groupPods([]*v1.Pod{pod}, a.isUnique, always)
	report := a.buildReport(t.Context(), []*v1.Pod{pod}, kinds, a.cachedAnswers("ns"), always)
	if len(report) != 1 || len(report[0].Answers[0].MissingClaims) != maxMissing || report[0].Answers[0].MoreMissingClaims != 100-maxMissing {
		t.Errorf("report: %v", report)
	}
}

// gpus returns the set of these GPUs.
func gpus(names ...string) gpuSet {
	if names == nil {
		names = []string{}
	}
	return gpuSetOf(names, nil)
}

func TestAReportHasTheGPUsThatPodsMayHave(t *testing.T) {
	nodes := []string{"n0", "n1", "n2", "n3"}
	pair, last, none := gpus("gpu/d0", "gpu/d1"), gpus("gpu/d1"), gpus()
	first := answer{devices: map[string][]gpuSet{"n0": {pair}, "n1": {last}, "n2": {pair}}}
	second := answer{devices: map[string][]gpuSet{"n3": {last, {}}, "n2": {none, last}}}
	r := &reporter{}
	r.add(&kind{pods: []int{0}}, encodeAnswer(first, nodes))
	r.add(&kind{pods: []int{1}}, encodeAnswer(second, nodes))
	r.add(&kind{pods: []int{2}}, encodeAnswer(first, nodes))
	parts := r.allParts()
	if len(parts) != 1 || len(parts[0].DeviceSets) != 3 || len(parts[0].Answers) != 2 {
		t.Fatalf("%v", parts)
	}
	part := parts[0]
	if !slices.Equal(part.DeviceSets[0].Names, []string{"gpu/d0", "gpu/d1"}) || !slices.Equal(part.DeviceSets[1].Names, []string{"gpu/d1"}) || len(part.DeviceSets[2].Names) != 0 {
		t.Errorf("%v", part.DeviceSets)
	}
	if got := fmt.Sprint(part.Answers[0].Devices, part.Answers[0].MoreDevices, part.Answers[1].Devices, part.Answers[1].MoreDevices); got != "[1 2 1 0] [] [0 0 3 2] [[0 0 2 0]]" {
		t.Errorf("%v", part.Answers)
	}
	if !slices.Equal(part.Answers[0].Pods, []uint32{0, 2}) {
		t.Errorf("%v", part.Answers[0].Pods)
	}
}

func TestAReportHasTheGroupsThatHoldFewPods(t *testing.T) {
	groups := []devices.Group{{Names: []string{"gpu/d0", "gpu/d1"}, MaxPods: 1}, {Names: []string{"gpu/p/d2", "gpu/p/d3", "gpu/p/d4"}, MaxPods: 2}}
	sets := gpuSetsOf([]devices.MatchingGPUs{{Names: []string{"gpu/d0", "gpu/d1", "gpu/e", "gpu/p/d2", "gpu/p/d3", "gpu/p/d4"}, Groups: groups}, {}})
	r := &reporter{}
	r.add(&kind{pods: []int{0}}, encodeAnswer(answer{devices: map[string][]gpuSet{"n0": sets}}, []string{"n0"}))
	part := r.allParts()[0]
	if len(part.DeviceSets) != 1 || len(part.DeviceSets[0].Names) != 6 || fmt.Sprint(part.Answers[0].Devices, part.Answers[0].MoreDevices) != "[1] [[0]]" {
		t.Fatalf("%v", part)
	}
	var got []string
	for _, group := range part.DeviceSets[0].Groups {
		got = append(got, fmt.Sprint(group.Devices, group.Most))
	}
	if fmt.Sprint(got) != "[[0 1] 1 [3 4 5] 2]" {
		t.Errorf("%v", got)
	}
}

func TestNodesWithMoreSetsOfGPUsThanAByteCanTellAreRefused(t *testing.T) {
	nodes, result := make([]string, 300), answer{devices: map[string][]gpuSet{}}
	for i := range nodes {
		nodes[i] = fmt.Sprintf("n%04d", i)
		result.devices[nodes[i]] = []gpuSet{gpus(fmt.Sprint("gpu/d", i))}
	}
	r := &reporter{}
	r.add(&kind{pods: []int{0}}, encodeAnswer(result, nodes))
	part := r.allParts()[0]
	entry := part.Answers[0]
	if len(part.DeviceSets) != maxSets || entry.Devices[254] != 255 || entry.Devices[255] != 0 {
		t.Errorf("%d sets", len(part.DeviceSets))
	}
	if entry.Refused[254] != 0 || entry.Refused[255] == 0 || part.Refusals[entry.Refused[299]-1].Reason != differingSets.reason {
		t.Errorf("refused: %v", entry.Refused[250:])
	}
}

func TestANodeWithManyDevicesTakesNoSetFromOthers(t *testing.T) {
	for _, many := range []string{strings.Repeat("x", maxSetBytes), strings.Repeat("x", maxSetBytes+1)} {
		// The first of them would fit alone.
		result := answer{devices: map[string][]gpuSet{"a": {gpus(many)}, "b": {gpus("d0")}, "c": {gpus("d0")}, "d": {gpus("d1")}}}
		p := encodeAnswer(result, []string{"a", "b", "c", "d"})
		if !slices.Equal(keysOfSets(p.sets), keysOfSets([]gpuSet{gpus("d0"), gpus("d1")})) || !slices.Equal(p.devices[0], []byte{0, 1, 1, 2}) {
			t.Errorf("got %d sets, %v", len(p.sets), p.devices)
		}
		if !slices.Equal(p.refused, []byte{1, 0, 0, 0}) || p.refusals[0] != differingSets {
			t.Errorf("got %v, %v", p.refused, p.refusals)
		}
	}
	large := strings.Repeat("x", maxSetBytes+1)
	p := encodeAnswer(answer{devices: map[string][]gpuSet{"a": {gpus(large)}, "b": {gpus(large)}, "c": {gpus("d0")}}}, []string{"a", "b", "c"})
	if !slices.Equal(keysOfSets(p.sets), keysOfSets([]gpuSet{gpus("d0")})) || !slices.Equal(p.refused, []byte{1, 1, 0}) {
		t.Errorf("got %d sets, %v", len(p.sets), p.refused)
	}
}
