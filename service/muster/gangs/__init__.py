"""The life of gangs: inputs in, instructions out. No I/O, no clock: time comes with the input.

`coordinator.Coordinator` is the one object that adapters talk to. `lifecycle` moves gangs between phases,
`membership` groups pods into gangs, and `capacity` counts what is taken of each node.
"""
