package intree

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	plfeature "k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"

	"muster.dev/shim/internal/fair"
)

const (
	// maxWrites bounds the concurrent writes, because they share the scheduler's client with all other requests. One
	// namespace has half of them at most.
	maxWrites = 8
	// writeTimeout bounds the writes for one gang.
	writeTimeout = 5 * time.Second
	// noWait makes the binder write without waiting for the volume.
	noWait = time.Duration(0)
)

// sharedClaims requests volumes for claims that several pods of a gang share, that wait for their first consumer, and that
// have no volume.
//
// Otherwise the gang could not bind. VolumeBinding would admit the other pods only to the first pod's node. And it
// requests the volume in PreBind, which no member reaches before all members are placed (volumebinding/binder.go,
// FindPodVolumes).
type sharedClaims struct {
	binder  volumebinding.SchedulerVolumeBinder
	claims  corelisters.PersistentVolumeClaimLister
	classes storagelisters.StorageClassLister
	nodes   corelisters.NodeLister
	writes  *fair.Room
}

func newSharedClaims(ctx context.Context, handle fwk.Handle) (*sharedClaims, error) {
	core, storage := handle.SharedInformerFactory().Core().V1(), handle.SharedInformerFactory().Storage().V1()
	capacity := volumebinding.CapacityCheck{
		CSIDriverInformer: storage.CSIDrivers(), CSIStorageCapacityInformer: storage.CSIStorageCapacities(),
	}
	binder, err := volumebinding.NewVolumeBinder(klog.FromContext(ctx), handle.ClientSet(),
		plfeature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate), core.Pods(), core.Nodes(), storage.CSINodes(),
		core.PersistentVolumeClaims(), core.PersistentVolumes(), storage.StorageClasses(), capacity, noWait)
	return &sharedClaims{
		binder:  binder,
		claims:  core.PersistentVolumeClaims().Lister(),
		classes: storage.StorageClasses().Lister(),
		nodes:   core.Nodes().Lister(),
		writes:  fair.NewRoom(maxWrites, maxWrites/2),
	}, err
}

// RequestSharedVolumes requests volumes for claims that several of these pods share and that have no volume. It returns
// why the pods cannot go to their nodes yet, or "" if they can. Pods may be nil. It requests the volumes of all claims of
// one pod for that pod's planned node, so that one node can reach all of them.
func (a *Asker) RequestSharedVolumes(ctx context.Context, pods []*v1.Pod, planned func(int) string) string {
	nodeByClaim := a.shared.unprovisionedClaims(pods)
	for _, name := range slices.Sorted(maps.Keys(nodeByClaim)) {
		if reason := a.shared.whyProvisioning(name, nodeByClaim[name]); reason != "" {
			return reason
		}
	}
	podIndex, claimCount := -1, 0
	for i, pod := range pods {
		if count := len(volumesOf(pod, nodeByClaim)); count > claimCount {
			podIndex, claimCount = i, count
		}
	}
	if podIndex < 0 {
		return ""
	}
	return a.shared.requestVolumes(ctx, pods[podIndex], volumesOf(pods[podIndex], nodeByClaim), planned(podIndex))
}

// requestVolumes requests the volumes of a pod's claims for a node, or binds existing volumes. It ignores reasons of
// VolumeBinding against the node, because the scheduling cycle checks the node again.
func (s *sharedClaims) requestVolumes(ctx context.Context, pod *v1.Pod, volumes []v1.Volume, nodeName string) string {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	logger := klog.FromContext(ctx)
	pod = pod.DeepCopy()
	pod.Spec.Volumes = volumes
	name := claimName(pod, &volumes[0])
	node, err := s.nodes.Get(nodeName)
	if err != nil {
		return ""
	}
	claims, err := s.binder.GetPodVolumeClaims(logger, pod)
	if err != nil {
		return ""
	}
	podVolumes, reasons, err := s.binder.FindPodVolumes(logger, pod, claims, node)
	if err != nil || len(reasons) > 0 {
		return ""
	}
	turn, ok := s.writes.Take(ctx, pod.Namespace, 1)
	if !ok {
		return fmt.Sprintf("PersistentVolumeClaim %s waits for its turn to be given a volume", name)
	}
	defer s.writes.Leave(turn)
	_, err = s.binder.AssumePodVolumes(logger, pod, nodeName, podVolumes)
	if err == nil {
		defer s.binder.RevertAssumedPodVolumes(podVolumes)
		err = s.binder.BindPodVolumes(ctx, pod, podVolumes)
	}
	if err != nil && (ctx.Err() != nil || !wait.Interrupted(err)) {
		return fmt.Sprintf("no volume could be asked for PersistentVolumeClaim %s: %v", name, err)
	}
	return s.whyProvisioning(name, nodeName)
}

// unprovisionedClaims returns the claims that several of these pods share, that wait for their first consumer, and that
// have no volume. It maps the name to the node for which a volume was requested, or to "".
func (s *sharedClaims) unprovisionedClaims(pods []*v1.Pod) map[string]string {
	if s == nil {
		return nil
	}
	users, namespace := countUsers(pods), ""
	for _, pod := range pods {
		if pod != nil {
			namespace = pod.Namespace
		}
	}
	nodeByClaim := map[string]string{}
	for name, count := range users {
		if count < 2 {
			continue
		}
		claim, err := s.claims.PersistentVolumeClaims(namespace).Get(name)
		if err != nil || claim.Spec.VolumeName != "" || claim.DeletionTimestamp != nil {
			continue
		}
		if waits, err := volume.IsDelayBindingMode(claim, s.classes); err == nil && waits {
			nodeByClaim[name] = claim.Annotations[volume.AnnSelectedNode]
		}
	}
	return nodeByClaim
}

// countUsers returns how many of the pods name each claim. Pods may be nil.
func countUsers(pods []*v1.Pod) map[string]int {
	counts := map[string]int{}
	for _, pod := range pods {
		if pod == nil {
			continue
		}
		seen := map[string]bool{}
		for i := range pod.Spec.Volumes {
			if name := claimName(pod, &pod.Spec.Volumes[i]); name != "" && !seen[name] {
				seen[name] = true
				counts[name]++
			}
		}
	}
	return counts
}

// volumesOf returns the pod's volumes that use one of these claims, each claim once.
func volumesOf(pod *v1.Pod, claims map[string]string) (volumes []v1.Volume) {
	if pod == nil {
		return nil
	}
	seen := map[string]bool{}
	for i := range pod.Spec.Volumes {
		name := claimName(pod, &pod.Spec.Volumes[i])
		if _, ok := claims[name]; ok && !seen[name] {
			seen[name] = true
			volumes = append(volumes, pod.Spec.Volumes[i])
		}
	}
	return volumes
}

// claimRefusal returns a refusal on all nodes if the volume of one of these claims is being provisioned, or else nil.
func (s *sharedClaims) claimRefusal(pod *v1.Pod, nodeByClaim map[string]string) *refusal {
	for _, podVolume := range volumesOf(pod, nodeByClaim) {
		name := claimName(pod, &podVolume)
		if reason := s.whyProvisioning(name, nodeByClaim[name]); reason != "" {
			return &refusal{names.VolumeBinding, reason}
		}
	}
	return nil
}

// whyProvisioning returns a sentence that says for which node a claim's volume is being provisioned, or "" if node is
// empty. Any client may write a claim's annotations. So the sentence contains the name only if such a node exists.
func (s *sharedClaims) whyProvisioning(claim, node string) string {
	if node == "" {
		return ""
	}
	where := "node " + node
	if _, err := s.nodes.Get(node); err != nil {
		where = "a node that is not there"
	}
	return fmt.Sprintf("the volume of PersistentVolumeClaim %s, which members share, is being made for %s", claim, where)
}
