package plugin

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
)

func TestConcerns(t *testing.T) {
	list := func(name, quantity string) v1.ResourceList {
		return v1.ResourceList{v1.ResourceName(name): resource.MustParse(quantity)}
	}
	container := func(limits, requests v1.ResourceList) []v1.Container {
		return []v1.Container{{}, {Resources: v1.ResourceRequirements{Limits: limits, Requests: requests}}}
	}
	labelled := func(key string) v1.Pod {
		return v1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "a", key: "g"}}}
	}
	annotated := func(key string) v1.Pod {
		return v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"app": "a", key: "g"}}}
	}
	cases := map[string]struct {
		pod  v1.Pod
		want bool
	}{
		"plain":                {v1.Pod{}, false},
		"cpu only":             {v1.Pod{Spec: v1.PodSpec{Containers: container(list("cpu", "4"), nil)}}, false},
		"GPU limit":            {v1.Pod{Spec: v1.PodSpec{Containers: container(list("nvidia.com/gpu", "1"), nil)}}, true},
		"GPU request":          {v1.Pod{Spec: v1.PodSpec{Containers: container(nil, list("amd.com/gpu", "1"))}}, true},
		"GPU memory":           {v1.Pod{Spec: v1.PodSpec{Containers: container(list("aliyun.com/gpu-mem", "3"), nil)}}, true},
		"count of shared GPUs": {v1.Pod{Spec: v1.PodSpec{Containers: container(list("aliyun.com/gpu-count", "2"), nil)}}, true},
		"init container":       {v1.Pod{Spec: v1.PodSpec{InitContainers: container(list("aliyun.com/gpu", "1"), nil)}}, true},
		"no GPU, zero":         {v1.Pod{Spec: v1.PodSpec{Containers: container(list("nvidia.com/gpu", "0"), nil)}}, false},
		"MIG is not ours":      {v1.Pod{Spec: v1.PodSpec{Containers: container(list("nvidia.com/mig-1g.5gb", "1"), nil)}}, false},
		"ACK gang":             {labelled("gpu-topology"), true},
		"ACK count alone":      {labelled("gpu-topology-replica"), true},
		"coscheduling gang":    {labelled("scheduling.x-k8s.io/pod-group"), true},
		"coscheduling's old":   {labelled("pod-group.scheduling.sigs.k8s.io"), true},
		"KAI's gang":           {annotated("pod-group-name"), true},
		"recipe gang":          {annotated("scheduling.run.ai/pod-group"), true},
		"our gang":             {annotated("gpu.topology/group"), true},
		"our gang, unnamed":    {annotated("gpu.topology/min-member"), true},
		"a wish, no gang":      {annotated("gpu.topology/scope"), true},
		"a slip in our key":    {annotated("gpu.topology/gruop"), true},
		"our key as a label":   {labelled("gpu.topology/group"), true},
		"ACK's as annotation":  {annotated("gpu-topology"), true},
		"the recipe's, label":  {labelled("scheduling.run.ai/pod-group"), true},
		"a key that is longer": {annotated("gpu-topology-of-another"), false},
		"the prefix alone":     {annotated("gpu.topology"), false},
		"another key of KAI":   {annotated("scheduling.run.ai/topology-policy"), false},
		"Kubernetes' PodGroup": {v1.Pod{Spec: v1.PodSpec{SchedulingGroup: &v1.PodSchedulingGroup{PodGroupName: new("g")}}}, true},
	}
	args := defaultArgs()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := args.schedules(&c.pod); got != c.want {
				t.Errorf("schedules = %v, want %v", got, c.want)
			}
		})
	}
}

func TestArgs(t *testing.T) {
	cases := map[string]struct {
		raw  string
		want bool
	}{
		"none":            {``, true},
		"all right":       {`{"apiVersion":"muster.dev/v1","kind":"MusterArgs","permitTimeout":"10s","resources":["x/gpu"]}`, true},
		"misspelt":        {`{"permitTimeOut":"10s","nope":1}`, false},
		"another kind":    {`{"kind":"CoschedulingArgs"}`, false},
		"no time":         {`{"bindTimeout":"0s"}`, false},
		"negative":        {`{"callTimeout":"-1s"}`, false},
		"beyond backstop": {`{"permitTimeout":"20m"}`, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			args, err := decodeArgs(&runtime.Unknown{Raw: []byte(c.raw), ContentType: runtime.ContentTypeJSON})
			if (err == nil) != c.want {
				t.Errorf("%v", err)
			}
			if err == nil && args.CallTimeout.Duration == 0 {
				t.Error("a default was lost")
			}
		})
	}
}

func TestOnlyPodsThatAreNotOursAreSigned(t *testing.T) {
	p := &Plugin{core: &core{args: defaultArgs()}}
	foreign := &v1.Pod{}
	if fragments, status := p.SignPod(t.Context(), foreign); len(fragments) != 0 || !status.IsSuccess() {
		t.Errorf("a foreign pod: %v, %v", fragments, status)
	}
	ours := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"gpu-topology": "job"}}}
	if _, status := p.SignPod(t.Context(), ours); status.Code() != fwk.Unschedulable {
		t.Errorf("ours: %v", status)
	}
}
