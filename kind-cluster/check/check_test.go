// Package check gives cluster.yaml to kind itself. No Docker runs where the tests run, so kind gets a
// stand-in that knows no cluster and fails at the first thing that would make one: until then kind has
// decoded and validated the file with its own code.
package check

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"sigs.k8s.io/kind/pkg/apis/config/defaults"
	"sigs.k8s.io/kind/pkg/apis/config/v1alpha4"
	"sigs.k8s.io/kind/pkg/cluster"
)

// After `info`, `ps` and the look for local images comes the network, the first thing to be made.
const docker = `#!/bin/sh
case "$1" in
info) echo '{}' ;;
ps | inspect) ;;
*) exit 1 ;;
esac
`

const validated = "failed to ensure docker network"

// create runs kind on a configuration; the error tells how far it came.
func create(t *testing.T, raw string) string {
	t.Helper()
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "docker"), []byte(docker), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	err := cluster.NewProvider(cluster.ProviderWithDocker()).Create("",
		cluster.CreateWithRawConfig([]byte(raw)),
		cluster.CreateWithKubeconfigPath(filepath.Join(bin, "kubeconfig")),
		cluster.CreateWithRetain(true), // no cleaning up after what was not made
	)
	if err == nil {
		t.Fatal("kind made a cluster out of nothing")
	}
	return err.Error()
}

func read(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile("../cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestKindTakesTheConfiguration(t *testing.T) {
	if output := create(t, read(t)); !strings.HasPrefix(output, validated) {
		t.Error(output)
	}
}

func TestKindRefuses(t *testing.T) {
	for name, test := range map[string]struct{ line, says string }{
		"a misspelt field": {"networkng: {}", "field networkng not found"},
		"a bad subnet":     {"networking: {podSubnet: 10.0.0.0/99}", "invalid pod subnet"},
	} {
		t.Run(name, func(t *testing.T) {
			if output := create(t, read(t)+"\n"+test.line+"\n"); !strings.Contains(output, test.says) {
				t.Error(output)
			}
		})
	}
}

func TestNodesStart(t *testing.T) {
	var configuration v1alpha4.Cluster
	if err := yaml.Unmarshal([]byte(read(t)), &configuration); err != nil {
		t.Fatal(err)
	}
	for i, node := range configuration.Nodes {
		if node.Image != defaults.Image {
			t.Errorf("nodes[%d].image is %s; this kind is made for %s", i, node.Image, defaults.Image)
		}
		for key := range node.Labels {
			// k8s.io/kubelet pkg/apis/well_known_labels.go: with most others a kubelet does not start.
			if strings.Contains(key, "kubernetes.io/") && key != "topology.kubernetes.io/zone" {
				t.Errorf("nodes[%d].labels: %s is not a kubelet's to set", i, key)
			}
		}
	}
}
