package plugin

import (
	"context"
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"muster.dev/shim/internal/devices"
	"muster.dev/shim/internal/gangs"
)

// BenchmarkDevices measures the time of PlannedResources on the scheduling thread for one pod, on 5,000 slices of eight
// devices: PreFilter, Filter of the planned node, Reserve, and Unreserve.
//
//	go test ./internal/plugin -run xxx -bench Devices
func BenchmarkDevices(b *testing.B) {
	for _, allocated := range []int{0, 20_000} {
		for _, kind := range []string{"member with two planned devices", "member without claims"} {
			b.Run(fmt.Sprintf("%d devices allocated, %s", allocated, kind), func(b *testing.B) {
				p, state, pod, on := benchDevices(b, allocated, kind == "member with two planned devices")
				ctx := context.Background()
				b.ResetTimer()
				for range b.N {
					if _, status := p.PreFilter(ctx, state, pod, nil); !status.IsSuccess() && !status.IsSkip() {
						b.Fatal(status)
					}
					if status := p.Filter(ctx, state, pod, on); !status.IsSuccess() {
						b.Fatal(status)
					}
					if status := p.Reserve(ctx, state, pod, "n0"); !status.IsSuccess() {
						b.Fatal(status)
					}
					b.StopTimer()
					p.Unreserve(ctx, state, pod, "n0") // runs on a goroutine of its own, if ever
					b.StartTimer()
				}
			})
		}
	}
}

// benchDevices returns the plugin in a scheduler with these devices, and a cycle of a pod.
func benchDevices(b *testing.B, allocated int, planned bool) (p *devices.Plugin, state fwk.CycleState, pod *v1.Pod, on fwk.NodeInfo) {
	const nodes, perNode = 5_000, 8
	first := node("n0", "64")
	delete(first.Status.Allocatable, "nvidia.com/gpu")
	h := newHarness(b, first)
	h.add(driverClass("gpu", gpuDriver, "nvidia.com/gpu"))
	for i := range nodes {
		node := fmt.Sprintf("n%d", i)
		slice := sliceOf(node, gpuDriver, node)
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: node, UID: types.UID(node)}}
		claim.Status.Allocation = &resourceapi.AllocationResult{}
		for d := range perNode {
			device := fmt.Sprintf("gpu-%d", d)
			slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{Name: device})
			if i > 0 && d < allocated/nodes {
				claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results,
					resourceapi.DeviceRequestAllocationResult{Request: "r", Driver: gpuDriver, Pool: node, Device: device})
			}
		}
		h.add(slice)
		if len(claim.Status.Allocation.Devices.Results) > 0 {
			h.add(claim)
		}
	}
	h.service.plan([]string{"n0"})
	h.run("")
	pod = &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "uid-p"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c"}}}}
	c := &cycle{Admission: gangs.Admission{}}
	if planned {
		c.Devices = []string{gpuDriver + "/n0/gpu-5", gpuDriver + "/n0/gpu-2"}
		two := v1.ResourceList{"nvidia.com/gpu": resource.MustParse("2")}
		pod.Spec.Containers[0].Resources = v1.ResourceRequirements{Requests: two, Limits: two}
	}
	state = framework.NewCycleState()
	state.Write(cycleKey, c)
	info := framework.NewNodeInfo()
	info.SetNode(first)
	return h.devices, state, pod, info
}
