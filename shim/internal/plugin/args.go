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

// Args is what pluginConfig may say; an unknown field is an error. Profiles share one state, so all
// must say the same.
type Args struct {
	metav1.TypeMeta `json:",inline"`

	// ServiceAddress is the service's Unix socket.
	ServiceAddress string `json:"serviceAddress,omitempty"`
	// Resources that make a pod ours, in any container's requests or limits.
	Resources []string `json:"resources,omitempty"`
	// GangKeys make a pod ours by their presence among its labels or annotations. One that ends in "/" is a
	// prefix: a pod with a slip in its key, or with the key in the wrong place, would start without its gang.
	GangKeys []string `json:"gangKeys,omitempty"`

	// CallTimeout bounds one unary call to the service. None is made on the scheduling thread.
	CallTimeout metav1.Duration `json:"callTimeout,omitempty"`
	// PermitTimeout is how long a gang's members wait while none of the others moves.
	PermitTimeout metav1.Duration `json:"permitTimeout,omitempty"`
	// CommitTimeout is the longest time from Permit to the last Binding sent, in which siblings'
	// volumes are bound too. The service's bind_s, less bindTimeout, bounds it as well.
	CommitTimeout metav1.Duration `json:"commitTimeout,omitempty"`
	// BindTimeout bounds one Binding. It must stay under the lease's duration less its renew
	// deadline (15 s − 10 s by default), or the next leader plans while a Binding is under way.
	BindTimeout metav1.Duration `json:"bindTimeout,omitempty"`
}

// apiVersion of the args. kube-scheduler hands unknown types to us as they are.
const (
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
		},
		CallTimeout:   metav1.Duration{Duration: 5 * time.Second},
		PermitTimeout: metav1.Duration{Duration: 30 * time.Second},
		CommitTimeout: metav1.Duration{Duration: 60 * time.Second},
		BindTimeout:   metav1.Duration{Duration: 4 * time.Second},
	}
}

// decodeArgs is strict, unlike framework/runtime's DecodeInto: a misspelt timeout must not pass.
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
