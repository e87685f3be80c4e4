"""A real Kubernetes control plane as plain processes, for a laptop, a test or a demonstration.

What lives here starts and stops etcd, kube-apiserver, kube-controller-manager and kwok, and gives
them fake GPU nodes; `stack` runs Muster's service and scheduler on them. Nothing here imports `muster`,
with one exception: `demo`, which shows what it does.
"""
