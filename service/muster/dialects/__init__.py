"""Turn the objects of users into facts: pure functions from Kubernetes objects to domain objects.

`objects` models the few fields that are read, `pods` and `nodes` are the ways in, and each dialect has a
module. An ill-formed value becomes a typed cause on the pod, and never an exception.
"""
