package devices

import (
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// device identifies a device of the cluster.
type device struct{ driver, pool, name string }

// allocatedDevices holds the devices that are allocated, or about to be. The in-tree tracker holds them too. But it
// copies all its devices for each pod: 40,000 at 5,000 nodes, which takes milliseconds of the scheduling thread.
//
// It has at least the devices of the in-tree tracker: devices in the informer's claims, devices that a Reserve has
// signalled, and devices that a PreBind has written and the informer does not show yet. So the answer "free" is
// reliable. After "not free" the in-tree tracker is asked, because it may know of newer releases. All profiles share
// one instance.
type allocatedDevices struct {
	mu      sync.Mutex
	holders map[string][]device
	count   map[device]int
}

func newAllocatedDevices() *allocatedDevices {
	return &allocatedDevices{holders: map[string][]device{}, count: map[device]int{}}
}

// followClaims records all claims of the informer, and their changes.
func (a *allocatedDevices) followClaims(claims cache.SharedInformer) error {
	_, err := claims.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { a.recordClaim(obj.(*resourceapi.ResourceClaim)) },
		UpdateFunc: func(before, obj any) {
			a.updateClaim(before.(*resourceapi.ResourceClaim), obj.(*resourceapi.ResourceClaim))
		},
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			if claim, ok := obj.(*resourceapi.ResourceClaim); ok {
				a.forgetClaim(claim)
			}
		},
	})
	return err
}

// updateClaim records a change of a claim. A claim that was created again under its name, while the watch was
// interrupted, is an update too.
func (a *allocatedDevices) updateClaim(before, claim *resourceapi.ResourceClaim) {
	if before.UID != claim.UID {
		a.forgetClaim(before)
	}
	a.recordClaim(claim)
}

// forgetClaim releases the devices of a deleted claim.
func (a *allocatedDevices) forgetClaim(claim *resourceapi.ResourceClaim) {
	a.hold("claim/"+string(claim.UID), nil)
	a.hold("written/"+string(claim.UID), nil)
}

// recordClaim records a claim from the API server. If it has devices, the entry of the PreBind that wrote them ends.
func (a *allocatedDevices) recordClaim(claim *resourceapi.ResourceClaim) {
	devices := devicesOf(claim)
	a.hold("claim/"+string(claim.UID), devices)
	if len(devices) > 0 {
		a.hold("written/"+string(claim.UID), nil)
	}
}

// recordSignalled records the devices that a Reserve wants to allocate. The UID is temporary for a claim that PreBind
// creates.
func (a *allocatedDevices) recordSignalled(uid types.UID, claim *resourceapi.ResourceClaim) {
	a.hold("signalled/"+string(uid), devicesOf(claim))
}

// forgetSignalled ends a signalled allocation, which was written or given up.
func (a *allocatedDevices) forgetSignalled(uid types.UID) { a.hold("signalled/"+string(uid), nil) }

// recordWritten records an allocation that the API server has accepted, until the informer shows it.
func (a *allocatedDevices) recordWritten(claim *resourceapi.ResourceClaim) {
	if !a.holds("claim/" + string(claim.UID)) {
		a.hold("written/"+string(claim.UID), devicesOf(claim))
	}
}

// holds returns whether a holder has devices.
func (a *allocatedDevices) holds(holder string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.holders[holder]) > 0
}

// hold makes these devices all that the holder has. A holder is a claim with its source: claim/, written/ or signalled/.
func (a *allocatedDevices) hold(holder string, devices []device) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, d := range a.holders[holder] {
		if a.count[d]--; a.count[d] == 0 {
			delete(a.count, d)
		}
	}
	delete(a.holders, holder)
	if len(devices) == 0 {
		return
	}
	a.holders[holder] = devices
	for _, d := range devices {
		a.count[d]++
	}
}

// areFree returns whether no claim has a device of the plan, or a device that competes for the counters of such a device.
func (a *allocatedDevices) areFree(p *plan, competing []device) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, rival := range competing {
		if a.count[rival] > 0 {
			return false
		}
	}
	for _, planned := range p.pools {
		for _, name := range planned.devices {
			if a.count[device{planned.driver, planned.name, name}] > 0 {
				return false
			}
		}
	}
	return true
}

// devicesOf returns the devices that a claim is allocated.
func devicesOf(claim *resourceapi.ResourceClaim) (devices []device) {
	if claim.Status.Allocation == nil {
		return nil
	}
	for _, result := range claim.Status.Allocation.Devices.Results {
		devices = append(devices, device{result.Driver, result.Pool, result.Device})
	}
	return devices
}
