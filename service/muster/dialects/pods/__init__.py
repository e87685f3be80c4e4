"""Pods: `pods` is the way in. The other modules read one part of a pod each, and bound how much is read."""
