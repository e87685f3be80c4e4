package intree

import (
	"cmp"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"muster.dev/shim/internal/devices"
)

// watch adds handlers for the objects that these plugins read. kube-scheduler already runs the informers for the plugins.
func (a *Asker) watch(factory informers.SharedInformerFactory, plugins []config.Plugin) error {
	core, storage, resource := factory.Core().V1(), factory.Storage().V1(), factory.Resource().V1()
	sharedInformers := []cache.SharedIndexInformer{}
	for _, plugin := range plugins {
		switch plugin.Name {
		case names.VolumeBinding:
			sharedInformers = append(sharedInformers, storage.StorageClasses().Informer(),
				storage.CSINodes().Informer(), storage.CSIDrivers().Informer(), storage.CSIStorageCapacities().Informer())
		case names.NodeVolumeLimits:
			sharedInformers = append(sharedInformers, storage.VolumeAttachments().Informer())
		case names.DynamicResources, devices.Name:
			sharedInformers = append(sharedInformers, devices.SliceInformer(factory), resource.DeviceClasses().Informer())
			if utilfeature.DefaultFeatureGate.Enabled(features.DRADeviceTaintRules) {
				sharedInformers = append(sharedInformers, resource.DeviceTaintRules().Informer())
			}
			if err := a.addHandler(resource.ResourceClaims().Informer(), a.deviceClaimHandler()); err != nil {
				return err
			}
		}
	}
	for _, informer := range sharedInformers {
		if err := a.addHandler(informer, a.causeHandler()); err != nil {
			return err
		}
	}
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		core.Nodes().Informer():                  a.nodeHandler(),
		core.Pods().Informer():                   a.boundPodHandler(),
		core.PersistentVolumeClaims().Informer(): a.claimHandler(),
		core.PersistentVolumes().Informer():      a.volumeHandler(),
	} {
		if err := a.addHandler(informer, handler); err != nil {
			return err
		}
	}
	return nil
}

// addHandler adds a handler, whose first listing Run awaits.
func (a *Asker) addHandler(informer cache.SharedIndexInformer, handler cache.ResourceEventHandler) error {
	registered, err := informer.AddEventHandler(handler)
	if err == nil {
		a.synced = append(a.synced, registered.HasSynced)
	}
	return err
}

// changeHandler returns a handler that calls onChange for each change of an object, with the object before and after it.
// `before` is nil for a new object, and `after` for a deleted object. A resync is not a change.
func changeHandler(onChange func(before, after any)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { onChange(nil, obj) },
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			onChange(obj, nil)
		},
		UpdateFunc: func(before, after any) {
			if !isResync(before, after) {
				onChange(before, after)
			}
		},
	}
}

// causeHandler handles each change as a cause.
func (a *Asker) causeHandler() cache.ResourceEventHandler {
	return changeHandler(func(any, any) { a.recordCause() })
}

// nodeHandler handles a new or deleted node, and a change of its labels or features, as a cause. Heartbeats are not
// causes.
func (a *Asker) nodeHandler() cache.ResourceEventHandler {
	return changeHandler(func(before, after any) {
		was, _ := before.(*v1.Node)
		is, _ := after.(*v1.Node)
		if was == nil || is == nil || !maps.Equal(was.Labels, is.Labels) || !slices.Equal(was.Status.DeclaredFeatures, is.Status.DeclaredFeatures) {
			a.recordCause()
		}
	})
}

// boundPodHandler handles bound pods that use volumes. Such a pod counts towards its node's limits until it finishes or is
// deleted.
func (a *Asker) boundPodHandler() cache.ResourceEventHandler {
	return changeHandler(func(before, after any) {
		was, _ := before.(*v1.Pod)
		is, _ := after.(*v1.Pod)
		if was != nil && isBoundWithClaims(was) != (is != nil && isBoundWithClaims(is)) {
			a.recordCause()
		}
	})
}

// claimHandler handles a change of a claim as a cause for the questions whose pods name it.
func (a *Asker) claimHandler() cache.ResourceEventHandler {
	return changeHandler(func(before, after any) {
		if claim, ok := cmp.Or(after, before).(*v1.PersistentVolumeClaim); ok {
			a.recordClaimChange(claim.Namespace, claim.Name)
		}
	})
}

// deviceClaimHandler handles a claim that gets or frees devices as a cause for all questions, because other pods may need
// the devices. Any other change is a cause only for the questions whose pods name the claim: users can make such changes
// at will.
func (a *Asker) deviceClaimHandler() cache.ResourceEventHandler {
	return changeHandler(func(before, after any) {
		was, _ := before.(*resourceapi.ResourceClaim)
		is, _ := after.(*resourceapi.ResourceClaim)
		if !equality.Semantic.DeepEqual(allocationOf(was), allocationOf(is)) {
			a.recordCause()
		} else if claim := cmp.Or(is, was); claim != nil {
			a.recordClaimChange(claim.Namespace, deviceClaimKey(claim.Name))
		}
	})
}

// allocationOf returns the allocation of a claim, which may be nil.
func allocationOf(claim *resourceapi.ResourceClaim) *resourceapi.AllocationResult {
	if claim == nil {
		return nil
	}
	return claim.Status.Allocation
}

// deviceClaimKey returns the key of a ResourceClaim in a set that also contains the names of volume claims. It has a
// slash, and names of volume claims have none.
func deviceClaimKey(name string) string { return "device/" + name }

// volumeHandler handles a change of a volume that belongs to a claim as a change of this claim: other claims cannot get
// the volume. A change of another volume is a cause for all questions.
func (a *Asker) volumeHandler() cache.ResourceEventHandler {
	return changeHandler(func(before, after any) {
		for _, obj := range []any{before, after} {
			if pv, ok := obj.(*v1.PersistentVolume); ok && pv.Spec.ClaimRef != nil {
				a.recordClaimChange(pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name)
			} else if ok {
				a.recordCause()
			}
		}
	})
}

// isResync returns whether an update has the same object as before: informers resend objects from time to time.
func isResync(before, after any) bool {
	was, err := meta.Accessor(before)
	if err != nil {
		return false
	}
	is, err := meta.Accessor(after)
	return err == nil && was.GetResourceVersion() == is.GetResourceVersion() && is.GetResourceVersion() != ""
}
