// fake-dra-driver is the stand-in for a DRA driver on a real node without GPUs: it publishes the devices gpu-0, gpu-1, …
// and gives containers those that their claims name, by CDI. On the library that drivers of vendors use.
//
//	fake-dra-driver NODE COUNT KUBECONFIG
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
)

const (
	name  = "gpu.muster.local"
	state = kubeletplugin.KubeletPluginsDir + "/" + name
	// heldFolder has a file for each device that a claim holds, with the claim's UID in it. So a new driver knows the
	// devices that its predecessor has prepared.
	heldFolder = state + "/held"
)

type driver struct{}

// PrepareResourceClaims answers with the devices that the claims name. A device that another claim holds is refused:
// the driver is the last one to notice a device that was allocated twice.
func (driver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		results[claim.UID] = prepare(claim)
	}
	return results, nil
}

func prepare(claim *resourceapi.ResourceClaim) (result kubeletplugin.PrepareResult) {
	for _, allocated := range claim.Status.Allocation.Devices.Results {
		if allocated.Driver != name {
			continue
		}
		// a request that only watches a device does not hold it
		if allocated.AdminAccess == nil || !*allocated.AdminAccess {
			if err := hold(allocated.Device, claim.UID); err != nil {
				return kubeletplugin.PrepareResult{Err: err}
			}
		}
		result.Devices = append(result.Devices, kubeletplugin.Device{
			Requests:     []string{allocated.Request},
			PoolName:     allocated.Pool,
			DeviceName:   allocated.Device,
			CDIDeviceIDs: []string{"nvidia.com/gpu=" + strings.ToUpper(allocated.Device)},
		})
	}
	return result
}

// UnprepareResourceClaims takes the devices of the claims back.
func (driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		results[claim.UID] = release(claim.UID)
	}
	return results, nil
}

func (driver) HandleError(_ context.Context, err error, message string) {
	log.Printf("%s: %v", message, err)
}

func (driver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

// hold writes down that the claim has the device. Calls come one after another.
func hold(device string, claim types.UID) error {
	file := filepath.Join(heldFolder, filepath.Base(device))
	holder, err := os.ReadFile(file)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return os.WriteFile(file, []byte(claim), 0o600)
	case err == nil && string(holder) != string(claim):
		return fmt.Errorf("device %s is held by claim %s", device, holder)
	}
	return err
}

func release(claim types.UID) error {
	files, err := filepath.Glob(heldFolder + "/*")
	for _, file := range files {
		if holder, unread := os.ReadFile(file); unread != nil || string(holder) == string(claim) {
			err = errors.Join(err, unread, os.Remove(file))
		}
	}
	return err
}

// devices have the PCI addresses of a real machine: GPUs 0 to 7 at 0000:10:00.0, 0000:11:00.0 and so on.
func devices(count int) (devices []resourceapi.Device) {
	for index := range count {
		uuid, kind, address, number := fmt.Sprintf("GPU-%d", index), "gpu", fmt.Sprintf("0000:%02x:00.0", 16+index), int64(index)
		devices = append(devices, resourceapi.Device{
			Name: fmt.Sprintf("gpu-%d", index),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"type":                            {StringValue: &kind},
				"uuid":                            {StringValue: &uuid},
				"index":                           {IntValue: &number},
				"resource.kubernetes.io/pciBusID": {StringValue: &address},
			},
		})
	}
	return devices
}

func run(ctx context.Context, node string, count int, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	for _, folder := range []string{heldFolder, kubeletplugin.KubeletRegistryDir} {
		if err := os.MkdirAll(folder, 0o750); err != nil {
			return err
		}
	}
	helper, err := kubeletplugin.Start(ctx, driver{}, kubeletplugin.DriverName(name),
		kubeletplugin.NodeName(node), kubeletplugin.KubeClient(client))
	if err != nil {
		return err
	}
	defer helper.Stop()
	pool := resourceslice.Pool{Slices: []resourceslice.Slice{{Devices: devices(count)}}}
	if err := helper.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{node: pool}}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: fake-dra-driver NODE COUNT KUBECONFIG")
	}
	count, err := strconv.Atoi(os.Args[2])
	if err != nil || count < 1 {
		log.Fatalf("fake-dra-driver: COUNT is %q: give a number from 1", os.Args[2])
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(klog.NewContext(ctx, klog.Background()), os.Args[1], count, os.Args[3]); err != nil {
		log.Fatalf("fake-dra-driver: %v", err)
	}
}
