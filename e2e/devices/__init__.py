"""Real kubelets: do containers get exactly the planned GPUs? Pods, what they print, and the count."""
