// Package intree tells for which nodes the in-tree plugins refuse a pod, for all nodes at once and before
// anything is planned. It runs the plugins that the service does not model in a framework instance of its own,
// on a snapshot of its own, away from the scheduling thread. For pods that have preferences it also tells how much
// the in-tree plugins favour each node.
package intree
