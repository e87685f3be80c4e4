package gangs

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"

	"muster.dev/shim/internal/musterv1"
)

// Answer holds the responses of Filter and Score for a whole gang. NewAnswer checks it once, so that a hook can index
// it without further checks.
type Answer struct {
	reason     string
	nodes      []string
	offsets    []uint32
	candidates []uint32
	scores     []uint32
	devices    [][]string // of each member; nil if no member has devices
	drivers    sets.Set[string]
	memory     []uint32 // of each member; empty if no member shares devices
	// subrequests holds, for each member, the number of the subrequest by which it gets devices, from 1. It is nil if no
	// member has a choice.
	subrequests []uint32
}

// NewRefusal returns the answer of a refused gang, which has only a reason.
func NewRefusal(reason string) *Answer { return &Answer{reason: reason} }

// NewAnswer checks all indices and returns the answer. A bad index must fail this gang and must not crash the
// scheduler.
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
	if a.subrequests = filter.Subrequests; len(a.subrequests) > 0 && len(a.subrequests) != members {
		return nil, fmt.Errorf("subrequests for %d of %d members", len(a.subrequests), members)
	}
	var err error
	if a.devices, err = devicesOf(members, filter); err != nil {
		return nil, err
	}
	a.drivers = sets.New[string]()
	for _, name := range filter.Devices {
		a.drivers.Insert(driverOf(name))
	}
	if a.memory = filter.DeviceMemory; len(a.memory) != 0 && len(a.memory) != members {
		return nil, fmt.Errorf("memory of devices for %d of %d members", len(a.memory), members)
	}
	return a, nil
}

// devicesOf deals the devices to the members. A member with devices has no node but the planned one, because devices
// are named for that node alone.
func devicesOf(members int, filter *musterv1.FilterResponse) ([][]string, error) {
	if len(filter.Devices) == 0 {
		return nil, nil
	}
	if len(filter.DeviceCounts) != members {
		return nil, fmt.Errorf("devices for %d of %d members", len(filter.DeviceCounts), members)
	}
	remaining, byMember := filter.Devices, make([][]string, members)
	for i, count := range filter.DeviceCounts {
		if int(count) > len(remaining) {
			return nil, fmt.Errorf("member %d has %d devices, and %d are left", i, count, len(remaining))
		}
		if count > 0 && filter.Offsets[i+1]-filter.Offsets[i] != 1 {
			return nil, fmt.Errorf("member %d has devices and several nodes", i)
		}
		byMember[i], remaining = remaining[:count], remaining[count:]
	}
	if len(remaining) > 0 {
		return nil, fmt.Errorf("%d devices belong to no member", len(remaining))
	}
	return byMember, nil
}

// driverOf returns the driver of driver/pool/name.
func driverOf(name string) string {
	driver, _, _ := strings.Cut(name, "/")
	return driver
}

// Devices returns the devices that member i gets on its planned node.
func (a *Answer) Devices(i int) []string {
	if a.devices == nil {
		return nil
	}
	return a.devices[i]
}

// Subrequest returns the number of the subrequest by which member i gets its devices, from 1; 0 if it has no choice.
func (a *Answer) Subrequest(i int) int {
	if len(a.subrequests) == 0 {
		return 0
	}
	return int(a.subrequests[i])
}

// DeviceMemory returns the GiB that member i gets of each of its devices if it shares them, or 0 if it gets whole devices.
func (a *Answer) DeviceMemory(i int) uint32 {
	if len(a.memory) == 0 {
		return 0
	}
	return a.memory[i]
}

// DeviceMembers returns the number of members that get devices.
func (a *Answer) DeviceMembers() (count int) {
	for _, devices := range a.devices {
		if len(devices) > 0 {
			count++
		}
	}
	return count
}

// Planned returns the node that the plan gives member i.
func (a *Answer) Planned(i int) string { return a.nodes[a.candidates[a.offsets[i]]] }

// CandidateCount returns the number of nodes that member i may use.
func (a *Answer) CandidateCount(i int) int { return int(a.offsets[i+1] - a.offsets[i]) }

// Scores maps each candidate node of member i to its score. If only is true, it contains the planned node alone. The
// framework allows scores up to 100, so higher values are cut to 100.
func (a *Answer) Scores(i int, only bool) map[string]int64 {
	start, end := a.offsets[i], a.offsets[i+1]
	if only {
		end = start + 1
	}
	scores := make(map[string]int64, end-start)
	for j := start; j < end; j++ {
		scores[a.nodes[a.candidates[j]]] = int64(min(a.scores[j], 100))
	}
	return scores
}
