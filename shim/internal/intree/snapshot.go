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

// snapshot is the cluster as plugins need it: all nodes, and of the bound pods those that `takes` picks. The scheduler's own snapshot is changed in place while a cycle runs, and must not
// be read from here. What `renew` replaces is never changed: an inspection that has begun goes on with what it took.
type snapshot struct {
	fwk.SharedLister // nil: pod groups, which no asked plugin reads
	takes            func(*v1.Pod) bool
	nodes            []fwk.NodeInfo
	names            []string       // of the nodes
	affine           []fwk.NodeInfo // those with pods that have affinity or anti-affinity
	byName           map[string]*framework.NodeInfo
	claims           map[string]int // namespace/name of a claim → nodes on which pods use it
}

func (s *snapshot) NodeInfos() fwk.NodeInfoLister       { return s }
func (s *snapshot) StorageInfos() fwk.StorageInfoLister { return s }

// List implements fwk.NodeInfoLister: by name.
func (s *snapshot) List() ([]fwk.NodeInfo, error) { return s.nodes, nil }

// Get implements fwk.NodeInfoLister.
func (s *snapshot) Get(name string) (fwk.NodeInfo, error) {
	if info, found := s.byName[name]; found {
		return info, nil
	}
	return nil, fmt.Errorf("node %q is not in the snapshot", name)
}

// HavePodsWithAffinityList implements fwk.NodeInfoLister.
func (s *snapshot) HavePodsWithAffinityList() ([]fwk.NodeInfo, error) { return s.affine, nil }

// HavePodsWithRequiredAntiAffinityList implements fwk.NodeInfoLister: the planner models what is required.
func (s *snapshot) HavePodsWithRequiredAntiAffinityList() ([]fwk.NodeInfo, error) { return nil, nil }

// HavePodsWithRequiredNonHostScopedAntiAffinityList implements fwk.NodeInfoLister.
func (s *snapshot) HavePodsWithRequiredNonHostScopedAntiAffinityList() ([]fwk.NodeInfo, error) {
	return nil, nil
}

// IsPVCUsedByPods implements fwk.StorageInfoLister.
func (s *snapshot) IsPVCUsedByPods(key string) bool { return s.claims[key] > 0 }

// renew reads the cluster from the informers.
func (s *snapshot) renew(nodes corelisters.NodeLister, pods corelisters.PodLister) error {
	allNodes, err := nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	allPods, err := pods.List(labels.Everything())
	if err != nil {
		return err
	}
	onNode := map[string][]*v1.Pod{}
	for _, pod := range allPods {
		if s.takes(pod) {
			onNode[pod.Spec.NodeName] = append(onNode[pod.Spec.NodeName], pod)
		}
	}
	before := s.byName
	s.byName = make(map[string]*framework.NodeInfo, len(allNodes))
	s.nodes = make([]fwk.NodeInfo, 0, len(allNodes))
	s.claims, s.affine = map[string]int{}, nil
	for _, node := range allNodes {
		info := before[node.Name]
		if info == nil || !holds(info, node, onNode[node.Name]) {
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
			s.affine = append(s.affine, info)
		}
	}
	for _, info := range s.byName {
		for claim, pods := range info.PVCRefCounts {
			s.claims[claim] += pods
		}
	}
	return nil
}

// holds says whether info is still true: informers replace an object that changes, so that it need not be
// made anew, which takes most of the time. No plugin changes it.
func holds(info *framework.NodeInfo, node *v1.Node, pods []*v1.Pod) bool {
	if info.Node() != node || len(info.Pods) != len(pods) {
		return false
	}
	for _, known := range info.Pods {
		if !slices.Contains(pods, known.GetPod()) {
			return false
		}
	}
	return true
}

// counts says whether a bound pod takes something that an asked plugin counts. Finished pods take nothing.
func counts(pod *v1.Pod) bool {
	return bound(pod) && (usesVolumes(pod) || len(pod.Spec.ResourceClaims) > 0)
}

// bound says whether the pod is on a node and has not finished.
func bound(pod *v1.Pod) bool {
	return pod.Spec.NodeName != "" && pod.Status.Phase != v1.PodSucceeded && pod.Status.Phase != v1.PodFailed
}

// usesVolumes says whether the pod has volumes that plugins look at: claims, and disks that it names itself.
// What every pod may have (ConfigMaps, Secrets, emptyDir, hostPath and the like) is left out.
func usesVolumes(pod *v1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(volume v1.Volume) bool {
		return volume.PersistentVolumeClaim != nil || volume.Ephemeral != nil || disk(&volume)
	})
}

// disk says whether a volume names a disk itself, of a kind that VolumeRestrictions or NodeVolumeLimits knows.
func disk(volume *v1.Volume) bool {
	return volume.GCEPersistentDisk != nil || volume.AWSElasticBlockStore != nil || volume.RBD != nil ||
		volume.ISCSI != nil || volume.AzureDisk != nil || volume.AzureFile != nil || volume.Cinder != nil ||
		volume.VsphereVolume != nil || volume.PortworxVolume != nil
}
