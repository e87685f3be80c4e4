package devices

import (
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// device identifies a device of the cluster.
type device struct{ driver, pool, name string }

// taken knows which devices are allocated, or about to be. The in-tree tracker knows it too, but copies all of its
// 40,000 devices at 5,000 nodes for each pod, which takes milliseconds of the scheduling thread.
//
// It knows at least what the in-tree tracker knows: the claims of the informer, what a Reserve has signalled, and what
// a PreBind has written and the informer does not show yet. So "free" can be believed, and after any other answer the
// in-tree tracker is asked. All profiles of a process share one.
type taken struct {
	mu      sync.Mutex
	holders map[string][]device
	count   map[device]int
}

func newTaken() *taken { return &taken{holders: map[string][]device{}, count: map[device]int{}} }

// follow takes in all claims from the informer.
func (t *taken) follow(claims cache.SharedInformer) error {
	_, err := claims.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { t.see(obj.(*resourceapi.ResourceClaim)) },
		UpdateFunc: func(before, obj any) { t.update(before.(*resourceapi.ResourceClaim), obj.(*resourceapi.ResourceClaim)) },
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if claim, ok := obj.(*resourceapi.ResourceClaim); ok {
				t.forget(claim)
			}
		},
	})
	return err
}

// update takes in a change. A claim that was made again under its name while the watch was interrupted is an update.
func (t *taken) update(before, claim *resourceapi.ResourceClaim) {
	if before.UID != claim.UID {
		t.forget(before)
	}
	t.see(claim)
}

// forget releases what a claim that is gone had.
func (t *taken) forget(claim *resourceapi.ResourceClaim) {
	t.hold("claim/"+string(claim.UID), nil)
	t.hold("written/"+string(claim.UID), nil)
}

// see takes in a claim as the API server has it. What was written to it is shown by it from now on.
func (t *taken) see(claim *resourceapi.ResourceClaim) {
	devices := devicesOf(claim)
	t.hold("claim/"+string(claim.UID), devices)
	if len(devices) > 0 {
		t.hold("written/"+string(claim.UID), nil)
	}
}

// signal takes in what a Reserve wants to allocate; the UID may be a temporary one.
func (t *taken) signal(uid types.UID, claim *resourceapi.ResourceClaim) {
	t.hold("signalled/"+string(uid), devicesOf(claim))
}

// unsignal is called when that is over: written, or given up.
func (t *taken) unsignal(uid types.UID) { t.hold("signalled/"+string(uid), nil) }

// written takes in what the API server has accepted, until the informer shows it.
func (t *taken) written(claim *resourceapi.ResourceClaim) {
	if !t.holds("claim/" + string(claim.UID)) {
		t.hold("written/"+string(claim.UID), devicesOf(claim))
	}
}

func (t *taken) holds(holder string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.holders[holder]) > 0
}

func (t *taken) hold(holder string, devices []device) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range t.holders[holder] {
		if t.count[d]--; t.count[d] == 0 {
			delete(t.count, d)
		}
	}
	delete(t.holders, holder)
	if len(devices) == 0 {
		return
	}
	t.holders[holder] = devices
	for _, d := range devices {
		t.count[d]++
	}
}

// free returns whether no claim has a device of the plan, or one that shares counters with it.
func (t *taken) free(p *plan, rivals []device) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, rival := range rivals {
		if t.count[rival] > 0 {
			return false
		}
	}
	for _, of := range p.pools {
		for _, name := range of.devices {
			if t.count[device{of.driver, of.name, name}] > 0 {
				return false
			}
		}
	}
	return true
}

func devicesOf(claim *resourceapi.ResourceClaim) (devices []device) {
	if claim.Status.Allocation == nil {
		return nil
	}
	for _, result := range claim.Status.Allocation.Devices.Results {
		devices = append(devices, device{result.Driver, result.Pool, result.Device})
	}
	return devices
}
