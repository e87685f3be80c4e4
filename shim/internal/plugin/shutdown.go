//go:build !next

package plugin

import "k8s.io/apiserver/pkg/server"

// requestShutdown lets kube-scheduler's handler of signals end the process.
func requestShutdown() { server.RequestShutdown() }
