"""Read jobs: the gang that a controller's object means, and the pods that the controller makes of the object.

`table` lists the kinds. One module for each family of kinds describes its objects, in the types of
`description`. `gangs` turns a description into the PodGroup that the gang would have. `pruned` keeps only
what is read of an object. The service sees the pods, and `muster place` makes them, by the same descriptions.
"""
