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
			sharedInformers = append(sharedInformers, resource.ResourceSlices().Informer(), resource.DeviceClasses().Informer())
			if utilfeature.DefaultFeatureGate.Enabled(features.DRADeviceTaintRules) {
				sharedInformers = append(sharedInformers, resource.DeviceTaintRules().Informer())
			}
			if err := a.listen(resource.ResourceClaims().Informer(), a.deviceClaims()); err != nil {
				return err
			}
		}
	}
	for _, informer := range sharedInformers {
		if err := a.listen(informer, a.any()); err != nil {
			return err
		}
	}
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		core.Nodes().Informer():                  a.nodes(),
		core.Pods().Informer():                   a.boundPods(),
		core.PersistentVolumeClaims().Informer(): a.claims(),
		core.PersistentVolumes().Informer():      a.volumes(),
	} {
		if err := a.listen(informer, handler); err != nil {
			return err
		}
	}
	return nil
}

func (a *Asker) listen(informer cache.SharedIndexInformer, handler cache.ResourceEventHandler) error {
	registered, err := informer.AddEventHandler(handler)
	if err == nil {
		a.synced = append(a.synced, registered.HasSynced)
	}
	return err
}

// changes returns a handler that calls touched for each change of an object, with the object before and after it. `before`
// is nil for a new object, and `after` for a deleted object. A resync is not a change.
func changes(touched func(before, after any)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { touched(nil, obj) },
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			touched(obj, nil)
		},
		UpdateFunc: func(before, after any) {
			if !sameVersion(before, after) {
				touched(before, after)
			}
		},
	}
}

// any handles each change as a cause.
func (a *Asker) any() cache.ResourceEventHandler {
	return changes(func(any, any) { a.touched() })
}

// nodes handles a new or deleted node, and a change of its labels or features, as a cause. Heartbeats are not causes.
func (a *Asker) nodes() cache.ResourceEventHandler {
	return changes(func(before, after any) {
		was, _ := before.(*v1.Node)
		is, _ := after.(*v1.Node)
		if was == nil || is == nil || !maps.Equal(was.Labels, is.Labels) || !slices.Equal(was.Status.DeclaredFeatures, is.Status.DeclaredFeatures) {
			a.touched()
		}
	})
}

// boundPods handles bound pods that use volumes. Such a pod counts towards its node's limits until it finishes or is
// deleted.
func (a *Asker) boundPods() cache.ResourceEventHandler {
	return changes(func(before, after any) {
		was, _ := before.(*v1.Pod)
		is, _ := after.(*v1.Pod)
		if was != nil && counts(was) != (is != nil && counts(is)) {
			a.touched()
		}
	})
}

// claims handles a change of a claim as a cause for the questions whose pods name it.
func (a *Asker) claims() cache.ResourceEventHandler {
	return changes(func(before, after any) {
		if claim, ok := cmp.Or(after, before).(*v1.PersistentVolumeClaim); ok {
			a.claimTouched(claim.Namespace, claim.Name)
		}
	})
}

// deviceClaims handles a claim that gets or frees devices as a cause for all questions, because other pods may need the
// devices. Any other change is a cause only for the questions whose pods name the claim: users can make such changes at
// will.
func (a *Asker) deviceClaims() cache.ResourceEventHandler {
	return changes(func(before, after any) {
		was, _ := before.(*resourceapi.ResourceClaim)
		is, _ := after.(*resourceapi.ResourceClaim)
		if !equality.Semantic.DeepEqual(allocationOf(was), allocationOf(is)) {
			a.touched()
		} else if claim := cmp.Or(is, was); claim != nil {
			a.claimTouched(claim.Namespace, deviceClaim(claim.Name))
		}
	})
}

func allocationOf(claim *resourceapi.ResourceClaim) *resourceapi.AllocationResult {
	if claim == nil {
		return nil
	}
	return claim.Status.Allocation
}

// deviceClaim returns the name of a ResourceClaim in a set that also contains the names of volume claims. Those have no
// slash.
func deviceClaim(name string) string { return "device/" + name }

// volumes handles a change of a volume that belongs to a claim as a change of this claim: other claims cannot get the
// volume. A change of another volume is a cause for all questions.
func (a *Asker) volumes() cache.ResourceEventHandler {
	return changes(func(before, after any) {
		for _, obj := range []any{before, after} {
			if pv, ok := obj.(*v1.PersistentVolume); ok && pv.Spec.ClaimRef != nil {
				a.claimTouched(pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name)
			} else if ok {
				a.touched()
			}
		}
	})
}

func sameVersion(before, after any) bool {
	was, err := meta.Accessor(before)
	if err != nil {
		return false
	}
	is, err := meta.Accessor(after)
	return err == nil && was.GetResourceVersion() == is.GetResourceVersion() && is.GetResourceVersion() != ""
}
