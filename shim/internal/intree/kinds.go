package intree

import (
	"crypto/sha256"
	"encoding/json"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	corelisters "k8s.io/client-go/listers/core/v1"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/version"
	ndf "k8s.io/component-helpers/nodedeclaredfeatures"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"
	fwk "k8s.io/kube-scheduler/framework"

	"muster.dev/shim/internal/devices"
)

const (
	// maxKinds bounds how many kinds of one question are inspected. Pods of further kinds get no answer. They are
	// planned as if no plugin refused them, and the plugins check them in the scheduling cycle. The planner has the same
	// bound for different roles (placement/limits.py, MAX_UNLIKE_ROLES).
	maxKinds = 64
	// maxVolumes bounds the volumes of a pod that is inspected. The service refuses pods with more claims than
	// that (dialects/pods/peers.py, MAX_CLAIMS).
	maxVolumes = 256
)

// kind is a set of pods that get the same answer. All pods that lack a claim are one kind.
type kind struct {
	key            string
	pods           []int    // indices into the question
	missing        []string // the first maxMissing names of the claims that the pods lack
	furtherMissing int      // how many further claims the pods lack
}

// sorter groups pods into kinds. It reads only the informers.
type sorter struct {
	claims    corelisters.PersistentVolumeClaimLister
	volumes   corelisters.PersistentVolumeLister
	byClaim   cache.Indexer // the volumes, with the index of this name
	devices   resourcelisters.ResourceClaimLister
	classes   fwk.DeviceClassResolver
	scores    bool // kinds differ in preferences
	wholeSpec bool // kinds differ in the whole spec, because extenders may read it
}

// groupPods groups the pods into kinds. It leaves out nil pods and pods with too many volumes. isUnique returns whether a
// claim differs from all others. groupPods returns the first maxKinds kinds, and one kind of pods that lack claims. A
// question may have hundreds of pods with hundreds of claims each. So groupPods calls pause before each pod, and returns
// false if pause does.
func (s *sorter) groupPods(pods []*v1.Pod, isUnique func(key string) bool, pause func() bool) ([]*kind, bool) {
	users, digests := countUsers(pods), map[string][]byte{}
	byKey, lacking := map[string]*kind{}, &kind{}
	var result []*kind
	for i, pod := range pods {
		if pod == nil || len(pod.Spec.Volumes) > maxVolumes {
			continue
		}
		if !pause() {
			return nil, false
		}
		key, missing := s.podKey(pod, users, digests, isUnique)
		if len(missing) > 0 {
			lacking.pods = append(lacking.pods, i)
			lacking.missing = limitNames(append(lacking.missing, missing...))
			continue
		}
		if byKey[key] == nil {
			if len(result) == maxKinds {
				continue
			}
			byKey[key] = &kind{key: key}
			result = append(result, byKey[key])
		}
		byKey[key].pods = append(byKey[key].pods, i)
	}
	if len(lacking.pods) > 0 {
		lacking.furtherMissing = countMissing(digests) - len(lacking.missing)
		result = append(result, lacking)
	}
	return result, true
}

// limitNames returns the first maxMissing distinct names.
func limitNames(claims []string) []string {
	slices.Sort(claims)
	claims = slices.Compact(claims)
	return claims[:min(len(claims), maxMissing)]
}

// countMissing returns how many of the claims do not exist. A claim that does not exist has no digest.
func countMissing(digests map[string][]byte) int {
	count := 0
	for _, digest := range digests {
		if digest == nil {
			count++
		}
	}
	return count
}

// byClaim is the index of volumes by the claim that they belong to: namespace/name.
const byClaim = "claim"

// claimKeys returns the key of a volume in the index byClaim.
func claimKeys(obj any) ([]string, error) {
	if ref := obj.(*v1.PersistentVolume).Spec.ClaimRef; ref != nil {
		return []string{ref.Namespace + "/" + ref.Name}, nil
	}
	return nil, nil
}

// isReserved returns whether a volume is reserved for a claim. No other claim gets the volume, so the claim is unique.
func (s *sorter) isReserved(claim string) bool {
	volumes, err := s.byClaim.ByIndex(byClaim, claim)
	return err == nil && slices.ContainsFunc(volumes, func(obj any) bool { // it fails only without the index
		return obj.(*v1.PersistentVolume).Status.Phase != v1.VolumeBound
	})
}

// podKey returns a string that is equal for pods that get the same answer, and the names of missing claims. users
// contains how many pods of the question name each claim. A node has room for more pods if they share claims. digests
// caches the digests of claims of earlier pods. isUnique returns whether a claim differs from all others.
func (s *sorter) podKey(pod *v1.Pod, users map[string]int, digests map[string][]byte, isUnique func(claim string) bool) (key string, missing []string) {
	parts := []any{s.fieldsOfPod(pod)}
	for i := range pod.Spec.Volumes {
		podVolume := &pod.Spec.Volumes[i]
		if name := claimName(pod, podVolume); name != "" {
			digest, ok := digests[name]
			if !ok {
				if claim, err := s.claims.PersistentVolumeClaims(pod.Namespace).Get(name); err == nil {
					digest = digestOf(s.fieldsOfClaim(claim, isUnique(pod.Namespace+"/"+name)))
				}
				digests[name] = digest
			}
			if digest == nil {
				missing = append(missing, name)
				continue
			}
			readOnly := podVolume.PersistentVolumeClaim != nil && podVolume.PersistentVolumeClaim.ReadOnly
			shared := min(users[name], maxRoom)
			parts = append(parts, podVolume.Ephemeral != nil, readOnly, shared, digest)
		} else if namesDisk(podVolume) {
			parts = append(parts, podVolume.VolumeSource)
		}
	}
	for _, claim := range pod.Spec.ResourceClaims {
		parts = append(parts, s.fieldsOfDeviceClaim(pod, claim))
	}
	if len(missing) > 0 {
		return "", missing
	}
	text, err := json.Marshal(parts)
	if err != nil {
		return string(pod.UID), nil
	}
	return string(text), nil
}

// digestOf returns a hash of the value. The value may be large, and each pod needs it in its key.
func digestOf(value any) []byte {
	text, err := json.Marshal(value)
	if err != nil {
		text = []byte(err.Error())
	}
	sum := sha256.Sum256(text)
	return sum[:]
}

// fieldsOfPod returns the fields of a pod, apart from its claims, that plugins read. The filter plugins read only those
// resources that dynamic resource allocation serves.
func (s *sorter) fieldsOfPod(pod *v1.Pod) any {
	if s.wholeSpec {
		return readableSpec(pod)
	}
	parts := []any{requiredFeatures(pod)}
	if len(pod.Spec.ResourceClaims) > 0 || s.usesDeviceClass(pod) {
		parts = append(parts, resourcesOf(pod))
	}
	if s.scores && hasPreferences(pod) {
		parts = append(parts, preferencesOf(pod))
	}
	return parts
}

// requiredFeatures returns the node features that NodeDeclaredFeatures requires for the pod.
func requiredFeatures(pod *v1.Pod) string {
	release, err := utilversion.Parse(version.Get().String())
	if err != nil {
		return "" // then the plugin does not run either
	}
	requirements, err := ndf.DefaultFramework.InferForPodScheduling(&ndf.PodInfo{Spec: &pod.Spec}, release)
	if err != nil {
		return string(pod.UID)
	}
	return requirements.String()
}

// usesDeviceClass returns whether dynamic resource allocation serves an extended resource that the pod requests.
func (s *sorter) usesDeviceClass(pod *v1.Pod) bool {
	for name := range devices.RequestedResources(pod) {
		if s.classes.GetDeviceClass(name) != nil {
			return true
		}
	}
	return false
}

// resourcesOf returns the fields of a pod that say what it requests.
func resourcesOf(pod *v1.Pod) (parts []any) {
	parts = append(parts, pod.Spec.Resources, pod.Spec.Overhead)
	for _, containers := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			parts = append(parts, containers[i].Resources, containers[i].RestartPolicy)
		}
	}
	return parts
}

// preferencesOf returns the fields of a pod, apart from its labels, that the scoring plugins and the filters before them
// read.
func preferencesOf(pod *v1.Pod) any {
	return []any{
		pod.Spec.NodeSelector, pod.Spec.Affinity, pod.Spec.Tolerations, pod.Spec.TopologySpreadConstraints, sets.List(imagesOf(pod)),
	}
}

// readableSpec returns the parts of a spec that an extender may read, without those that often differ between members.
func readableSpec(pod *v1.Pod) *v1.PodSpec {
	spec := pod.Spec.DeepCopy()
	spec.Volumes, spec.ResourceClaims, spec.Hostname, spec.Subdomain, spec.SchedulingGates = nil, nil, "", "", nil
	for _, containers := range [][]v1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			containers[i].Env, containers[i].EnvFrom = nil, nil
			containers[i].Args, containers[i].Command = nil, nil
		}
	}
	return spec
}

// fieldsOfClaim returns the fields of a claim and of its volume that VolumeBinding, VolumeZone and NodeVolumeLimits read.
func (s *sorter) fieldsOfClaim(claim *v1.PersistentVolumeClaim, unique bool) any {
	if unique || claim.DeletionTimestamp != nil || claim.Annotations[volume.AnnSelectedNode] != "" {
		return claim.Name
	}
	if claim.Spec.VolumeName == "" {
		spec := claim.Spec.DeepCopy()
		return []any{volume.GetPersistentVolumeClaimClass(claim), claim.Status.Phase, spec}
	}
	pv, err := s.volumes.Get(claim.Spec.VolumeName)
	if err != nil {
		return claim.Name
	}
	zones := map[string]string{}
	for _, label := range []string{
		v1.LabelTopologyZone, v1.LabelTopologyRegion, v1.LabelFailureDomainBetaZone, v1.LabelFailureDomainBetaRegion,
	} {
		zones[label] = pv.Labels[label]
	}
	source := pv.Spec.PersistentVolumeSource.DeepCopy()
	if source.CSI != nil {
		source = &v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: source.CSI.Driver}}
	} else if source.Local != nil {
		source = &v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{}}
	}
	_, completed := claim.Annotations[volume.AnnBindCompleted]
	return []any{completed, claim.Status.Phase, claim.Spec.AccessModes, pv.Spec.NodeAffinity, zones, source}
}

// fieldsOfDeviceClaim returns the digest of a resource claim's spec, if the claim has no allocation and was created for
// the pod. For other claims it returns the name, or the reference if the name is unknown.
func (s *sorter) fieldsOfDeviceClaim(pod *v1.Pod, reference v1.PodResourceClaim) any {
	name := reference.ResourceClaimName
	for _, status := range pod.Status.ResourceClaimStatuses {
		if status.Name == reference.Name && status.ResourceClaimName != nil {
			name = status.ResourceClaimName
		}
	}
	if name == nil {
		return reference
	}
	claim, err := s.devices.ResourceClaims(pod.Namespace).Get(*name)
	if err != nil || reference.ResourceClaimName != nil || claim.Status.Allocation != nil {
		return *name
	}
	return digestOf(claim.Spec)
}

// claimName returns the claim that a volume uses, or "" for other volumes.
func claimName(pod *v1.Pod, podVolume *v1.Volume) string {
	switch {
	case podVolume.PersistentVolumeClaim != nil:
		return podVolume.PersistentVolumeClaim.ClaimName
	case podVolume.Ephemeral != nil:
		return ephemeral.VolumeClaimName(pod, podVolume)
	}
	return ""
}
