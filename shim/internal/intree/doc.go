// Package intree determines which nodes the in-tree plugins refuse to a pod, for all nodes at once and before the
// service plans. It runs the plugins that the service does not model. They run in a separate framework instance, on a
// separate snapshot, and not on the scheduling thread. For pods with preferences it also determines how the in-tree
// plugins score each node.
package intree
