package plugin

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"muster.dev/shim/internal/musterv1"
)

const pcieRoot = resourceapi.FullyQualifiedName("resource.kubernetes.io/pcieRoot")

// rootOf returns the attributes of a device at this PCIe root, and no attributes for a negative root.
func rootOf(root int) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	if root < 0 {
		return nil
	}
	value := fmt.Sprintf("pci0000:%02d", root)
	return map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{resourceapi.QualifiedName(pcieRoot): {StringValue: &value}}
}

// atRoots puts the eight GPUs of the node at PCIe roots, and publishes a network card at each root of the second list.
func (h *harness) atRoots(gpus, nics []int) {
	h.t.Helper()
	h.changeSlice(func(slice *resourceapi.ResourceSlice) {
		for i, root := range gpus {
			for name, value := range rootOf(root) {
				slice.Spec.Devices[i].Attributes[name] = value
			}
		}
	})
	var cards []resourceapi.Device
	for i, root := range nics {
		cards = append(cards, resourceapi.Device{Name: fmt.Sprintf("nic-%d", i), Attributes: rootOf(root)})
	}
	h.add(driverClass("nic", nicDriver, ""), sliceOf("nics", nicDriver, "n", cards...))
}

func agree(attribute resourceapi.FullyQualifiedName, requests ...string) resourceapi.DeviceConstraint {
	return resourceapi.DeviceConstraint{Requests: requests, MatchAttribute: &attribute}
}

// gpusOf returns the GPUs of the node that an answer allows, as "012: 01×1 2×1", with the groups that hold few pods; "any",
// or why the node is refused.
func gpusOf(r *musterv1.ReportInTreeRequest) string {
	entry := r.Answers[0]
	if len(entry.Refused) > 0 && entry.Refused[0] > 0 {
		return r.Refusals[entry.Refused[0]-1].Reason
	}
	if len(entry.Devices) == 0 || entry.Devices[0] == 0 {
		return "any"
	}
	set := r.DeviceSets[entry.Devices[0]-1]
	number := func(name string) string { return name[strings.LastIndexByte(name, '-')+1:] }
	var names string
	for _, name := range set.Names {
		names += number(name)
	}
	for i, group := range set.Groups {
		names += []string{":", ""}[min(i, 1)] + " "
		for _, at := range group.Devices {
			names += number(set.Names[at])
		}
		names += fmt.Sprintf("×%d", group.Most)
	}
	return names
}

func TestInTreeAnswersSayForHowManyPodsDevicesAgreeWithGPUs(t *testing.T) {
	pod, two := asks("g", "gpu", 1), asks("g", "gpu", 2)
	card, cards := asks("n", "nic", 1), asks("n", "nic", 2)
	halves := []int{0, 0, 0, 0, 1, 1, 1, 1}
	half := resourceapi.FullyQualifiedName(gpuDriver + "/half")
	of := func(constraints []resourceapi.DeviceConstraint, requests ...resourceapi.DeviceRequest) []resourceapi.DeviceClaim {
		return []resourceapi.DeviceClaim{{Requests: requests, Constraints: constraints}}
	}
	root := []resourceapi.DeviceConstraint{agree(pcieRoot)}
	request := resourceapi.DeviceRequest{Name: "n", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "two", DeviceClassName: "nic", AllocationMode: exactCount, Count: 2},
		{Name: "one", DeviceClassName: "nic", AllocationMode: exactCount, Count: 1},
	}}
	every := asks("g", "gpu", 0)
	every.Exactly.AllocationMode = allDevices
	failing := asks("n", "nic", 1)
	failing.Exactly.Selectors = selector("device.attributes['nic.example.com'].speed == 1")
	for name, c := range map[string]struct {
		claims         []resourceapi.DeviceClaim
		gpus, nics     []int
		allocatedCards []string // cards that another claim has
		want           string
	}{
		"a card for each GPU":                  {of(root, pod, card), halves, halves, nil, "any"},
		"fewer cards than GPUs":                {of(root, pod, card), halves, []int{0, 1, 0, 2}, nil, "01234567: 0123×2 4567×1"},
		"no card at a root":                    {of(root, card, pod), halves, []int{1, 1, 1, 1, 2}, nil, "4567"},
		"no card agrees":                       {of(root, pod, card), halves, []int{2, 3}, nil, "resourceClaims c0: the node has no free devices that agree with 1 of its GPUs on resource.kubernetes.io/pcieRoot"},
		"cards that another claim has":         {of(root, pod, card), halves, []int{0, 0, 1, 1}, []string{"nic-0", "nic-2", "nic-3"}, "0123: 0123×1"},
		"a card for two GPUs":                  {of(root, two, card), halves, []int{0, 1, 1}, nil, "01234567: 0123×1"},
		"GPUs of two requests":                 {of(root, pod, asks("h", "gpu", 1), card), halves, []int{0, 1, 1}, nil, "01234567: 0123×1"},
		"two cards for a GPU":                  {of(root, pod, cards), halves, []int{0, 0, 0, 1}, nil, "0123: 0123×1"},
		"two cards, or else one":               {of(root, pod, request), halves, []int{0, 0, 0, 1}, nil, "01234567: 0123×3 4567×1"},
		"a second card anywhere":               {of([]resourceapi.DeviceConstraint{agree(pcieRoot, "g", "n")}, pod, card, asks("m", "nic", 1)), halves, []int{0, 0, 2}, nil, "0123: 0123×1"},
		"a card in a claim of its own":         {append(of(root, pod, card), of(nil, card)...), halves, []int{0, 0, 2}, nil, "0123: 0123×1"},
		"a selector that fails":                {of(root, pod, failing), halves, halves, nil, "resourceClaims c0: claim ns/m0-0: selector #0 on device nic.example.com/n/nic-0: CEL runtime error: no such key: speed"},
		"all GPUs, which agree":                {of(root, every, card), []int{0, 0, 0, 0, 0, 0, 0, 0}, []int{0}, nil, "01234567"},
		"all GPUs, which don't agree":          {of(root, every, card), halves, []int{0, 1}, nil, "resourceClaims c0: the node has no free devices that agree with 8 of its GPUs on resource.kubernetes.io/pcieRoot"},
		"GPUs without the attribute":           {of(root, pod, card), []int{-1, 0, 0, -1, -1, -1, -1, -1}, []int{0, 0, -1}, nil, "12"},
		"a GPU of its own root":                {of(root, pod, card), []int{0, 1, 2, 3, 4, 5, 6, 7}, []int{3, 5, 5}, nil, "35"},
		"cards agree with each other alone":    {of([]resourceapi.DeviceConstraint{agree(pcieRoot, "n")}, pod, cards), halves, []int{0, 0}, nil, "any"},
		"GPUs agree with each other alone":     {of([]resourceapi.DeviceConstraint{agree(half, "g")}, two, card), halves, []int{0, 0}, nil, "any"},
		"GPUs agree on one more":               {of([]resourceapi.DeviceConstraint{agree(half, "g"), agree(pcieRoot)}, two, card), []int{0, 0, 0, 1, 1, 1, 1, 1}, []int{0, 1, 1}, nil, "0124567"},
		"a watched GPU agrees with three":      {of(root, asks("g", "gpu", 3), asks("w", "watch", 1)), halves, nil, nil, "any"},
		"no watched GPU agrees with four":      {of(root, asks("g", "gpu", 4), asks("w", "watch", 1)), halves, nil, nil, "resourceClaims c0: the node has no free devices that agree with 4 of its GPUs on resource.kubernetes.io/pcieRoot"},
		"one GPU with the attribute":           {of(root, pod), []int{-1, 0, -1, 1, -1, -1, -1, -1}, nil, nil, "13"},
		"no GPU with the attribute":            {of(root, pod), []int{-1, -1, -1, -1, -1, -1, -1, -1}, nil, nil, "resourceClaims c0: no GPU of the node has the attribute resource.kubernetes.io/pcieRoot"},
		"some of the GPUs, which is not asked": {of([]resourceapi.DeviceConstraint{agree(pcieRoot, "g", "n")}, pod, asks("h", "gpu", 1), card), halves, []int{0}, nil, "any"},
	} {
		t.Run(name, func(t *testing.T) {
			h := dra(t)
			h.atRoots(c.gpus, c.nics)
			h.add(otherClaim(nicDriver, c.allocatedCards...))
			h.podsWith(h.claiming(c.claims...), "gang", "m0") // before, so that the first answer knows them
			h.run("")
			h.service.ask(inTreeQuestion(1, "m0"))
			if got := gpusOf(next(t, "answer", h.service.inTree)); got != c.want && !(strings.Contains(c.want, ":") && strings.HasPrefix(got, c.want+". ")) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestMembersGetCardsThatAgreeWithTheirPlannedGPUs(t *testing.T) {
	h := dra(t)
	h.atRoots([]int{0, 0, 0, 0, 1, 1, 1, 1}, []int{1, 0, 2, 1, 0})
	h.planDevices([]int{7}, []int{0}, []int{2}, []int{4})
	h.run("")
	names := members(4)
	h.podsWith(h.claiming(resourceapi.DeviceClaim{
		Requests:    []resourceapi.DeviceRequest{asks("n", "nic", 1), asks("g", "gpu", 1)},
		Constraints: []resourceapi.DeviceConstraint{agree(pcieRoot)},
	}), "gang", names...)
	h.place(names...)
	h.waitForBindings(len(names))
	allocated := h.allocated()
	var cards []string
	for i, name := range names {
		card, gpu, _ := strings.Cut(allocated[name], " ")
		if want := []string{"gpu-7", "gpu-0", "gpu-2", "gpu-4"}[i]; gpu != want {
			t.Errorf("%s has %s, planned is %s", name, gpu, want)
		}
		if root := map[string]int{"nic-0": 1, "nic-1": 0, "nic-3": 1, "nic-4": 0}[card]; root != []int{1, 0, 0, 1}[i] {
			t.Errorf("%s has %s next to %s", name, card, gpu)
		}
		cards = append(cards, card)
	}
	slices.Sort(cards)
	if fmt.Sprint(cards) != "[nic-0 nic-1 nic-3 nic-4]" {
		t.Errorf("cards: %v", cards)
	}
}

// NVIDIA's driver starts no pod whose claim has other GPUs than those of one partition of Fabric Manager.
func TestAPartitionIsTheGPUsThatAgreeOnIt(t *testing.T) {
	partition := resourceapi.FullyQualifiedName(gpuDriver + "/half")
	for planned, want := range map[string]string{
		"4 5 6 7": "gpu-4 gpu-5 gpu-6 gpu-7", "2 0 1 3": "gpu-2 gpu-0 gpu-1 gpu-3", "3 4 5 6": "",
	} {
		t.Run(planned, func(t *testing.T) {
			h := dra(t)
			var numbers []int
			for _, number := range strings.Fields(planned) {
				numbers = append(numbers, int(number[0]-'0'))
			}
			h.planDevices(numbers)
			h.run("")
			h.podsWith(h.claiming(resourceapi.DeviceClaim{
				Requests: []resourceapi.DeviceRequest{asks("g", "gpu", 4)}, Constraints: []resourceapi.DeviceConstraint{agree(partition)},
			}), "gang", "m0")
			h.place("m0")
			if want == "" {
				next(t, "report", h.service.reports)
			} else {
				next(t, "binding", h.bound)
			}
			if got := h.allocated()["m0"]; got != want {
				t.Errorf("allocated: %q", got)
			}
		})
	}
}
