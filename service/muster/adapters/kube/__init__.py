"""The Kubernetes API: read watches, and write events and other objects.

The objects are decoded directly into the few fields of `muster.dialects.objects`. The client library's own
models cost a hundred times more, and its watches notice neither silence nor expiry.
"""
