// fake-gpus is the stand-in for NVIDIA's device plugin on a real node without GPUs: it offers devices with
// the names GPU-0, GPU-1, …, prefers the lowest free ones, and tells a container by NVIDIA_VISIBLE_DEVICES
// and by CDI which ones it got.
//
//	fake-gpus RESOURCE COUNT
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	endpoint  = "nvidia-gpu.sock" // as NVIDIA's: muster node-agent looks for it
	socket    = api.DevicePluginPath + endpoint
	lookEvery = 200 * time.Millisecond
	patience  = 10 * time.Second
)

type plugin struct {
	api.UnimplementedDevicePluginServer
	count int
}

var options = &api.DevicePluginOptions{GetPreferredAllocationAvailable: true}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return options, nil
}

// ListAndWatch sends the devices once: their health never changes.
func (p *plugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	answer := &api.ListAndWatchResponse{}
	for index := range p.count {
		answer.Devices = append(answer.Devices, &api.Device{ID: fmt.Sprintf("GPU-%d", index), Health: api.Healthy})
	}
	if err := stream.Send(answer); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (p *plugin) GetPreferredAllocation(_ context.Context, request *api.PreferredAllocationRequest) (*api.PreferredAllocationResponse, error) {
	answer := &api.PreferredAllocationResponse{}
	for _, container := range request.ContainerRequests {
		preferred := slices.Clone(container.MustIncludeDeviceIDs)
		free := slices.Clone(container.AvailableDeviceIDs)
		slices.SortFunc(free, byIndex)
		for _, device := range free {
			if len(preferred) < int(container.AllocationSize) && !slices.Contains(preferred, device) {
				preferred = append(preferred, device)
			}
		}
		answer.ContainerResponses = append(answer.ContainerResponses, &api.ContainerPreferredAllocationResponse{DeviceIDs: preferred})
	}
	return answer, nil
}

func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		devices := slices.Clone(container.DevicesIds)
		slices.SortFunc(devices, byIndex)
		response := &api.ContainerAllocateResponse{Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(devices, ",")}}
		for _, device := range devices {
			response.CdiDevices = append(response.CdiDevices, &api.CDIDevice{Name: "nvidia.com/gpu=" + device})
		}
		answer.ContainerResponses = append(answer.ContainerResponses, response)
	}
	return answer, nil
}

// byIndex orders GPU-2 before GPU-10.
func byIndex(a, b string) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: fake-gpus RESOURCE COUNT")
	}
	count, err := strconv.Atoi(os.Args[2])
	if err != nil || count < 1 {
		log.Fatalf("fake-gpus: COUNT is %q: give a number from 1", os.Args[2])
	}
	for kubelet := awaitKubelet(time.Time{}); ; kubelet = awaitKubelet(kubelet) {
		serve(os.Args[1], &plugin{count: count}, kubelet)
	}
}

// serve registers the devices and returns when the kubelet that knows them is gone: each one removes all
// sockets of the folder when it starts.
func serve(resource string, p *plugin, kubelet time.Time) {
	_ = os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		log.Fatalf("fake-gpus: %v", err)
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, p)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	for registered := false; socketMade() == kubelet; time.Sleep(lookEvery) {
		if registered {
			continue
		}
		if err := register(resource); err != nil {
			log.Printf("the kubelet does not take %s yet: %v", resource, err)
			continue
		}
		registered = true
		log.Printf("registered %d devices as %s", p.count, resource)
	}
}

func register(resource string) error {
	connection, err := grpc.NewClient("unix://"+api.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err = api.NewRegistrationClient(connection).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: endpoint, ResourceName: resource, Options: options,
	})
	return err
}

// awaitKubelet returns when the kubelet's socket is another one than before.
func awaitKubelet(before time.Time) time.Time {
	for {
		if created := socketMade(); !created.IsZero() && created != before {
			return created
		}
		time.Sleep(lookEvery)
	}
}

// socketMade tells when the kubelet made its socket; inode numbers are used again, times are not.
func socketMade() time.Time {
	info, err := os.Stat(api.KubeletSocket)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}
