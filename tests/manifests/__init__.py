"""scheduler-config/ and kind-cluster/ against the real thing: kustomize, the API server, the shim, kind.

What a reader of YAML can't see is tested here: that the API server takes every object, that the rights
are enough for the shim and no more, and that kube-scheduler reads its configuration strictly.
"""
