//go:build !next

package pluginanswers

import v1 "k8s.io/api/core/v1"

// isChanged returns whether the answer of a plugin may differ from the file.
func isChanged(plugin string, pod *v1.Pod) bool { return false }
