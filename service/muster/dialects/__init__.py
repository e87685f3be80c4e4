"""What users write, turned into facts: pure functions from Kubernetes objects to domain objects.

`objects` models the few fields that are read; `pods` and `nodes` are the ways in; one module for each
dialect. What is ill-formed becomes a typed cause on the pod, never an exception.
"""
