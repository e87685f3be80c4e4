// Command shim is kube-scheduler with two additional plugins. The service makes all of their decisions.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // kube-scheduler imports it too
	_ "k8s.io/component-base/metrics/prometheus/version"  // kube-scheduler imports it too
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	"muster.dev/shim/internal/devices"
	"muster.dev/shim/internal/plugin"
)

func main() {
	command := app.NewSchedulerCommand(
		app.WithPlugin(plugin.Name, plugin.NewFactory()),
		app.WithPlugin(devices.Name, devices.NewFactory(plugin.MemberOf, plugin.PlannedForOthers)),
	)
	os.Exit(cli.Run(command))
}
