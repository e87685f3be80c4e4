"""Kinds of jobs: what each controller's object says of its gang, and which pods the controller makes of it.

`table` lists the kinds. One module for each family describes them, in the words of `description`. `gangs`
turns a description into the PodGroup that the gang would have. The same description serves the service, which
sees the pods, and `muster place`, which makes them.
"""
