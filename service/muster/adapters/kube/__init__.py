"""The Kubernetes API: watches of nodes and pods in, events out.

The objects are decoded straight into the few fields of `muster.dialects.objects`; the client library's own
models cost a hundred times more and its watches notice neither silence nor expiry.
"""
