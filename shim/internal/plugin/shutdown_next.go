//go:build next

package plugin

import "k8s.io/apiserver/pkg/server/signals"

// requestShutdown lets kube-scheduler's handler of signals end the process. Kubernetes 1.38 has moved the handler.
func requestShutdown() { signals.RequestShutdown() }
