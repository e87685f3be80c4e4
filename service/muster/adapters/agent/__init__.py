"""`muster node-agent`: the kubelet, the API server and the GPUs of one node, around `muster.node_agent`.

It runs on every node with GPUs, so it is small: no solver, no Kubernetes client library, no telemetry.
"""
