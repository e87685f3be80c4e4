package plugin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// Args are the arguments in pluginConfig. An unknown field is an error. All profiles must have equal arguments,
// because they share one state.
type Args struct {
	metav1.TypeMeta `json:",inline"`

	// ServiceAddress is the address of the service's Unix socket.
	ServiceAddress string `json:"serviceAddress,omitempty"`
	// Resources lists resource names. A pod that names one in any container's requests or limits is scheduled by this
	// plugin.
	Resources []string `json:"resources,omitempty"`
	// GangKeys lists label and annotation keys. A pod that has one is scheduled by this plugin. A key that ends in
	// "/" is a prefix. Otherwise a pod with a misspelt key, or with the key in the wrong place, would start without
	// its gang.
	GangKeys []string `json:"gangKeys,omitempty"`

	// CallTimeout bounds one unary call to the service. No call is made on the scheduling thread.
	CallTimeout metav1.Duration `json:"callTimeout,omitempty"`
	// PermitTimeout is how long members wait in Permit while no other member makes progress.
	PermitTimeout metav1.Duration `json:"permitTimeout,omitempty"`
	// CommitTimeout is the longest time from Permit to the last Binding. Volumes of the members are bound within this
	// time too. The service's bind_s, less bindTimeout, is a further bound.
	CommitTimeout metav1.Duration `json:"commitTimeout,omitempty"`
	// BindTimeout bounds one Binding. It must be below the lease's duration less its renew deadline (15 s − 10 s by
	// default). Otherwise the next leader could plan while a Binding is in flight.
	BindTimeout metav1.Duration `json:"bindTimeout,omitempty"`
}

const (
	// argsAPIVersion and argsKind identify the arguments. kube-scheduler passes unknown types to the plugin unparsed.
	argsAPIVersion = "muster.dev/v1"
	argsKind       = "MusterArgs"
)

func defaultArgs() Args {
	return Args{
		ServiceAddress: "unix:///run/muster/muster.sock",
		Resources:      []string{"nvidia.com/gpu", "aliyun.com/gpu", "amd.com/gpu", "aliyun.com/gpu-mem", "aliyun.com/gpu-count"},
		GangKeys: []string{
			"gpu.topology/", "gpu-topology", "gpu-topology-replica", "scheduling.run.ai/pod-group", "pod-group-name",
			"scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io",
			// Gangs in the words of other systems: the service reads them, or refuses the pod.
			"scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name", "scheduling.volcano.sh/group-min-member",
			"pod-group.scheduling.sigs.k8s.io/name", "gang.scheduling.koordinator.sh/name", "kueue.x-k8s.io/pod-group-name",
			"armadaproject.io/gangId", "fluence.pod-group", "yunikorn.apache.org/task-group-name",
			"yunikorn.apache.org/task-groups", "grove.io/podgang", "godel.bytedance.com/pod-group-name",
			"scheduling.godel.bytedance.com/pod-group-name", "hivedscheduler.microsoft.com/pod-scheduling-spec",
			"sakkara.group.name", "sharedgpu/group_name", "group.batch.scheduler.tencent.com",
			// Jobs with several kinds of pods: a launcher without GPUs waits for its workers.
			"training.kubeflow.org/job-name", "jobset.sigs.k8s.io/jobset-name", "leaderworkerset.sigs.k8s.io/name",
			"ray.io/cluster",
		},
		CallTimeout:   metav1.Duration{Duration: 5 * time.Second},
		PermitTimeout: metav1.Duration{Duration: 30 * time.Second},
		CommitTimeout: metav1.Duration{Duration: 60 * time.Second},
		BindTimeout:   metav1.Duration{Duration: 4 * time.Second},
	}
}

// decodeArgs decodes the arguments and rejects unknown fields. DecodeInto of framework/runtime would accept a
// misspelt timeout.
func decodeArgs(obj runtime.Object) (Args, error) {
	args := defaultArgs()
	if obj == nil {
		return args, nil
	}
	unknown, ok := obj.(*runtime.Unknown)
	if !ok {
		return args, fmt.Errorf("%s args: want runtime.Unknown, got %T", Name, obj)
	}
	raw := unknown.Raw
	if unknown.ContentType == runtime.ContentTypeYAML {
		var err error
		if raw, err = yaml.YAMLToJSONStrict(raw); err != nil {
			return args, fmt.Errorf("%s args: %w", Name, err)
		}
	}
	if len(raw) > 0 {
		decoder := json.NewDecoder(bytes.NewReader(raw))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&args); err != nil {
			return args, fmt.Errorf("%s args: %w", Name, err)
		}
	}
	return args, args.validate()
}

// validate returns an error that names the wrong arguments.
func (a *Args) validate() error {
	if a.APIVersion != "" && a.APIVersion != argsAPIVersion || a.Kind != "" && a.Kind != argsKind {
		return fmt.Errorf("%s args: want %s %s, got %s %s", Name, argsAPIVersion, argsKind, a.APIVersion, a.Kind)
	}
	var wrong []string
	for name, d := range map[string]metav1.Duration{
		"callTimeout": a.CallTimeout, "permitTimeout": a.PermitTimeout,
		"commitTimeout": a.CommitTimeout, "bindTimeout": a.BindTimeout,
	} {
		if d.Duration <= 0 {
			wrong = append(wrong, name)
		}
	}
	if a.PermitTimeout.Duration >= permitBackstop {
		wrong = append(wrong, fmt.Sprintf("permitTimeout (must be under %v)", permitBackstop))
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%s args: must be positive: %s", Name, strings.Join(wrong, ", "))
	}
	return nil
}
