// The shim: kube-scheduler with one more plugin, whose every decision is the service's.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // as kube-scheduler itself does
	_ "k8s.io/component-base/metrics/prometheus/version"  // as kube-scheduler itself does
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	"muster.dev/shim/internal/plugin"
)

func main() {
	command := app.NewSchedulerCommand(app.WithPlugin(plugin.Name, plugin.NewFactory()))
	os.Exit(cli.Run(command))
}
