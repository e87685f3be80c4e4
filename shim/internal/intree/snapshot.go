package intree

import (
	"cmp"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// snapshot is a view of the cluster for plugins: all nodes, and the selected bound pods. The scheduler's own snapshot is
// changed in place while a cycle runs, so this package must not read it. refresh replaces these fields and does not change
// their old values, so a running inspection keeps the values that it took.
type snapshot struct {
	fwk.SharedLister // nil, because the plugins that run here read no pod groups
	nodeLister       corelisters.NodeLister
	podLister        corelisters.PodLister
	selects          func(*v1.Pod) bool
	nodes            []fwk.NodeInfo
	names            []string       // of the nodes
	withAffinity     []fwk.NodeInfo // nodes with pods that have affinity or anti-affinity
	byName           map[string]*framework.NodeInfo
	claims           map[string]int // namespace/name of a claim → number of pods that use it
}

// NodeInfos implements fwk.SharedLister.
func (s *snapshot) NodeInfos() fwk.NodeInfoLister { return s }

// StorageInfos implements fwk.SharedLister.
func (s *snapshot) StorageInfos() fwk.StorageInfoLister { return s }

// List implements fwk.NodeInfoLister. The nodes are sorted by name.
func (s *snapshot) List() ([]fwk.NodeInfo, error) { return s.nodes, nil }

// Get implements fwk.NodeInfoLister.
func (s *snapshot) Get(name string) (fwk.NodeInfo, error) {
	if info, ok := s.byName[name]; ok {
		return info, nil
	}
	return nil, fmt.Errorf("node %q is not in the snapshot", name)
}

// HavePodsWithAffinityList implements fwk.NodeInfoLister.
func (s *snapshot) HavePodsWithAffinityList() ([]fwk.NodeInfo, error) { return s.withAffinity, nil }

// HavePodsWithRequiredAntiAffinityList implements fwk.NodeInfoLister. It is empty because the planner models required
// anti-affinity.
func (s *snapshot) HavePodsWithRequiredAntiAffinityList() ([]fwk.NodeInfo, error) { return nil, nil }

// HavePodsWithRequiredNonHostScopedAntiAffinityList implements fwk.NodeInfoLister.
func (s *snapshot) HavePodsWithRequiredNonHostScopedAntiAffinityList() ([]fwk.NodeInfo, error) {
	return nil, nil
}

// IsPVCUsedByPods implements fwk.StorageInfoLister.
func (s *snapshot) IsPVCUsedByPods(key string) bool { return s.claims[key] > 0 }

// refresh takes the current state of the cluster from the informers.
func (s *snapshot) refresh() error {
	allNodes, err := s.nodeLister.List(labels.Everything())
	if err != nil {
		return err
	}
	allPods, err := s.podLister.List(labels.Everything())
	if err != nil {
		return err
	}
	onNode := map[string][]*v1.Pod{}
	for _, pod := range allPods {
		if s.selects(pod) {
			onNode[pod.Spec.NodeName] = append(onNode[pod.Spec.NodeName], pod)
		}
	}
	before := s.byName
	s.byName = make(map[string]*framework.NodeInfo, len(allNodes))
	s.nodes = make([]fwk.NodeInfo, 0, len(allNodes))
	s.claims, s.withAffinity = map[string]int{}, nil
	for _, node := range allNodes {
		info := before[node.Name]
		if info == nil || !isUpToDate(info, node, onNode[node.Name]) {
			info = framework.NewNodeInfo(onNode[node.Name]...)
			info.SetNode(node)
		}
		s.byName[node.Name] = info
		s.nodes = append(s.nodes, info)
	}
	slices.SortFunc(s.nodes, func(a, b fwk.NodeInfo) int { return cmp.Compare(a.Node().Name, b.Node().Name) })
	s.names = make([]string, len(s.nodes))
	for i, info := range s.nodes {
		s.names[i] = info.Node().Name
		if len(info.GetPodsWithAffinity()) > 0 {
			s.withAffinity = append(s.withAffinity, info)
		}
	}
	for _, info := range s.byName {
		for claim, pods := range info.PVCRefCounts {
			s.claims[claim] += pods
		}
	}
	return nil
}

// isUpToDate returns whether info still describes the node and its pods, so that it can be reused. That saves most of the
// time. The comparison by pointer is enough, because informers replace an object that changes, and no plugin changes it.
func isUpToDate(info *framework.NodeInfo, node *v1.Node, pods []*v1.Pod) bool {
	if info.Node() != node || len(info.Pods) != len(pods) {
		return false
	}
	for _, podInfo := range info.Pods {
		if !slices.Contains(pods, podInfo.GetPod()) {
			return false
		}
	}
	return true
}

// isBoundWithClaims returns whether a bound pod uses volumes or resource claims, which the filter plugins count. Finished
// pods do not count.
func isBoundWithClaims(pod *v1.Pod) bool {
	return isBound(pod) && (usesVolumes(pod) || len(pod.Spec.ResourceClaims) > 0)
}

// isBound returns whether the pod is on a node and has not finished.
func isBound(pod *v1.Pod) bool {
	return pod.Spec.NodeName != "" && pod.Status.Phase != v1.PodSucceeded && pod.Status.Phase != v1.PodFailed
}

// usesVolumes returns whether the pod has volumes that plugins check: claims, and disks that the pod names directly.
// Volumes that any pod may have (ConfigMaps, Secrets, emptyDir, hostPath and the like) do not count.
func usesVolumes(pod *v1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(volume v1.Volume) bool {
		return volume.PersistentVolumeClaim != nil || volume.Ephemeral != nil || namesDisk(&volume)
	})
}

// namesDisk returns whether a volume names a disk directly, of a kind that VolumeRestrictions or NodeVolumeLimits checks.
func namesDisk(volume *v1.Volume) bool {
	return volume.GCEPersistentDisk != nil || volume.AWSElasticBlockStore != nil || volume.RBD != nil ||
		volume.ISCSI != nil || volume.AzureDisk != nil || volume.AzureFile != nil || volume.Cinder != nil ||
		volume.VsphereVolume != nil || volume.PortworxVolume != nil
}
