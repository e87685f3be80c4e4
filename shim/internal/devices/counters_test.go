package devices

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
)

const answers = "../../../tests/dialects/counters.jsonl"

// counted is a pool, and the wanted devices that the allocator does not give when they are requested in turn.
type counted struct {
	Sets              []resourceapi.CounterSet
	Devices           []resourceapi.Device
	Allocated, Wanted []string
	Without           []string
}

// TestCounterAnswers fails if an answer of the in-tree allocator differs from the file, by which the service's arithmetic
// is tested. With UPDATE=1 in the environment it writes the answers into the file.
func TestCounterAnswers(t *testing.T) {
	text, err := os.ReadFile(answers)
	if err != nil {
		t.Fatal(err)
	}
	var updated bytes.Buffer
	for number, line := range bytes.Split(bytes.TrimSpace(text), []byte("\n")) {
		var read counted
		if err := json.Unmarshal(line, &read); err != nil {
			t.Fatal(err)
		}
		without := refusedOf(t, read)
		if os.Getenv("UPDATE") == "" && !slices.Equal(read.Without, without) {
			t.Errorf("case %d: the allocator does not give %v; the file says %v", number, without, read.Without)
		}
		with := map[string]json.RawMessage{}
		if err := json.Unmarshal(line, &with); err != nil {
			t.Fatal(err)
		}
		with["Without"], _ = json.Marshal(without)
		line, _ = json.Marshal(with)
		updated.Write(append(line, '\n'))
	}
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(answers, updated.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func refusedOf(t *testing.T, read counted) []string {
	t.Helper()
	const driver = "gpu.example.com"
	counters, devices := on("n", 2, slice("c", driver, "n", 1)), on("n", 2, slice("d", driver, "n", 1))
	counters.Spec.SharedCounters, devices.Spec.Devices = read.Sets, read.Devices
	allocated := sets.New[structured.DeviceID]()
	for _, name := range read.Allocated {
		allocated.Insert(structured.MakeDeviceID(driver, "n", name))
	}
	without := []string{}
	for _, name := range read.Wanted {
		claim := claiming(1)
		claim.Spec.Devices.Requests[0].Exactly.Selectors = celOf("device.attributes['" + driver + "'].name == '" + name + "'")
		results, err := inTreeAllocation(t, []*resourceapi.ResourceSlice{counters, devices}, allocated, claim)
		switch {
		case err != nil:
			t.Fatal(err)
		case len(results) == 0:
			without = append(without, name)
		default:
			allocated.Insert(structured.MakeDeviceID(driver, "n", name))
		}
	}
	slices.Sort(without)
	return without
}
