"""Answers for people at a terminal, from the service, or decided from the cluster if no service runs.

`kubectl gpu-topology` must start within half a second. So nothing here imports the Kubernetes client, the
solver or rich at its start.
"""
