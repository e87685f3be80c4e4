package intree

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
)

// imagesOf returns the names of the pod's images in the form that ImageLocality uses
// (framework/plugins/imagelocality/image_locality.go, sumImageScores and normalizedImageName).
func imagesOf(pod *v1.Pod) sets.Set[string] {
	imageNames := sets.New[string]()
	add := func(name string) {
		if strings.LastIndex(name, ":") <= strings.LastIndex(name, "/") {
			name += ":latest"
		}
		imageNames.Insert(name)
	}
	for _, containers := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			add(containers[i].Image)
		}
	}
	for i := range pod.Spec.Volumes {
		if image := pod.Spec.Volumes[i].Image; image != nil {
			add(image.Reference)
		}
	}
	return imageNames
}

// setImages sets which of these images each node has. kube-scheduler's cache has this information for all images, but the
// snapshot has it only for the images of one pod.
func (s *snapshot) setImages(imageNames sets.Set[string]) {
	states := map[string]*fwk.ImageStateSummary{}
	for _, info := range s.byName {
		clear(info.ImageStates)
		for _, image := range info.Node().Status.Images {
			for _, name := range image.Names {
				if !imageNames.Has(name) {
					continue
				}
				if states[name] == nil {
					states[name] = &fwk.ImageStateSummary{Size: image.SizeBytes}
				}
				states[name].NumNodes++
				info.ImageStates[name] = states[name]
			}
		}
	}
}
