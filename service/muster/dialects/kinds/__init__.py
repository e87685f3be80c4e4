"""Read jobs: the gang that a controller's object describes, and the pods that the controller makes of the
object.

`table` lists the kinds. One module for each family of kinds describes its objects, in the types of
`description`. `jobs.families` makes the gang's PodGroup of a description, and `jobs.pruned` keeps the parts
of an object that are read. The service sees the pods, and `muster place` makes them, by the same
descriptions.
"""
