"""The life of gangs: events in, instructions out. No I/O, no clock: time comes with the event.

`coordinator.Coordinator` is the one object that adapters talk to; `life` holds the transitions of one
gang, `roster` who belongs to which gang, `ledger` what is taken of each node.
"""
