"""Answers for people at a terminal: asked of the running service, or decided from the cluster without one.

`kubectl gpu-topology` must start within half a second. So nothing here imports the Kubernetes client, the
solver or rich at its start.
"""
