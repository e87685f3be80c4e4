package devices

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
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
	on := "n"
	pool := resourceapi.ResourcePool{Name: "n", Generation: 1, ResourceSliceCount: 2}
	published := []*resourceapi.ResourceSlice{
		{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: resourceapi.ResourceSliceSpec{Driver: driver, NodeName: &on, Pool: pool, SharedCounters: read.Sets}},
		{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: resourceapi.ResourceSliceSpec{Driver: driver, NodeName: &on, Pool: pool, Devices: read.Devices}},
	}
	allocated := sets.New[structured.DeviceID]()
	for _, name := range read.Allocated {
		allocated.Insert(structured.MakeDeviceID(driver, "n", name))
	}
	without := []string{}
	for _, name := range read.Wanted {
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "uid"}}
		claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: "any", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
			Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "device.attributes['" + driver + "'].name == '" + name + "'"}}},
		}}}
		ctx := context.Background()
		allocator, err := structured.NewAllocator(ctx, structured.Features{PartitionableDevices: true}, *allocatedState(allocated), anyClass{}, published, cel.NewCache(10, cel.Features{}))
		if err != nil {
			t.Fatal(err)
		}
		results, err := allocator.Allocate(ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, []*resourceapi.ResourceClaim{claim})
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

// anyClass has one class, of all devices.
type anyClass struct{}

func (anyClass) List() ([]*resourceapi.DeviceClass, error) { return nil, nil }

func (anyClass) Get(name string) (*resourceapi.DeviceClass, error) {
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
}
