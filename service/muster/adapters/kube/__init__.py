"""The Kubernetes API: watches of nodes and pods in, events out.

The objects are decoded directly into the few fields of `muster.dialects.objects`. The client library's own
models cost a hundred times more, and its watches notice neither silence nor expiry.
"""
