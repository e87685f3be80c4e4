"""The life of gangs: events in, instructions out. No I/O, no clock: time comes with the event.

`coordinator.Coordinator` is the one object that adapters talk to. `lifecycle` moves gangs between phases,
`membership` groups pods into gangs, and `capacity` counts what is taken of each node.
"""
